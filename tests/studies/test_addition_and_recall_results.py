"""docs/synthetic_results.md agrees with our measurements of decimal addition and recall."""

import dataclasses
from pathlib import Path

from etils import epath

from fire_lm.reporting.length_accuracy import AccuracyLine, accuracy_lines
from fire_lm.reporting.report import _accuracies
from fire_lm.results.folder import Results, read_results

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "docs" / "evidence"
ADDITION = EVIDENCE / "synthetic_addition"
RECALL = EVIDENCE / "synthetic_recall"
PAGE = ROOT / "docs" / "synthetic_results.md"


def measured(evidence: Path) -> tuple[Results, dict[str, AccuracyLine]]:
    """Return the results of a folder with one task, and its lines by name."""
    results = read_results(epath.Path(evidence))
    (of_task,) = accuracy_lines(results).values()
    described = ", resampling RandomizedPositions (positions random)"
    return results, {line.name.replace(described, ", random"): line for line in of_task}


def check_runs(results: Results, parameters: float) -> None:
    assert {(run.seed, run.step) for run in results.runs} == {(0, 3000)}
    assert {row.sequences for row in results.accuracies} == {64}
    assert {round(run.parameters / 1e6, 2) for run in results.runs} == {parameters}


def test_the_page_says_that_no_model_learned_to_add():
    page = PAGE.read_text()
    results, lines = measured(ADDITION)
    check_runs(results, parameters=0.16)
    assert {row.layout for row in results.accuracies} == {"autoregressive"}
    for line in lines.values():
        assert (line.trained_lengths[0], line.trained_lengths[-1]) == (5, 20)
        assert (line.longer_lengths[0], line.longer_lengths[-1]) == (25, 100)
    page = " ".join(page.split())
    at_5 = [line.points[5].value for line in lines.values()]
    longer = [line.longer for line in lines.values()]
    assert (
        f"give {min(at_5):.1f} to {max(at_5):.1f} % of the digits of sums of numbers of 5 digits "
        f"correctly, and {min(longer):.1f} to {max(longer):.1f} % beyond 20 digits"
    ) in page
    assert f"gives about {with_highest(5):.1f} % at 5 digits" in page


def test_a_report_names_runs_that_were_measured_before_their_newest_step():
    results, _ = measured(ADDITION)
    (whole,) = _accuracies(results)
    assert whole.paragraphs == []
    run = results.accuracies[0].run
    earlier = [
        dataclasses.replace(row, step=1000) if row.run == run else row for row in results.accuracies
    ]
    (section,) = _accuracies(dataclasses.replace(results, accuracies=earlier))
    assert section.paragraphs == [
        f"Scored before the newest step of the run: {run} at 1,000 of 3,000."
    ]


def with_highest(digits: int) -> float:
    """Return the accuracy of giving 1 for the highest digit of a sum, and guessing the others.

    Two numbers of n digits are about uniform between 10**(n - 1) and 10**n. Relative to 10**n,
    their sum is less than 1 in a triangle with sides of 0.8, of a square with sides of 0.9.
    """
    carries = 1 - 0.8**2 / 2 / 0.9**2
    return 100 * (carries + digits / 10) / (digits + 1)


def test_the_page_says_that_no_model_learned_to_recall():
    page = PAGE.read_text()
    results, lines = measured(RECALL)
    check_runs(results, parameters=0.22)
    for line in lines.values():
        assert (line.trained_lengths[0], line.trained_lengths[-1]) == (8, 64)
        assert (line.longer_lengths[0], line.longer_lengths[-1]) == (96, 512)
        assert line.points[8].value < 100 / 8  # as when giving any value of the list
    page = " ".join(page.split())
    at_8 = [line.points[8].value for line in lines.values()]
    assert f"With 8 pairs, all score {min(at_8):.1f} to {max(at_8):.1f} %" in page
    minutes = [run.seconds / 60 for run in (*results.runs, *measured(ADDITION)[0].runs)]
    assert f"took between {min(minutes):.0f} and {max(minutes):.0f} minutes on one core" in page
