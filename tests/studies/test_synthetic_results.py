"""docs/synthetic_results.md agrees with our measurements on synthetic tasks."""

from collections.abc import Callable, Sequence, Set
from pathlib import Path

import numpy as np
import pytest
from etils import epath
from overprinting import overprinted, saved
from scipy.stats import binom

from fire_lm.cli import main
from fire_lm.reporting.length_accuracy import AccuracyLine, accuracy_lines, mean_of_guesses
from fire_lm.results.folder import read_results
from fire_lm.tasks.synthetic import CHOMSKY
from fire_lm.tasks.synthetic.scoring import mean_weights

__all__ = ["saved"]  # a fixture
ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "docs" / "evidence" / "synthetic"
PAGE = ROOT / "docs" / "synthetic_results.md"
FIGURES = {
    "synthetic": 3,
    "synthetic_seeds": 1,
    "synthetic_seeds_random": 1,
    "synthetic_log_n": 1,
    "synthetic_addition": 1,
    "synthetic_recall": 1,
}
NOT_LEARNED = (
    "EvenPairs",
    "ParityCheck",
    "ModularArithmetic",
    "ModularArithmeticBrackets",
    "MissingDuplicateString",
    "SolveEquation",
)
HARDLY_LEARNED = ("BinaryAddition", "ComputeSqrt", "BinaryMultiplication")
LEARNED_IN_PART = (
    "DuplicateString",
    "OddsFirst",
    "StackManipulation",
)
TRAINED = [10, 20, 30, 40]
LONGER = [41, 50, 60, 80, 100, 120, 140, 170, 200, 240, 280, 320, 360, 400, 450, 500]
PLAIN = {"nope", "rope", "alibi", "kerple_log", "fire", "fire_g", "t5"}
RANDOM = {f"{name}, random" for name in PLAIN - {"nope"}}


@pytest.fixture(scope="module")
def lines() -> dict[str, dict[str, AccuracyLine]]:
    """Return the lines of each task by the name of the encoding and, if any, `random`."""
    described = ", resampling RandomizedPositions (positions random)"
    return {
        task.removesuffix(", slots"): {
            line.name.replace(described, ", random"): line for line in of_task
        }
        for task, of_task in accuracy_lines(read_results(epath.Path(EVIDENCE))).items()
    }


def test_every_arm_was_measured_at_every_length(lines):
    assert lines.keys() == {task.__name__ for task in CHOMSKY} and len(CHOMSKY) == 15
    for of_task in lines.values():
        assert of_task.keys() == PLAIN | RANDOM
        for line in of_task.values():
            assert line.trained_lengths == TRAINED and line.longer_lengths == LONGER


def best(lines: dict[str, AccuracyLine], among: Set[str], side: str) -> str:
    """Return the highest mean among some arms over trained or longer lengths, and its encoding."""
    name = max(sorted(among), key=lambda name: getattr(lines[name], side))
    return f"{getattr(lines[name], side):.1f} {name}"


def table(lines: dict[str, dict[str, AccuracyLine]]) -> list[str]:
    """Return the lines of the page's table: the highest means of each task."""
    return [
        "| task | guess, trained | trained lengths | guess, longer | longer lengths, positions "
        "0, 1, 2, ... | longer lengths, random |",
        f"|{' --- |' * 6}",
        *(
            f"| {task} | {guess(task, 'trained'):.1f} | "
            f"{best(lines[task], PLAIN | RANDOM, 'trained')} | {guess(task, 'longer'):.1f} | "
            f"{best(lines[task], PLAIN, 'longer')} | {best(lines[task], RANDOM, 'longer')} |"
            for task in (task.__name__ for task in CHOMSKY)
        ),
    ]


def guess(task: str, side: str) -> float:
    """Return the mean of the best answer without reading over trained or longer lengths."""
    found = mean_of_guesses(task, TRAINED if side == "trained" else LONGER)
    assert found is not None
    return found


def mean_over(accuracy: Callable[[int], float], lengths: Sequence[int]) -> float:
    return float(mean_weights(lengths) @ [accuracy(length) for length in lengths])


