"""What docs/infini_attention.md says about losses and the passkey follows from docs/evidence."""

import itertools

import pytest
from infini_tables import accuracies, samples
from study_pairs import page

from fire_lm.reporting.differences import Difference, difference

LOSSES = samples()
RULES = ("infini", "infini_delta")


def minus(one: str, other: str, trained: int) -> Difference:
    return difference(LOSSES[one, trained, 4096], LOSSES[other, trained, 4096])


def is_clear(apart: Difference) -> bool:
    assert apart.half_width is not None and not apart.same_runs
    return abs(apart.value) > apart.half_width


@pytest.mark.parametrize(
    ("one", "other", "trained"),
    [("infini", "window", 256), ("infini", "window", 1024), ("infini_delta", "window", 256)],
)
def test_the_window_is_ahead(one, other, trained):
    apart = minus(one, other, trained)
    assert is_clear(apart) and apart.value > 0


def test_what_is_not_told_apart():
    others = ("chunk", "fire_g", "fox")
    pairs = [("infini_delta", "infini"), *itertools.product(RULES, others)]
    assert not any(is_clear(minus(*pair, 256)) for pair in pairs)
    assert not is_clear(minus("infini_delta", "infini", 1024))
    assert not is_clear(minus("infini_delta", "window", 1024))


def test_numbers():
    told = page("infini_attention.md")
    better, worse = minus("fire_g", "infini", 1024), minus("fox", "infini_delta", 1024)
    assert is_clear(better) and better.value < 0 and is_clear(worse) and worse.value > 0
    for apart in (better, worse):
        assert f"by {abs(apart.value):.3f} ± {apart.half_width:.3f}" in told
    found = accuracies()
    ahead = difference(found["infini", 2048], found["rope", 2048])
    assert f"ahead by {ahead.value:.0f} ± {ahead.half_width:.0f} points" in told
