"""docs/synthetic_results.md agrees with our measurements of log n and equal-mean positions."""

import statistics
from collections.abc import Callable

import pytest
from test_synthetic_results import EVIDENCE, PAGE, span
from test_synthetic_seeds import Points, at_500, cell, longer, measured, seeds, trained

__all__ = ["seeds"]  # a fixture

LOG_N = EVIDENCE.with_name("synthetic_log_n")
TASKS = ("ReverseString", "BucketSort")
NAMES = ("fire", "fire_g", "rope")
CHANGED = (", equal-mean", ", log n", ", log n, equal-mean")


@pytest.fixture(scope="module")
def log_n(seeds) -> dict[str, dict[str, list[Points]]]:
    """Return the accuracies of RoPE, FIRE and FIRE-G by task, without and with changes."""
    found = measured(LOG_N)
    assert found.keys() == set(TASKS)
    for arms in found.values():
        assert arms.keys() == {name + change for name in NAMES for change in CHANGED}
        assert {len(runs) for runs in arms.values()} == {3}
    return {task: found[task] | {name: seeds[task][name] for name in NAMES} for task in TASKS}


@pytest.mark.parametrize("mean", [trained, longer])
def test_the_page_shows_every_seed_with_log_n_or_equal_mean_positions(log_n, mean):
    rows = [
        f"| encoding and change, {mean.__name__} lengths | {' | '.join(TASKS)} |",
        f"|{' --- |' * (len(TASKS) + 1)}",
        *(
            f"| {name} | {' | '.join(cell(log_n[task][name], mean) for task in TASKS)} |"
            for name in sorted(log_n["BucketSort"])
        ),
    ]
    assert "\n".join(rows) + "\n\n" in PAGE.read_text()


def mean_of_seeds(mean: Callable[[Points], float], runs: list[Points]) -> float:
    return statistics.mean(map(mean, runs))


def test_the_page_says_what_log_n_and_equal_mean_positions_change(log_n):
    page = " ".join(PAGE.read_text().split())
    names, sort = NAMES, log_n["BucketSort"]
    means = {name: mean_of_seeds(longer, runs) for name, runs in sort.items()}
    far = {
        change: span([mean_of_seeds(at_500, sort[name + change]) for name in names])
        for change in ("", *CHANGED)
    }
    assert (
        f"At 500 symbols, the means of three seeds are {far['']} % without either, "
        f"{far[', log n']} % with log n, {far[', equal-mean']} % with equal-mean positions and "
        f"{far[', log n, equal-mean']} % with both."
    ) in page
    lower = [
        longer(both) < longer(plain)
        for name in names
        for plain, both in zip(sort[name], sort[f"{name}, log n, equal-mean"], strict=True)
    ]
    assert f"lowers it in {sum(lower)} of {len(lower)} comparisons" in page
    assert all(means[f"{name}, log n"] < means[name] for name in names)
    found = [list(map(longer, runs)) for runs in sort.values()]
    spreads = [max(of_arm) - min(of_arm) for of_arm in found]
    raised = {name: means[f"{name}, equal-mean"] - means[name] for name in names}
    assert (
        f"they change the mean over longer lengths by {raised['fire_g']:+.1f} points for FIRE-G, "
        f"{raised['fire']:+.1f} for FIRE and {raised['rope']:+.1f} for RoPE, while seeds of a "
        f"model differ by up to {max(spreads):.1f} points"
    ) in page


def test_the_page_says_that_neither_helps_to_reverse(log_n):
    page = " ".join(PAGE.read_text().split())
    reverse = log_n["ReverseString"]
    far = {
        change: span([mean_of_seeds(longer, reverse[name + change]) for name in NAMES])
        for change in ("", *CHANGED)
    }
    assert (
        f"over longer lengths, the means of three seeds are {far['']} % without either, "
        f"{far[', log n']} % with log n, {far[', equal-mean']} % with equal-mean positions and "
        f"{far[', log n, equal-mean']} % with both."
    ) in page
    highest = max(at_500(run) for runs in reverse.values() for run in runs)
    assert f"At 500 symbols, no model scores more than {highest:.1f} %." in page
    rope, equal_mean, both = (
        mean_of_seeds(trained, reverse["rope" + change])
        for change in ("", ", equal-mean", ", log n, equal-mean")
    )
    assert (
        f"equal-mean positions lower RoPE's mean of three seeds from {rope:.1f} to "
        f"{equal_mean:.1f} %, and with log n to {both:.1f} %."
    ) in page
