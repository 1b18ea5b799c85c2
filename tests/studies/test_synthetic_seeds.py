"""docs/synthetic_results.md agrees with our measurements on synthetic tasks with three seeds."""

from collections.abc import Callable
from pathlib import Path

import pytest
from etils import epath
from test_synthetic_results import (
    EVIDENCE,
    LONGER,
    PAGE,
    PLAIN,
    RANDOM,
    TRAINED,
    guess,
    mean_over,
    sorted_by_length,
    span,
)

from fire_lm.reporting.differences import compare
from fire_lm.reporting.length_accuracy import accuracy_lines, line_name, measured_accuracies
from fire_lm.reporting.sources import named_apart
from fire_lm.results.folder import joined, read_results

SEEDS = [EVIDENCE.with_name(name) for name in ("synthetic_seeds", "synthetic_seeds_random")]
INSTRUCTIONS = EVIDENCE.with_name("synthetic_instructions")  # with AVX instead of AVX2
TASKS = (
    "EvenPairs",
    "CycleNavigation",
    "ReverseString",
    "StackManipulation",
    "DuplicateString",
    "BucketSort",
)
LEARNED = ("fire", "fire_g", "nope", "rope")  # these sort longer strings with every seed

NAMES = {
    ", resampling RandomizedPositions": "",
    " (positions random)": ", random",
    ", resampling ExponentialPositions": ", equal-mean",
    ", log_n LogN": ", log n",
}

Points = dict[int, float]  # the accuracies of a run by length


def measured(*folders: Path) -> dict[str, dict[str, list[Points]]]:
    """Return the accuracies of each task and arm, in the order of the seeds."""
    found: dict[str, dict[str, list[Points]]] = {}
    for folder in folders:
        results = read_results(epath.Path(folder))
        arms = {one.run: one.name for one in results.tasks}
        for run in sorted(results.runs, key=lambda run: run.seed):
            rows = [row for row in results.accuracies if row.run == run.run]
            (task,) = {row.task for row in rows}
            name = line_name(arms[run.run], rows[0])
            for long, short in NAMES.items():
                name = name.replace(long, short)
            points = {row.length: row.accuracy for row in rows}
            found.setdefault(task, {}).setdefault(name, []).append(points)
    return found


@pytest.fixture(scope="module")
def seeds() -> dict[str, dict[str, list[Points]]]:
    found = measured(*SEEDS)
    assert found.keys() == set(TASKS)
    assert all(arms.keys() == PLAIN | RANDOM for arms in found.values())
    assert {len(runs) for arms in found.values() for runs in arms.values()} == {3}
    return found


@pytest.mark.parametrize("folder, names", [(SEEDS[0], PLAIN), (SEEDS[1], PLAIN - {"nope"})])
def test_an_encoding_has_one_line_in_each_panel(folder, names):
    assert {task.name for task in read_results(epath.Path(folder)).tasks} == names


def trained(points: Points) -> float:
    return mean_over(points.__getitem__, TRAINED)


def longer(points: Points) -> float:
    return mean_over(points.__getitem__, LONGER)


def at_500(points: Points) -> float:
    return points[500]


def change(
    arms: dict[str, list[Points]], mean: Callable[[Points], float]
) -> dict[tuple[str, int], float]:
    """Return by how many points random positions raise a mean, by encoding and seed."""
    return {
        (name, seed): mean(arms[f"{name}, random"][seed]) - mean(arms[name][seed])
        for name in PLAIN - {"nope"}
        for seed in range(3)
    }


def cell(runs: list[Points], mean: Callable[[Points], float]) -> str:
    return ", ".join(f"{mean(points):.1f}" for points in runs)


@pytest.mark.parametrize("mean", [trained, longer])
def test_the_page_shows_every_seed(seeds, mean):
    rows = [
        f"| encoding, {mean.__name__} lengths | {' | '.join(TASKS)} |",
        f"|{' --- |' * (len(TASKS) + 1)}",
        *(
            f"| {name} | {' | '.join(cell(seeds[task][name], mean) for task in TASKS)} |"
            for name in sorted(PLAIN | RANDOM)
        ),
    ]
    assert "\n".join(rows) + "\n\n" in PAGE.read_text()


def test_the_page_says_that_the_seed_decides_which_model_learns(seeds):
    page = " ".join(PAGE.read_text().split())
    means = {
        name: [trained(run) for run in runs] for name, runs in seeds["CycleNavigation"].items()
    }
    learned = {name: sorted(of_arm) for name, of_arm in means.items() if max(of_arm) > 60}
    assert learned.keys() == {"t5", "nope", "rope", "rope, random"}
    assert [name for name, of_arm in means.items() if of_arm[1] > 60] == ["rope"]
    assert max(of_arm[2] for of_arm in means.values()) < 40
    second = max(of_arm[-2] for of_arm in learned.values())
    assert (
        f"more than 60 % over training lengths with one seed and at most {second:.1f} % with the "
        "two others"
    ) in page
    highest = max(longer(run) for runs in seeds["CycleNavigation"].values() for run in runs)
    assert f"Over longer lengths, no model scores more than {highest:.1f} %" in page


def test_the_six_tasks_are_those_on_which_models_differ_most():
    found = measured(EVIDENCE)
    ranges = {}
    for task, arms in found.items():
        means = [trained(run) for (run,) in arms.values()]
        ranges[task] = max(means) - min(means)
    assert set(sorted(ranges, key=ranges.__getitem__)[-6:]) == set(TASKS)


