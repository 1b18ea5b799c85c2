"""docs/frozen_normaliser.md agrees with the evidence on budgets (evidence/frozen and budgets)."""

import dataclasses
import functools

import budget_evidence
import page_parts
import pytest
from sample_budgets import SEEDS, only, results

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


def test_a_growth_that_holds_as_a_single_comparison_only_is_said_to():
    growth = {"fire": (0.020, 0.006), "kerple_log": (0.02, 0.06)}
    losses = {
        (name, steps): (1.0, 1.0, 1.0 + (steps == 4000) * growth[name][0])
        for name in growth
        for steps in (1000, 4000)
    }
    own = results(losses)
    noise = {
        f"{name}-4000-{seed}": growth[name][1] * (seed - 1) for name in growth for seed in SEEDS
    }
    rows = [
        dataclasses.replace(r, nll=r.nll + noise.get(r.run, 0) * (r.length == 256))
        for r in own.losses
    ]
    words = budget_evidence.drift_words(only(dataclasses.replace(own, losses=rows, scored=())))[1]
    assert "is larger as a single comparison for fire (+0.020" in words, words
    assert "not distinguishable for kerple_log (+0.020" in words


def test_the_growth_of_drift_is_told_for_each_multiple():
    assert budget_evidence.drift_words(only(results()))[1] == (
        "At x4, the drift at the largest budget, compared with that at the smallest, is smaller "
        "for kerple_log (-0.025 ± 0.002); larger for fire (+0.130 ± 0.002)."
    )
    (told, *_) = budget_evidence.drift_words(only(results(seeds=(0,))))
    assert "not tested, because of a single run, for kerple_log (-0.025) and fire (+0.000)" in told


@pytest.mark.ci
def test_the_figure_is_that_of_the_evidence():
    picture = budget_evidence.figure(own())
    assert (budget_evidence.MORE / f"{picture.name}.svg").read_text() == picture.image.svg, AGAIN
