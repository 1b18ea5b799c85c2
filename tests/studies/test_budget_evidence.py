"""docs/frozen_normaliser.md agrees with the evidence on budgets (evidence/frozen and budgets)."""

import functools

import budget_evidence
import page_parts
import pytest

from fire_lm.reporting.budgets import Budgets, by_budget, drifts
from fire_lm.reporting.gather import gather

PAGE = (page_parts.DOCS / budget_evidence.PAGE).read_text()
FROZEN = "fire (normalizer_limit-64)"
AGAIN = "run .venv/bin/python scripts/studies/budget_evidence.py"


@functools.cache
def own() -> Budgets:
    return next(iter(by_budget(gather([*map(str, budget_evidence.FOLDERS)])).values()))


def test_the_page_has_the_numbers_of_the_evidence():
    assert page_parts.part(budget_evidence.PAGE, budget_evidence.NAME) == budget_evidence.block(
        own()
    ), AGAIN


def test_what_the_page_says_of_budgets():
    words = " ".join(PAGE.split())
    assert "**With more training, FIRE drifts more, and freezing still removes the drift**" in words
    for multiple in (4, 16):
        tested = drifts(own(), multiple)
        assert tested.growth["fire"][0].value > 0
        for of_budget in tested.drift.values():
            assert of_budget["fire"][0].value > 0 > of_budget[FROZEN][0].value
    assert "the losses of the frozen FIRE, of FIRE-T and of KERPLE fall at every length" in words
    for name in (FROZEN, "fire_t", "kerple_log"):
        for point in own().series[name]:
            losses = [point.points[length].mean for length in sorted(point.points)]
            assert losses == sorted(losses, reverse=True), (name, point.tokens)


@pytest.mark.ci
def test_the_figure_is_that_of_the_evidence():
    picture = budget_evidence.figure(own())
    assert (budget_evidence.MORE / f"{picture.name}.svg").read_text() == picture.image.svg, AGAIN
