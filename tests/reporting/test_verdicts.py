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

from fire_lm.reporting import differences, task_tables, verdicts
from fire_lm.reporting.accuracies import (
    LONGER,
    accuracy_comparison,
    accuracy_lines,
    mean_on,
)
from fire_lm.reporting.differences import Sample
from fire_lm.reporting.length_sweep import against, difference_tables, loss_comparison
from fire_lm.reporting.losses import loss_lines
from fire_lm.reporting.page import Table
from fire_lm.reporting.report import verdict_sections
from fire_lm.reporting.series import ACCURACY, NATS, SCORE, Series
from fire_lm.reporting.task_lines import suite_scores
from fire_lm.results.folder import Results, read_results


def of_seeds(values: dict[str, list[float]], noise: float = 0.004) -> Results:
    """Return results of an own encoding and others, with these losses of seeds at every length."""
    runs = [facts(name, seed) for name, losses in values.items() for seed in range(len(losses))]
    rows = [loss_row(run, n, values[run.arm][run.seed]) for run in runs for n in LENGTHS]
    return Results(runs=runs, losses=rows, scored=text_of(rows, noise))


def lines_of(results: Results) -> list[Series]:
    (lines,) = loss_lines(results).values()
    return lines


# An own encoding that seems 0.011 behind FIRE: many errors over text, but within the seeds.
OWN = of_seeds({"fire": [1.800, 1.808, 1.816], "own": [1.820, 1.803, 1.834]})


def loss_verdicts(results: Results) -> list[verdicts.Verdict]:
    return loss_comparison(lines_of(results), NATS).verdicts("text")


def test_seeds_decide_whether_an_own_encoding_differs():
    """By the old rule, FIRE was 0.011 ± 0.001 ahead, "ten standard errors"."""
    lines = lines_of(OWN)
    differences, text = difference_tables(lines, NATS)
    assert "95 % interval over seeds and text" in differences.caption
    assert all(
        cell.startswith("not distinguishable (+0.011 ± 0.0") for cell in differences.rows[0][1:]
    )
    assert "over the rows of the common text alone" in text.caption
    error = float(text.rows[0][1].partition("± ")[2])
    assert 2 * error < 0.011
    (found,) = loss_verdicts(OWN)
    assert "Welch's t test over seeds and text at 5 %." in found.method
    assert found.method.startswith("An arm is all runs that differ only in their seed.")
    assert found.table.header[1:] == [
        "lowest loss", "not told apart from it (seeds that would tell)", "told apart",
    ]  # fmt: skip
    for _, best, close, apart in found.table.rows:
        assert (best, apart) == ("fire", "none")
        needed = re.fullmatch(r"own \((\d+)\)", close)
        assert needed and 12 < int(needed[1]) < 30
    (ranking,) = loss_comparison(lines, NATS).rankings()
    assert ranking.endswith("not told apart: at 64, 128 and 256 tokens: fire (a), own (a).")


def test_arms_that_differ_are_told_apart():
    far = of_seeds({"fire": [1.80, 1.81, 1.82], "own": [1.90, 1.91, 1.92], "x": [2.0, 2.1, 2.4]})
    lines = lines_of(far)
    (found,) = loss_verdicts(far)
    assert (
        "corrected for all pairs of a row by Holm's method; * would be told apart" in found.method
    )
    assert found.table.caption == "text, 3 pairs."
    ((places, best, close, apart),) = found.table.rows
    assert (places, best, apart) == ("at 64, 128 and 256 tokens", "fire", "own")
    assert re.fullmatch(r"x\*? \(\d+\)", close)
    assert loss_comparison(lines, NATS).rankings()[0].endswith("tokens: fire (a), own (b), x (ab).")
    (differences, _) = difference_tables(lines, NATS)
    assert differences.rows[0][1].startswith("+0.100 ± 0.0")
    assert "not distinguishable" in differences.rows[1][1]


def test_a_single_run_establishes_nothing_and_the_page_says_so():
    alone = dataclasses.replace(sample_results(), scored=[])
    alone = dataclasses.replace(alone, losses=[r for r in alone.losses if r.run.endswith("0")])
    (found,) = loss_verdicts(alone)
    assert found.method.startswith(
        "Each arm has one run (an arm is all runs that differ only in their seed): no order is"
    )
    assert "0.010 to 0.038 nats per token (standard deviation in fire_lm's own runs" in found.method
    assert found.table.header[2:] == [
        "a lead that may be chance",
        "larger than usual for two seeds",
        "two seeds may differ by",
    ]
    assert [row[4] for row in found.table.rows] == ["0.028", "0.030", "0.105"]
    first, _, last = found.table.rows
    assert first[:3] == ["at 64 tokens", "rope", "none"] and first[3].startswith("fire (0.100)")
    assert "alibi (0.010)" in last[2]
    assert loss_comparison(lines_of(alone), NATS).rankings() == []
    assert difference_tables(lines_of(alone), NATS) == []
    # An arm with seeds shows how much they differ, but a single run beside it is untested.
    mixed = of_seeds({"fire": [1.80, 1.81, 1.82], "own": [1.9]})
    (found,) = loss_verdicts(mixed)
    assert found.method.startswith("No two arms have several seeds (an arm is all runs")
    assert "0.010 nats per token (standard deviation of the arms that have seeds)" in found.method
    assert difference_tables(lines_of(mixed), NATS)[0].caption.startswith(
        "Not for comparing encodings, but to judge whether the text is long enough: nats per"
    )


