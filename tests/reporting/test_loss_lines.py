"""Lines of losses: which rows make a mean, and their errors."""

import dataclasses

import pytest
from sample_results import LENGTHS, LOSSES, sample_results, with_losses

from fire_lm.reporting import loss_curves
from fire_lm.reporting.length_sweep import loss_styles, loss_table
from fire_lm.reporting.loss_curves import position_lines, training_limits, training_lines
from fire_lm.reporting.losses import loss_lines
from fire_lm.reporting.series import NATS


def test_seeds_without_a_common_step_are_never_averaged():
    results = sample_results()
    one = "fire-seed1"
    early = dataclasses.replace(
        results,
        losses=[dataclasses.replace(r, step=500) if r.run == one else r for r in results.losses],
        positions=[
            dataclasses.replace(r, step=500) if r.run == one else r for r in results.positions
        ],
    )
    runs = {"fire, step 500": 1, "fire, step 1000": 1, "rope": 2, "alibi": 2}
    (lines,) = loss_lines(early).values()
    assert {line.name: line.points[64].runs for line in lines} == runs
    (positions,) = position_lines(early).values()
    assert {line.name: next(iter(line.points.values())).runs for line in positions} == runs
    (picture,) = loss_curves.positions(early, loss_styles(early))
    assert "fire, step 500" in picture.alt and "fire, step 500" in picture.image.svg


def test_the_step_is_named_wherever_an_arm_of_the_page_has_several():
    rows = [row for row in sample_results().losses if row.encoding == "fire"]
    early = [dataclasses.replace(row, step=500) for row in rows]
    yarn = [dataclasses.replace(row, variant="yarn") for row in rows]
    other = [dataclasses.replace(row, split="test") for row in rows]
    every = with_losses(sample_results(), [*rows, *early, *yarn, *other])
    names = [[line.name for line in lines] for lines in loss_lines(every).values()]
    steps = ["fire, step 1000", "fire, step 500", "fire (yarn), step 1000"]
    assert names == [steps, ["fire, step 1000"]]


def test_lines_are_means_over_seeds_with_their_spread():
    (lines,) = loss_lines(sample_results()).values()
    assert [line.name for line in lines] == ["fire", "alibi", "rope"], "best at the longest first"
    for line in lines:
        for length, nll in zip(LENGTHS, LOSSES[line.name], strict=True):
            point = line.points[length]
            assert point.mean == pytest.approx(nll + 0.01) and point.runs == 2
            assert point.spread == pytest.approx(0.02 / 2**0.5)
    assert "mean ± standard deviation over 2 seeds" in loss_table(lines, NATS).caption


def test_what_stands_after_plus_minus_is_said_and_never_mixed():
    alone = with_losses(sample_results(), [r for r in sample_results().losses if "0" in r.run])
    (lines,) = loss_lines(alone).values()
    table = loss_table(lines, NATS)
    assert "± standard error over text, one run each" in table.caption
    assert table.rows[0][1] == "1.800 ± 0.050"
    mixed = [r for r in sample_results().losses if r.run != "fire-seed1"]
    (lines,) = loss_lines(with_losses(sample_results(), mixed)).values()
    table = loss_table(lines, NATS)
    assert (
        "over 2 seeds, none for a single run; the number of seeds in parentheses" in table.caption
    )
    cells = {row[0]: row[1] for row in table.rows}
    assert cells["fire"] == "1.800 (1)" and cells["alibi"] == "1.910 ± 0.014 (2)"


def test_the_figure_of_training_shows_arms_beside_one_that_solved_its_task():
    results = sample_results()

    def limits(scale: float) -> tuple[float, float]:
        points = [
            dataclasses.replace(p, loss=p.loss * scale if p.encoding == "fire" else p.loss)
            for p in results.training
        ]
        (lines,) = training_lines(dataclasses.replace(results, training=points))
        return training_limits(lines)

    last = 6 - 1000 / 300
    assert limits(1.0) == pytest.approx((0.97 * last, 2.2 * last))
    assert limits(1e-6) == pytest.approx((0.97e-6 * last, 1.05 * last))
