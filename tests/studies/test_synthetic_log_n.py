"""docs/synthetic_results.md agrees with our measurements of log n and equal-mean positions."""

import statistics
from collections.abc import Callable

import pytest
from scipy.stats import fisher_exact
from test_synthetic_results import EVIDENCE, PAGE, span
from test_synthetic_seeds import Points, cell, longer, measured, seeds, trained

__all__ = ["seeds"]  # a fixture

LOG_N = EVIDENCE.with_name("synthetic_log_n")
TASKS = (
    "EvenPairs", "CycleNavigation", "ReverseString", "StackManipulation", "DuplicateString",
    "BucketSort",
)  # fmt: skip
NAMES = ("fire", "fire_g", "rope")
CHANGED = (", equal-mean", ", log n", ", equal-mean, log n")


@pytest.fixture(scope="module")
def log_n(seeds) -> dict[str, dict[str, list[Points]]]:
    """Return the accuracies of RoPE, FIRE and FIRE-G by task, without and with changes."""
    found = measured(LOG_N)
    assert found.keys() == set(TASKS)
    for arms in found.values():
        assert arms.keys() == {name + change for name in NAMES for change in CHANGED}
        assert {len(runs) for runs in arms.values()} == {3}
    return {task: found[task] | {name: seeds[task][name] for name in NAMES} for task in TASKS}


def test_the_page_shows_every_seed_with_log_n_or_equal_mean_positions(log_n):
    rows = [
        f"| encoding and change, longer lengths | {' | '.join(TASKS)} |",
        f"|{' --- |' * (len(TASKS) + 1)}",
        *(
            f"| {name} | {' | '.join(cell(log_n[task][name], longer) for task in TASKS)} |"
            for name in sorted(log_n["BucketSort"].keys() - set(NAMES))
        ),
    ]
    assert "\n".join(rows) + "\n\n" in PAGE.read_text()


def mean_of_seeds(mean: Callable[[Points], float], runs: list[Points]) -> float:
    return statistics.mean(map(mean, runs))


def rises(
    mean: Callable[[Points], float], arms: dict[str, list[Points]], change: str
) -> list[float]:
    """Return by how many points a change raises a mean, by encoding and seed."""
    return [
        mean(changed) - mean(plain)
        for name in NAMES
        for plain, changed in zip(arms[name], arms[name + change], strict=True)
    ]


def test_the_page_says_that_log_n_does_not_help_to_sort(log_n):
    page = " ".join(PAGE.read_text().split())
    sort = log_n["BucketSort"]
    means = {name: mean_of_seeds(longer, runs) for name, runs in sort.items()}
    both = rises(longer, sort, ", equal-mean, log n")
    assert f"positions in {sum(rise < 0 for rise in both)} of {len(both)} comparisons" in page
    assert all(means[f"{name}, log n"] < means[name] for name in NAMES)
    found = [list(map(longer, runs)) for runs in sort.values()]
    spreads = [max(of_arm) - min(of_arm) for of_arm in found]
    raised = {name: means[f"{name}, equal-mean"] - means[name] for name in NAMES}
    assert (
        f"change this mean by {raised['fire_g']:+.1f} points for FIRE-G, {raised['fire']:+.1f} for "
        f"FIRE and {raised['rope']:+.1f} for RoPE, while seeds of a model differ by up to "
        f"{max(spreads):.1f} points."
    ) in page


def test_the_page_says_which_tasks_no_model_solves_beyond_training(log_n):
    page = " ".join(PAGE.read_text().split())
    means = [
        mean_of_seeds(longer, runs)
        for task in ("ReverseString", "DuplicateString", "StackManipulation")
        for runs in log_n[task].values()
    ]
    assert f"manipulation**: the means of three seeds are {span(means)} %" in page


def test_the_page_says_which_models_learn_cycle_navigation(log_n):
    page = " ".join(PAGE.read_text().split())
    cycle = log_n["CycleNavigation"]
    words = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    alone, equal_mean, both, without = (
        words[sum(trained(run) > 60 for name in NAMES for run in cycle[name + change])]
        for change in (", log n", ", equal-mean", ", equal-mean, log n", "")
    )
    assert (
        f"{alone} of nine models with log n alone score more than 60 % over training lengths, "
        f"{equal_mean} with equal-mean positions alone, {both} with both, and {without} "
        "without a change."
    ) in page
    learned = [sum(trained(run) > 60 for name in NAMES for run in cycle[name + change])
               for change in (", log n", "")]  # fmt: skip
    p = fisher_exact([[of, 9 - of] for of in learned]).pvalue
    assert f"(Fisher's exact test of five against one: p = {p:.2f})" in page
    beyond = max(longer(run) for runs in cycle.values() for run in runs)
    assert f"Over longer lengths, none of the 36 scores more than {beyond:.1f} %" in page


def test_the_page_says_which_models_learn_even_pairs(log_n):
    page = " ".join(PAGE.read_text().split())
    runs = {
        (name, seed): run
        for name, of_arm in log_n["EvenPairs"].items()
        for seed, run in enumerate(of_arm)
        if name not in NAMES
    }
    arms = [("fire_g, equal-mean, log n", 2), ("fire_g, equal-mean", 0)]
    learned = [runs.pop(arm) for arm in (*arms, ("rope, equal-mean, log n", 0))]
    assert {f"{trained(run):.1f}" for run in learned} == {"100.0"} and len(runs) == 24
    assert set(learned[0].values()) == {
        100.0
    }  # "all tested answers to even pairs of up to 500 symbols"
    first, second, third = map(longer, learned)
    assert f"longer lengths, they score {first:.1f}, {second:.1f} and {third:.1f} %." in page
    assert max(trained(run) for run in runs.values()) < 60
