"""Differences between arms: false alarms and power in simulations, and the rankings they give."""

import dataclasses
import math
import statistics

import numpy as np
import pytest
from sample_results import facts, loss_row, text_of

from fire_lm.reporting.differences import (
    Comparisons,
    Difference,
    Sample,
    compare,
    difference,
    holm,
    pooled_spread,
    text_alone,
)
from fire_lm.reporting.losses import loss_lines
from fire_lm.results.folder import Results

ROWS = np.full(16, 64)  # tokens of each row of text


def arm(values: list[float], name: str, error: float = math.nan) -> Sample:
    return Sample({f"{name}-seed{i}": value for i, value in enumerate(values)}, error=error)


def simulated(
    rng: np.random.Generator, means: list[float], seeds: int = 3, text: float = 0.002
) -> dict[str, Sample]:
    """Draw arms whose seeds differ by 0.01, on a common text that is harder for some arms."""
    row_R = rng.normal(1.8, 0.2, 16)
    arms = {}
    for number, mean in enumerate(means):
        of_arm_R = rng.normal(0, 4 * text, 16)
        noise_SR = rng.normal(0, 0.01, (seeds, 16))
        nll_SR = mean + row_R + of_arm_R + noise_SR + rng.normal(0, 0.01, (seeds, 1))
        runs = [f"{number}-{seed}" for seed in range(seeds)]
        arms[str(number)] = Sample(
            {run: float(nll_R.mean()) for run, nll_R in zip(runs, nll_SR, strict=True)},
            ROWS,
            {run: 64 * nll_R for run, nll_R in zip(runs, nll_SR, strict=True)},
            text="a",
        )
    return arms


def by_the_old_rule(one: Sample, other: Sample) -> bool:
    """Call arms different if they are two standard errors over rows of text apart."""
    error = text_alone(one, other)
    return error is not None and abs(one.mean - other.mean) > 2 * error


def test_equal_arms_are_called_different_in_5_percent_of_cases():
    """The old rule, which knows no seeds, calls them different far more often."""
    rng, calls, old = np.random.default_rng(0), 0, 0
    for _ in range(500):
        one, other = simulated(rng, [0.0, 0.0]).values()
        calls += compare({"one": one, "other": other}).apart("one", "other")
        old += by_the_old_rule(one, other)
    assert 0.02 < calls / 500 < 0.08
    assert old / 500 > 0.35


def test_among_four_equal_arms_any_is_called_different_in_at_most_5_percent():
    rng, families, pairs = np.random.default_rng(1), 0, 0
    for _ in range(200):
        found = compare(simulated(rng, [0.0] * 4))
        families += any(p <= 0.05 for p in found.adjusted.values())
        pairs += any(one.p_value <= 0.05 for one in found.differences.values())
    assert families / 200 <= 0.065
    assert pairs / 200 > 0.1, "without Holm's correction"


def test_arms_three_sigma_apart_are_told_apart_in_most_cases():
    rng = np.random.default_rng(2)
    calls = [compare(simulated(rng, [0.0, 0.03])).apart("0", "1") for _ in range(200)]
    assert statistics.mean(calls) > 0.6
    calls = [compare(simulated(rng, [0.0, 0.03], seeds=5)).apart("0", "1") for _ in range(200)]
    assert statistics.mean(calls) > 0.9


def test_an_arm_never_differs_from_itself_or_from_one_of_its_seeds():
    rng, old = np.random.default_rng(3), 0
    for _ in range(100):
        (whole,) = simulated(rng, [0.0]).values()
        run = next(iter(whole.values))
        seed = Sample({run: whole.values[run]}, ROWS, {run: whole.sums_R[run]}, text="a")
        alone = Sample({"a run": seed.mean}, ROWS, {"a run": seed.sums_R[run]}, text="a")
        for other in (whole, seed, alone):
            found = compare({"whole": whole, "other": other})
            assert not found.apart("whole", "other") and not any(
                p < 1 for p in found.adjusted.values()
            )
        assert difference(whole, seed).same_runs and not difference(whole, alone).same_runs
        old += by_the_old_rule(seed, whole)
    assert old > 30, "ten standard errors, by the old rule"


def test_the_error_has_the_variances_of_seeds_and_text_once():
    """The errors of 400 simulated differences agree with their true standard deviation."""
    rng = np.random.default_rng(4)
    values, squares = [], []
    for _ in range(400):
        one, other = simulated(rng, [0.0, 0.0], seeds=4, text=0.005).values()
        found = difference(one, other)
        values.append(found.value)
        squares.append(found._error([4, 4])[0] ** 2)
    truth = (0.01**2 + 0.01**2 / 16) / 2 + 2 * 0.005**2
    assert statistics.mean(squares) == pytest.approx(truth, rel=0.08)
    assert statistics.variance(values) == pytest.approx(truth, rel=0.25)


def test_without_text_the_test_is_that_of_welch():
    """Two seeds 0.02 apart on each side: 2 degrees of freedom, 4.30 errors of 0.0141."""
    found = difference(arm([1.9, 1.92], "a"), arm([1.85, 1.87], "b"))
    assert found.value == pytest.approx(0.05) and found.text_error is None
    assert found.half_width == pytest.approx(4.303 * 0.01 * math.sqrt(2), rel=1e-3)
    assert found.p_value == pytest.approx(0.0715, abs=1e-3)
    with_text = difference(arm([1.9, 1.92], "a", 0.03), arm([1.85, 1.87], "b", 0.04))
    assert with_text.text_error == pytest.approx(0.07), "at most, if rows are not recorded"
    assert with_text.half_width > 0.13