def test_the_page_has_a_row_for_each_task(lines):
    assert "\n".join(table(lines)) + "\n\n" in PAGE.read_text()


def span(values: Sequence[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


def highest_gain(lines: dict[str, dict[str, AccuracyLine]], task: str) -> float:
    """Return by how much the highest mean over trained lengths exceeds guessing."""
    means = [line.trained for line in lines[task].values() if line.trained is not None]
    return max(means) - guess(task, "trained")


def test_the_page_says_which_rules_no_model_learned(lines):
    page = " ".join(PAGE.read_text().split())
    *others, last = (f"{highest_gain(lines, task):.1f}" for task in NOT_LEARNED)
    assert f"exceed guessing by {', '.join(others)} and {last} points" in page
    hardly = max(highest_gain(lines, task) for task in HARDLY_LEARNED)
    assert f"stay within {hardly:.1f} points of guessing" in page
    for task in LEARNED_IN_PART:
        assert min(line.trained for line in lines[task].values()) > guess(task, "trained")
    at_500 = [line.points[500].value for task in LEARNED_IN_PART for line in lines[task].values()]
    assert f"At 500 symbols, they score {span(at_500)} %." in page


def sorted_by_length(length: int) -> float:
    """Return the expected accuracy of giving the first fifth of the places symbol 0, and so on.

    A place holds a symbol if at most as many symbols as precede it are smaller, and more are not
    larger; both numbers are binomial.
    """
    place = np.arange(length)
    symbol = 5 * place // length
    holds = binom.cdf(place, length, symbol / 5) - binom.cdf(place, length, (symbol + 1) / 5)
    return float(100 * holds.mean())


def test_the_page_says_what_the_length_rule_scores(lines):
    page = " ".join(PAGE.read_text().split())
    by_length, sort = mean_over(sorted_by_length, LONGER), lines["BucketSort"]
    assert [round(sorted_by_length(n), 1) for n in (40, 100, 500)] == [77.8, 85.8, 93.7]
    assert (
        "The length rule, which gives the first fifth of the places symbol 0, the second symbol "
        f"1, and so on, scores {by_length:.1f} % over longer lengths and "
        f"{sorted_by_length(500):.1f} % at 500 symbols. T5's buckets score "
        f"{sort['t5'].longer:.1f} % and ALiBi {sort['alibi'].longer:.1f} %."
    ).lower() in page.lower()
    for name in ("nope", "rope", "fire", "fire_g", "kerple_log"):
        assert sort["alibi"].longer < sort["t5"].longer < by_length < sort[name].longer


def test_the_page_describes_the_runs():
    page = " ".join(PAGE.read_text().split())
    results = read_results(epath.Path(EVIDENCE))
    assert {(run.seed, run.step) for run in results.runs} == {(0, 3000)}
    assert {row.sequences for row in results.accuracies} == {64}
    assert {round(run.parameters / 1e6, 2) for run in results.runs} == {0.15}
    sort = [run.seconds / 60 for run in results.runs if "BucketSort" in run.data]
    minutes = [run.seconds / 60 for run in results.runs if "BucketSort" not in run.data]
    assert (
        f"between {min(minutes):.1f} and {max(minutes):.1f} minutes on one core, and between "
        f"{min(sort):.1f} and {max(sort):.1f} minutes for sorting"
    ) in page
    assert {guess("ReverseString", "longer"), guess("DuplicateString", "longer")} == {50.0}


@pytest.mark.ci
@pytest.mark.parametrize(("folder", "figures"), FIGURES.items())
def test_the_figures_are_those_of_the_report(tmp_path, saved, folder, figures):
    evidence = EVIDENCE.with_name(folder)
    assert main(["report", str(evidence), f"--output={tmp_path}"]) == 0
    names = {path.name for path in evidence.glob("*.svg")}
    assert len(names) == figures
    for name in names:
        same = (tmp_path / name).read_bytes() == (evidence / name).read_bytes()
        assert same, f"draw {name} again with the command on the page"
        assert f"evidence/{evidence.name}/{name})" in PAGE.read_text()
    assert [label for image in saved for label in overprinted(image)] == []