def test_a_table_without_a_title_has_no_caption():
    alone = of_seeds({"fire": [1.80], "own": [1.9]})
    (found,) = loss_comparison(lines_of(alone), NATS).verdicts()
    assert found.table.caption == "" and found.table.plain().split()[:2] == ["lowest", "loss"]


def test_a_change_that_was_scored_on_some_seeds_is_no_single_run():
    results = of_seeds({"fire": [1.80, 1.81, 1.82], "own": [1.90, 1.91, 1.92]})
    changed = [dataclasses.replace(r, variant="x") for r in results.losses if r.run < "fire-seed2"]
    rows = [*results.losses, *changed]
    results = dataclasses.replace(results, losses=rows, scored=text_of(rows, 0.004))
    (found,) = loss_verdicts(results)
    assert found.table.header[-1] == "no test: a single run or runs in common"
    assert {row[-1] for row in found.table.rows} == {"fire"}
    of_fire = [row for row in rows if row.encoding == "fire"]
    (found,) = loss_verdicts(dataclasses.replace(results, losses=of_fire))
    assert found.method.startswith("No two arms have several seeds and no run in common (an arm")


def test_against_an_arms_own_seed_there_is_no_difference():
    """The seed in another folder keeps its name; so may a run that is another one."""
    lines = lines_of(OWN)
    fire = [line for line in lines if line.name == "fire"]
    (seed,) = lines_of(of_seeds({"fire": [1.800]}))
    table = against(fire, [seed], "runs/fire-seed0", NATS)
    assert table is not None and table.rows[0][1] == "+0.008 (same runs)"
    table = against(fire, fire, "itself", NATS)
    assert table is not None and table.rows[0][1] == "not distinguishable (+0.000 ± 0.000)"
    (other,) = lines_of(of_seeds({"fire": [1.700]}))
    table = against(fire, [other], "elsewhere", NATS)
    assert table is not None and table.rows[0][1] == "+0.108 (no test)"
    assert "no test: a single run does not show how much seeds differ" in table.caption
    (three,) = lines_of(of_seeds({"fire": [1.700, 1.708, 1.716]}))
    table = against(fire, [three], "elsewhere", NATS)
    assert table is not None and table.rows[0][1].startswith("+0.100 ± 0.01")


def test_an_unknown_error_is_named_by_what_it_is_over():
    """Averages over lengths, and measures of one's own, may have none; they have no text."""
    one, other = Sample({"a": 60.0, "b": 61.0}), Sample({"c": 50.0, "d": 52.0})
    caption = verdicts.tested_table(
        "x", ["y"], [differences.tested({"z": (one, other)})], ["z"], SCORE
    ).caption
    assert "seeds alone, because the error over examples is unknown" in caption
    lines = [Series("one", {64: one}, "one"), Series("other", {64: other}, "other")]
    (found,) = verdicts.length_comparison(lines, SCORE).verdicts()
    assert "over seeds alone (the error over examples is unknown) at 5 %" in found.method


def test_what_cannot_be_compared_has_no_verdict():
    assert verdict_sections(of_seeds({"fire": [1.8, 1.9]})) == []


def test_the_reference_spreads_are_those_of_the_evidence():
    by_multiple: dict[float, list[float]] = {}
    for line in lines_of(read_results(epath.Path(EVIDENCE / "mini"))):
        for length, point in line.points.items():
            by_multiple.setdefault(length / line.train_length, []).append(point.spread or math.nan)
    found = {n: math.sqrt(statistics.fmean(s**2 for s in some)) for n, some in by_multiple.items()}
    assert verdicts.REFERENCE == {n: round(spread, 3) for n, spread in found.items()}
    seeds = accuracy_lines(read_results(epath.Path(EVIDENCE / "synthetic_seeds")))
    means = [mean_on(LONGER, line) for lines in seeds.values() for line in lines]
    spreads = [point.spread or math.nan for point in means if point]
    assert f"by {min(spreads):.1f} to {max(spreads):.1f} points" in ACCURACY.usual
    (suite,) = suite_scores(read_results(epath.Path(EVIDENCE / "long_eval")))
    most = max(one.spread or 0 for line in suite.lines for one in line.points.values())
    assert f"by up to {most:.0f} points" in SCORE.usual


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
    (table,) = accuracy_comparison(stack).difference_tables()
    assert table.header == ["", "training lengths", "longer lengths"]
    assert len(table.rows) == len(stack) - 1
    assert (
        "over longer lengths: fire (a), nope (a), fire_g (a), t5 (a), rope"
        in accuracy_comparison(stack).rankings()[0]
    )


def test_seeds_of_different_arms_are_hardly_correlated():
    """So pairing them by number would gain less than the degrees of freedom that it costs."""
    correlations = []
    for study in ("family", "fire_ablations", "mini", "resampling", "schedules", "short"):
        lines = lines_of(read_results(epath.Path(EVIDENCE / study)))
        for length in lines[0].points:
            points = [line.points[length].values for line in lines if length in line.points]
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