def test_the_page_says_what_random_positions_change_about_rope(seeds):
    page = " ".join(PAGE.read_text().split())
    tasks = ("DuplicateString", "StackManipulation", "ReverseString")
    for task in tasks:
        for seed in range(3):
            arms = seeds[task]
            assert max(arms, key=lambda name: longer(arms[name][seed])) == "rope, random"
    changes = {
        (task, *arm): value for task in tasks for arm, value in change(seeds[task], longer).items()
    }
    rope = [value for (_, name, _), value in changes.items() if name == "rope"]
    rest = [value for (_, name, _), value in changes.items() if name != "rope"]
    assert (
        f"random positions raise RoPE's mean over longer lengths by {span(rope)} points, and "
        f"change those of the other encodings by {min(rest):.1f} to {max(rest):+.1f}."
    ) in page
    highest = max(longer(run) for task in tasks for run in seeds[task]["rope, random"])
    assert f"this mean is at most {highest:.1f} %, where guessing gives about half" in page


def test_the_page_says_which_models_solve_longer_even_pairs(seeds):
    page = " ".join(PAGE.read_text().split())
    runs = {(name, seed): of_arm[seed] for name, of_arm in seeds["EvenPairs"].items()
            for seed in range(3)}  # fmt: skip
    one, *same = (run for (_, seed), run in runs.items() if seed == 1)
    assert same == [one] * 12  # "with seed 1, all 13 models have the same accuracies"
    best = runs.pop(("kerple_log", 2))
    assert (
        f"KERPLE with seed 2 scores {longer(best):.1f} % over longer lengths; the others score at "
        f"most {max(map(longer, runs.values())):.1f} %."
    ) in page


def test_the_page_says_what_random_positions_change_about_sorting(seeds):
    page = " ".join(PAGE.read_text().split())
    sort = seeds["BucketSort"]
    assert min(change(sort, longer).values()) > 0  # "of all six encodings with every seed"
    (kerple,) = {trained(run) for run in sort["kerple_log, random"] if trained(run) < 99}
    alibi = [trained(run) for run in sort["alibi, random"]]
    assert (
        f"ALiBi's models do not learn to sort ({span(alibi)} % over training lengths), nor does "
        f"KERPLE's with seed 1 ({kerple:.1f} %)."
    ) in page


def test_the_page_says_what_guessing_scores():
    page = " ".join(PAGE.read_text().split())
    scores = [
        (f"{guess(task, 'trained'):.1f}", f"{guess(task, 'longer'):.1f}")
        for task in (
            "CycleNavigation",
            "EvenPairs",
            "ReverseString",
            "DuplicateString",
            "StackManipulation",
            "BucketSort",
        )
    ]
    assert scores[:4] == [("20.0", "20.0")] + [("50.0", "50.0")] * 3
    stack, sort = scores[4:]
    assert (
        "Guessing scores 20.0 % on cycle navigation, 50.0 % on even pairs, reversing and "
        f"duplicating, {stack[0]} and {stack[1]} % on stack manipulation over training and longer "
        f"lengths, and {sort[0]} and {sort[1]} % on sorting"
    ) in page


def test_the_page_says_what_the_seeds_tell_over_longer_lengths():
    """All 13 models of a task are one family of 78 pairs."""
    parts = [(str(place), read_results(epath.Path(folder))) for place, folder in enumerate(SEEDS)]
    apart = {}
    for task, lines in accuracy_lines(joined(named_apart(parts))).items():
        (longer,) = [one for one in measured_accuracies(lines) if "longer" in one.place]
        found = compare(longer.samples, lower_is_better=False)
        assert len(found.adjusted) == 78
        best, *others = found.means
        apart[task.partition(",")[0]] = sum(found.apart(best, name) for name in others)
    page = " ".join(PAGE.read_text().split())
    assert [apart[name] for name in ("CycleNavigation", "EvenPairs", "DuplicateString")] == [0] * 3
    assert (
        "no model is told apart from the best over longer lengths of cycle navigation, even pairs "
        f"and duplicating, {apart['BucketSort']} of the 12 others is on sorting (ALiBi at "
        f"positions 0, 1, 2, ...), {apart['ReverseString']} are on reversing and "
        f"{apart['StackManipulation']} on stack manipulation"
    ) in page


def test_the_page_says_which_encodings_sort_longer_strings_with_every_seed(seeds):
    page = " ".join(PAGE.read_text().split())
    sort = seeds["BucketSort"]
    means = {name: [longer(run) for run in runs] for name, runs in sort.items()}
    by_length = mean_over(sorted_by_length, LONGER)
    learned = [mean for name in LEARNED for mean in means[name]]
    assert (
        f"models with FIRE, FIRE-G, NoPE or RoPE give {span(learned)} % of the symbols of strings "
        f"of 41 to 500 correctly with each of three seeds, where an answer that uses only the "
        f"length (the length rule below) gives {by_length:.1f} %"
    ) in page
    assert max(means["alibi"]) < by_length
    assert sum(mean < by_length for mean in means["t5"]) == 2
    assert sum(mean < by_length for mean in means["kerple_log"]) == 2
    assert "ALiBi does worse with each seed, KERPLE and T5's buckets with two" in page


def test_the_page_says_that_the_last_bits_suffice_for_another_result(seeds):
    page = " ".join(PAGE.read_text().split())
    limited = measured(INSTRUCTIONS)["CycleNavigation"]
    before, after = (
        [trained(arms[name][0]) for name in ("nope", "t5")]
        for arms in (seeds["CycleNavigation"], limited)
    )
    assert (
        f"NoPE and T5's buckets score {before[0]:.1f} and {before[1]:.1f} % over training lengths "
        f"of cycle navigation on a CPU with AVX2, but {after[0]:.1f} and {after[1]:.1f} % with AVX "
    ) in page
