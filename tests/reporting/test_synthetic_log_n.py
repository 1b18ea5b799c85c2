"""docs/synthetic_results.md agrees with our measurements of log n and equal-mean positions."""

import statistics
from collections.abc import Callable

import pytest
from scipy.stats import fisher_exact
from test_synthetic_results import EVIDENCE, PAGE, span
from test_synthetic_seeds import Points, at_500, cell, longer, measured, seeds, trained

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


def spans(mean: Callable[[Points], float], arms: dict[str, list[Points]]) -> dict[str, str]:
    """Return the span of the encodings' means of three seeds, by change."""
    return {
        change: span([mean_of_seeds(mean, arms[name + change]) for name in NAMES])
        for change in ("", *CHANGED)
    }


def by_change(far: dict[str, str]) -> str:
    """Return the words in which the page gives spans."""
    return (
        f"{far['']} % without either, {far[', log n']} % with log n, {far[', equal-mean']} % with "
        f"equal-mean positions and {far[', equal-mean, log n']} % with both"
    )


def rises(
    mean: Callable[[Points], float], arms: dict[str, list[Points]], change: str
) -> list[float]:
    """Return by how many points a change raises a mean, by encoding and seed."""
    return [
        mean(changed) - mean(plain)
        for name in NAMES
        for plain, changed in zip(arms[name], arms[name + change], strict=True)
    ]


def test_the_page_says_what_log_n_and_equal_mean_positions_change(log_n):
    page = " ".join(PAGE.read_text().split())
    names, sort = NAMES, log_n["BucketSort"]
    means = {name: mean_of_seeds(longer, runs) for name, runs in sort.items()}
    far = spans(at_500, sort)
    assert f"At 500 symbols, the means of three seeds are {by_change(far)}." in page
    both = rises(longer, sort, ", equal-mean, log n")
    assert f"lowers it in {sum(rise < 0 for rise in both)} of {len(both)} comparisons" in page
    assert all(means[f"{name}, log n"] < means[name] for name in names)
    found = [list(map(longer, runs)) for runs in sort.values()]
    spreads = [max(of_arm) - min(of_arm) for of_arm in found]
    raised = {name: means[f"{name}, equal-mean"] - means[name] for name in names}
    assert (
        f"they change the mean over longer lengths by {raised['fire_g']:+.1f} points for FIRE-G, "
        f"{raised['fire']:+.1f} for FIRE and {raised['rope']:+.1f} for RoPE, while seeds of a "
        f"model differ by up to {max(spreads):.1f} points"
    ) in page


def test_the_page_says_that_no_model_reverses_longer_strings(log_n):
    page = " ".join(PAGE.read_text().split())
    reverse = log_n["ReverseString"]
    far = spans(longer, reverse)
    assert f"over longer lengths, the means of three seeds are {by_change(far)}." in page
    highest = max(at_500(run) for runs in reverse.values() for run in runs)
    assert f"At 500 symbols, no model scores more than {highest:.1f} %." in page
    rope, equal_mean, both = (
        mean_of_seeds(trained, reverse["rope" + change])
        for change in ("", ", equal-mean", ", equal-mean, log n")
    )
    assert (
        f"equal-mean positions lower RoPE's mean of three seeds from {rope:.1f} to "
        f"{equal_mean:.1f} %, and with log n to {both:.1f} %."
    ) in page


def test_the_page_says_that_no_model_duplicates_or_manipulates_stacks_beyond_training(log_n):
    page = " ".join(PAGE.read_text().split())
    stack, duplicate = (spans(longer, log_n[t]) for t in ("StackManipulation", "DuplicateString"))
    assert (
        f"the means of three seeds over longer lengths are {by_change(stack)}; on duplicating, "
        "they are "
        f"{duplicate['']}, {duplicate[', log n']}, {duplicate[', equal-mean']} and "
        f"{duplicate[', equal-mean, log n']} %."
    ) in page


def test_the_page_says_how_little_the_changes_alter_three_tasks(log_n):
    page = " ".join(PAGE.read_text().split())
    tasks = ("ReverseString", "StackManipulation", "DuplicateString")
    found = [rises(longer, log_n[task], ", equal-mean") for task in tasks]
    reverse, stack, duplicate = (sum(rise > 0 for rise in of_task) for of_task in found)
    assert (
        f"in {reverse} of 9 comparisons with the same seed on reversing, {stack} on stack "
        f"manipulation and {duplicate} on duplicating, by at most {max(map(max, found)):.1f} "
        "points."
    ) in page
    both = rises(trained, log_n["StackManipulation"], ", equal-mean, log n")
    log_n_alone = rises(trained, log_n["DuplicateString"], ", log n")
    lower, higher = sum(rise < 0 for rise in both), sum(rise > 0 for rise in log_n_alone)
    assert (
        f"both changes together lower the mean on stack manipulation in {lower} of 9 comparisons, "
        f"and log n alone raises it on duplicating in {higher} of 9."
    ) in page


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
        "[without a change](#three-seeds)."
    ) in page
    learned = [sum(trained(run) > 60 for name in NAMES for run in cycle[name + change])
               for change in (", log n", "")]  # fmt: skip
    p = fisher_exact([[of, 9 - of] for of in learned]).pvalue
    assert f"(Fisher's exact test of five against one: p = {p:.2f})" in page
    at_50, beyond = (max(f(run) for runs in cycle.values() for run in runs)
                     for f in (lambda run: run[50], longer))  # fmt: skip
    assert (
        f"The highest accuracy at 50 symbols is {at_50:.1f} %, but over longer lengths, none of "
        f"the 36 scores more than {beyond:.1f} %"
    ) in page


def test_the_page_says_which_models_learn_even_pairs(log_n, seeds):
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
    assert (
        f"FIRE-G with both and seed 2 scores {first:.1f} %, FIRE-G with equal-mean positions and "
        f"seed 0 scores {second:.1f} %, and RoPE with both and seed 0 scores {third:.1f} %."
    ) in page
    before = max(trained(run) for of_arm in seeds["EvenPairs"].values() for run in of_arm)
    assert (
        f"The other 24 models score {span(list(map(trained, runs.values())))} % over training "
        f"lengths, and no model [without a change](#three-seeds) more than {before:.1f} %."
    ) in page
