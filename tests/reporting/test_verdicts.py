"""What a report says at its top: who leads, what cannot be told apart, and how many seeds would."""

import dataclasses
import math
import re
import statistics

import numpy as np
import pytest
from command import EVIDENCE
from etils import epath
from sample_results import LENGTHS, facts, loss_row, sample_results, text_of

from fire_lm.reporting import task_tables, verdicts
from fire_lm.reporting.against import against
from fire_lm.reporting.length_accuracy import (
    accuracy_differences,
    accuracy_lines,
    accuracy_rankings,
)
from fire_lm.reporting.length_sweep import difference_tables, loss_rankings, loss_verdict
from fire_lm.reporting.page import Table
from fire_lm.reporting.report import VERDICT, verdict_sections
from fire_lm.reporting.seeds import Line, loss_lines
from fire_lm.reporting.task_lines import suite_scores
from fire_lm.results.folder import Results, read_results


def of_seeds(values: dict[str, list[float]], noise: float = 0.004) -> Results:
    """Return results of an own encoding and others, with these losses of seeds at every length."""
    runs = [facts(name, seed) for name, losses in values.items() for seed in range(len(losses))]
    rows = [loss_row(run, n, values[run.arm][run.seed]) for run in runs for n in LENGTHS]
    return Results(runs=runs, losses=rows, scored=text_of(rows, noise))


def lines_of(results: Results) -> list[Line]:
    (lines,) = loss_lines(results).values()
    return lines


# An own encoding that seems 0.011 behind FIRE: many errors over text, but within the seeds.
OWN = of_seeds({"fire": [1.800, 1.808, 1.816], "own": [1.820, 1.803, 1.834]})


def test_seeds_decide_whether_an_own_encoding_differs():
    """By the old rule, FIRE was 0.011 ± 0.001 ahead, "ten standard errors"."""
    lines = lines_of(OWN)
    differences, text = difference_tables(lines, nats=True)
    assert "95 % interval over seeds and text" in differences.caption
    assert all(
        cell.startswith("not distinguishable (+0.011 ± 0.0") for cell in differences.rows[0][1:]
    )
    assert "over the rows of the common text alone" in text.caption
    error = float(text.rows[0][1].partition("± ")[2])
    assert 2 * error < 0.011
    method, *told = loss_verdict(lines, nats=True)
    assert "Welch's t test over seeds and text at 5 %." in method
    assert method.startswith("An arm is all runs that differ only in their seed.")
    needed = [
        int(n)
        for n in re.findall(r"fire has .* cannot be told apart from own .(\d+)", " ".join(told))
    ]
    assert needed and all(12 < seeds < 30 for seeds in needed)
    (ranking,) = loss_rankings(lines, nats=True)
    assert ranking.endswith("not told apart: at 64, 128 and 256 tokens: fire (a), own (a).")


def test_arms_that_differ_are_told_apart():
    far = of_seeds({"fire": [1.80, 1.81, 1.82], "own": [1.90, 1.91, 1.92], "x": [2.0, 2.1, 2.4]})
    lines = lines_of(far)
    method, told = loss_verdict(lines, nats=True)
    assert "corrected for all 3 pairs by Holm's method; * would be told apart" in method
    assert told.startswith("At 64, 128 and 256 tokens, fire has the lowest loss, but cannot be")
    assert "own" not in told and "x (" in told
    assert loss_rankings(lines, nats=True)[0].endswith("tokens: fire (a), own (b), x (ab).")
    (differences, _) = difference_tables(lines, nats=True)
    assert differences.rows[0][1].startswith("+0.100 ± 0.0")
    assert "not distinguishable" in differences.rows[1][1]


def test_a_single_run_establishes_nothing_and_the_page_says_so():
    alone = dataclasses.replace(sample_results(), scored=[])
    alone = dataclasses.replace(alone, losses=[r for r in alone.losses if r.run.endswith("0")])
    caution, *told = loss_verdict(lines_of(alone), nats=True)
    assert caution.startswith(
        "Each arm has one run (an arm is all runs that differ only in their seed): no order is"
    )
    assert "0.010 to 0.038 nats per token (standard deviation in fire_lm's own runs" in caution
    assert told[0].startswith("At 64 tokens, rope has the lowest loss; its lead over fire (0.100)")
    assert told[0].endswith("is larger than usual for two seeds, which is no test.")
    assert "alibi (0.010) may be chance" in told[2]
    assert loss_rankings(lines_of(alone), nats=True) == []
    assert difference_tables(lines_of(alone), nats=True) == []
    # An arm with seeds shows how much they differ, but a single run beside it is untested.
    mixed = of_seeds({"fire": [1.80, 1.81, 1.82], "own": [1.9]})
    caution, _ = loss_verdict(lines_of(mixed), nats=True)
    assert caution.startswith("No two arms have several seeds (an arm is all runs")
    assert "0.010 nats per token (standard deviation of the arms that have seeds)" in caution
    assert difference_tables(lines_of(mixed), nats=True)[0].caption.startswith(
        "Not for comparing encodings: nats per token above"
    )