def test_an_error_over_text_is_omitted_only_if_both_scored_the_same_text():
    one = arm([1.9, 1.92], "a", 0.03)
    other = arm([1.85, 1.87], "b", 0.04)
    for text, expected in ((("a", "a"), None), (("", ""), None), (("a", "b"), 0.07)):
        both = (
            dataclasses.replace(sample, text=own, common_text=True)
            for sample, own in zip((one, other), text, strict=True)
        )
        found = difference(*both).text_error
        assert found == (expected and pytest.approx(expected)), text


def test_arms_in_bits_per_byte_on_other_texts_are_apart_only_beyond_the_error_of_the_text():
    runs = [facts(encoding, seed) for encoding in ("fire", "rope") for seed in (0, 1, 2)]
    rows = [loss_row(run, 64, 1.8 + 0.02 * (run.encoding == "rope")) for run in runs]
    texts = [
        line
        for letter, own in zip("ab", (rows[:3], rows[3:]), strict=True)
        for line in text_of(own, text=letter * 16)
    ]
    for scored, apart in ((texts, False), ((), True), (text_of(rows), True)):
        (lines,) = loss_lines(Results(runs=runs, losses=rows, scored=scored), nats=False).values()
        found = compare({line.arm: line.points[64] for line in lines})
        assert found.apart("fire", "rope") == apart


def test_differences_in_bits_per_byte_contain_the_error_of_the_text():
    runs = [facts(encoding, seed) for encoding in ("fire", "alibi") for seed in (0, 1, 2)]
    rows = [loss_row(run, 64, 1.8 + 0.01 * run.seed) for run in runs]
    results = Results(runs=runs, losses=rows, scored=text_of(rows, noise=0.05))
    found = []
    for nats in (True, False):
        ((one, other),) = loss_lines(results, nats=nats).values()
        found.append(difference(one.points[64], other.points[64]).text_error)
    assert found[0] and found[1] == pytest.approx(found[0] * 4096 / 4000 / math.log(2))


def test_lines_of_the_same_runs_are_paired_by_run():
    """A change at evaluation differs from the plain model by the same amount for each seed."""
    plain = Sample({"a": 1.5, "b": 1.7, "c": 1.6})
    changed = Sample({"c": 1.65, "a": 1.56, "b": 1.75})
    found = compare({"plain": plain, "changed": changed})
    assert found.apart("plain", "changed")
    other = compare({"plain": plain, "changed": arm([1.56, 1.75, 1.65], "x")})
    assert not other.apart("plain", "changed")


def test_equal_scores_without_spread_do_not_differ():
    assert difference(arm([9.0] * 3, "a"), arm([9.0] * 3, "b")).p_value == 1
    found = difference(arm([9.0] * 3, "a"), arm([8.0] * 3, "b"))
    assert found.p_value == 0 and found.half_width == 0


def test_p_values_are_corrected_by_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]


def ranked(means: dict[str, float], apart: set[str]) -> str:
    pairs = {(pair[0], pair[1]): Difference(0.0, ((1.0, 3),), None) for pair in apart}
    return Comparisons(means, pairs, dict.fromkeys(pairs, 0.01)).ranking()


@pytest.mark.parametrize("last", [False, True])
def test_a_score_that_is_not_a_number_takes_part_in_no_test(last):
    """Own metrics may return NaN; NaN among p-values would void the other tests."""
    known = {"a": arm([10.0, 11.0, 10.5], "a"), "b": arm([50.0, 51.0, 50.5], "b")}
    broken = {"c": arm([9.0, math.nan, 8.0], "c")}
    found = compare({**known, **broken} if last else {**broken, **known})
    assert found.apart("a", "b") and not found.apart("a", "c") and len(found.adjusted) == 1
    assert list(found.means) == ["a", "b", "c"]


def test_arms_of_a_ranking_that_are_not_told_apart_share_a_letter():
    means = dict.fromkeys("abcd", 0.0)
    chain = {"ab", "ac", "ad", "bd", "cd"}
    assert ranked(means, chain) == "a (a), b (b), c (b), d (c)"
    assert ranked(means, set()) == "a (a), b (a), c (a), d (a)"
    assert ranked(means, {"ac", "ad", "bd"}) == "a (a), b (ab), c (bc), d (c)"
    # The noisy c is told apart from neither a nor d, but b, which is better than c, from all.
    assert ranked(means, {"ab", "bc", "bd", "ad"}) == "a (a), b (b), c (ac), d (c)"


def test_seeds_that_would_tell_two_arms_apart():
    """The textbook's 17 per arm for an effect of one standard deviation, and 64 for half of it."""
    spread = [1.0, 2.0, 3.0]
    for effect, seeds in ((1.0, 17), (0.5, 64)):
        other = [value + effect for value in spread]
        assert difference(arm(spread, "a"), arm(other, "b")).seeds_needed(0.05) == seeds
    near = [value + 0.1 for value in spread]
    assert difference(arm(spread, "a"), arm(near, "b")).seeds_needed(0.05) is None
    far = [value + 90.0 for value in spread]
    assert difference(arm(spread, "a"), arm(far, "b")).seeds_needed(0.05) == 2
    text = difference(arm(spread, "a", 1.0), arm(far[:1] * 2, "b", 100.0))
    assert text.seeds_needed(0.05) is None, "no number of seeds makes up for so short a text"


def test_the_spread_is_pooled_over_arms():
    spread, freedom = pooled_spread([arm([1.0, 3.0], "a"), arm([1.0], "b"), arm([0.0] * 3, "c")])
    assert (spread, freedom) == (pytest.approx(math.sqrt(2 / 3)), 3)
    assert math.isnan(pooled_spread([arm([1.0], "a")])[0])
