"""The effective length of losses and accuracies."""

import math

import pytest

from fire_lm.reporting.differences import Sample
from fire_lm.reporting.effective_length import effective_table, of_accuracies, of_losses
from fire_lm.reporting.series import Series


@pytest.mark.parametrize(
    "losses, found",
    [
        ({64: 1.70, 128: 1.65, 256: 1.66, 512: 1.68, 1024: 1.70}, "256"),  # 0.03 above the minimum
        ({64: 1.70, 128: 1.65, 256: 1.64}, "at least 256"),
        ({64: 1.70, 128: 1.90, 256: 1.60}, "64"),  # what lies beyond a gap does not count
        ({256: 1.9, 64: 1.7, 128: 1.7}, "128"),  # lengths in any order
        ({64: 1.7, 128: math.nan, 256: 1.7}, "64"),
        ({}, "None"),
    ],
)
def test_losses(losses, found):
    assert str(of_losses(losses, 0.02)) == found


@pytest.mark.parametrize(
    "accuracies, found",
    [
        ({10: 100.0, 40: 90.0, 50: 80.0, 60: 76.0, 100: 99.0}, "50"),  # 76.5 would be enough
        ({40: 90.0, 100: 85.0}, "at least 100"),
        ({50: 90.0}, "None"),
        ({40: 59.0, 500: 59.0}, "at least 500"),  # guessing reaches 50
        ({40: 58.0, 500: 58.0}, "None"),
        ({40: 0.0, 500: 0.0}, "None"),
    ],
)
def test_accuracies(accuracies, found):
    assert str(of_accuracies(accuracies, 40, {40: 50.0})) == found


def test_the_mean_is_over_the_same_runs_at_all_lengths():
    """Otherwise, a length at which only a bad run was scored would seem to end the fall."""
    both, bad = Sample({"good": 1.0, "bad": 2.0}), Sample({"bad": 1.9})
    line = Series("fire", {64: both, 128: both, 256: bad}, "fire", "", 64)
    table = effective_table("", [line], lambda _, losses: of_losses(losses, 0.02))
    assert table.rows == [["fire", "at least 128", "at least 128, at least 256"]]