def test_against_an_arms_own_seed_there_is_no_difference():
    """The seed in another folder keeps its name; so may a run that is another one."""
    lines = lines_of(OWN)
    fire = [line for line in lines if line.name == "fire"]
    (seed,) = lines_of(of_seeds({"fire": [1.800]}))
    table = against(fire, [seed], "runs/fire-seed0", nats=True)
    assert table is not None and table.rows[0][1] == "+0.008 (same runs)"
    table = against(fire, fire, "itself", nats=True)
    assert table is not None and table.rows[0][1] == "not distinguishable (+0.000 ± 0.000)"
    (other,) = lines_of(of_seeds({"fire": [1.700]}))
    table = against(fire, [other], "elsewhere", nats=True)
    assert table is not None and table.rows[0][1] == "+0.108 (no test)"
    assert "no test: a single run does not show how much seeds differ" in table.caption
    (three,) = lines_of(of_seeds({"fire": [1.700, 1.708, 1.716]}))
    table = against(fire, [three], "elsewhere", nats=True)
    assert table is not None and table.rows[0][1].startswith("+0.100 ± 0.01")


def test_the_verdict_is_on_top_of_the_page():
    (section,) = verdict_sections(OWN)
    assert section.title == VERDICT and "cannot be told apart from own" in section.paragraphs[1]
    assert verdict_sections(of_seeds({"fire": [1.8, 1.9]})) == [], "nothing to compare"


def test_the_reference_spreads_are_those_of_the_evidence():
    by_multiple: dict[float, list[float]] = {}
    for line in lines_of(read_results(epath.Path(EVIDENCE / "mini"))):
        for length, point in line.nats.items():
            by_multiple.setdefault(length / line.train_length, []).append(point.spread or math.nan)
    found = {n: math.sqrt(statistics.fmean(s**2 for s in some)) for n, some in by_multiple.items()}
    assert verdicts.REFERENCE == {n: round(spread, 3) for n, spread in found.items()}
    seeds = accuracy_lines(read_results(epath.Path(EVIDENCE / "synthetic_seeds")))
    spreads = [statistics.stdev(line.seeds) for lines in seeds.values() for line in lines]
    assert f"by {min(spreads):.1f} to {max(spreads):.1f} points" in verdicts.ACCURACY.usual
    (suite,) = suite_scores(read_results(epath.Path(EVIDENCE / "long_eval")))
    most = max(one.spread or 0 for line in suite.lines for one in line.scores.values())
    assert f"by up to {most:.0f} points" in verdicts.SCORE.usual


def test_accuracies_and_scores_have_tables_of_differences_and_rankings():
    results = read_results(epath.Path(EVIDENCE / "long_eval"))
    (section, *_) = task_tables.sections(results)
    table = section.parts[1]
    assert isinstance(table, Table)
    assert table.caption.startswith(
        "Points above alibi: ± half the 95 % interval over seeds and ex"
    )
    cells = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert cells["kerple_log"]["size_16"].startswith("not distinguishable (-29.00 ± ")
    assert cells["fire"]["size_16"].startswith("-43.33 ± ")
    assert any(
        words.startswith("Best first") and "on size_16: alibi (a), kerple_log (abc)" in words
        for words in section.paragraphs
    )
    results = read_results(epath.Path(EVIDENCE / "synthetic_seeds"))
    stack = accuracy_lines(results)["StackManipulation, slots"]
    (table,) = accuracy_differences(stack)
    assert table.header == ["", "training lengths", "longer lengths"]
    assert len(table.rows) == len(stack) - 1
    assert (
        "over longer lengths: fire (a), nope (a), fire_g (a), t5 (a), rope"
        in accuracy_rankings(stack)[0]
    )


def test_seeds_of_different_arms_are_hardly_correlated():
    """So pairing them by number would gain less than the degrees of freedom that it costs."""
    correlations = []
    for study in ("family", "fire_ablations", "mini", "resampling", "schedules", "short"):
        lines = lines_of(read_results(epath.Path(EVIDENCE / study)))
        for length in lines[0].nats:
            points = [line.nats[length].by_run for line in lines if length in line.nats]
            values = np.array([[own[run] for run in sorted(own)] for own in points])
            matrix = np.corrcoef(values)
            correlations += matrix[np.triu_indices(len(matrix), 1)].tolist()
    page = (EVIDENCE.parent / "evaluation.md").read_text()
    assert f"have a correlation of about {statistics.fmean(correlations):.1f}." in page


@pytest.mark.parametrize("places, told", [
    (["at 64 tokens", "at 128 tokens"], "at 64 and 128 tokens"),
    (["over training lengths", "over longer lengths"], "over training and longer lengths"),
    (["on size_2", "on size_4"], "on size_2 and size_4"),
    (["on average"], "on average"),
])  # fmt: skip
def test_places_are_told_together(places, told):
    assert verdicts._together(places) == told
