"""The tables of docs/synthetic_results.md, from docs/evidence/synthetic*.

The page shows every seed, in groups of arms that differ in their positions or in log n.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from command import EVIDENCE
from etils import epath

from fire_lm.reporting.accuracies import accuracy_name, mean_of_guesses
from fire_lm.reporting.page import Table
from fire_lm.results.folder import read_results
from fire_lm.tasks.synthetic import CHOMSKY
from fire_lm.tasks.synthetic.scoring import mean_weights

SEEDS = ("synthetic_seeds", "synthetic_seeds_random")
# The tasks on which models differ most, which were measured with three seeds.
TASKS = (
    "EvenPairs", "CycleNavigation", "ReverseString", "StackManipulation", "DuplicateString",
    "BucketSort",
)  # fmt: skip
CHANGED = ("fire", "fire_g", "rope")  # with log n or equal-mean positions
Points = dict[int, float]  # the accuracies of a run in percent, by length
_SHORT = {
    ", resampling RandomizedPositions": "",
    " (positions random)": ", random",
    ", resampling ExponentialPositions": ", equal-mean",
    ", log_n LogN": ", log n",
}


@functools.cache
def accuracies_of(*folders: str) -> dict[str, dict[str, list[Points]]]:
    """Return the accuracies of each task and arm, in the order of the seeds."""
    found: dict[str, dict[str, list[Points]]] = {}
    for folder in folders:
        results = read_results(epath.Path(EVIDENCE / folder))
        arms = {one.run: one.name for one in results.tasks}
        for run in sorted(results.runs, key=lambda run: run.seed):
            rows = [row for row in results.accuracies if row.run == run.run]
            (task,) = {row.task for row in rows}
            name = accuracy_name(arms[run.run], rows[0])
            for long, short in _SHORT.items():
                name = name.replace(long, short)
            points = {row.length: row.accuracy for row in rows}
            found.setdefault(task, {}).setdefault(name, []).append(points)
    return found


def is_random(arm: str) -> bool:
    return arm.endswith(", random")


def trained(points: Points) -> float:
    """Return the mean over all lengths up to the longest training length."""
    return _mean(points, [length for length in points if length <= 40])


def longer(points: Points) -> float:
    """Return the mean over all longer lengths."""
    return _mean(points, [length for length in points if length > 40])


def _mean(points: Points, lengths: Sequence[int]) -> float:
    return float(mean_weights(lengths) @ [points[length] for length in lengths])


def guess(task: str, mean: Callable[[Points], float]) -> float:
    """Return the mean of the best answer without reading over trained or longer lengths."""
    lengths = next(iter(accuracies_of("synthetic")[task].values()))[0]
    side = [length for length in lengths if (length > 40) == (mean is longer)]
    value = mean_of_guesses(task, side)
    assert value is not None
    return value


def best_of_tasks() -> str:
    """Return the highest means of each task, with seed 0."""
    header = ["task", "guess, trained", "trained lengths", "guess, longer",
              "longer lengths, positions 0, 1, 2, ...", "longer lengths, random"]  # fmt: skip
    rows = []
    for task in (task.__name__ for task in CHOMSKY):
        arms = {name: runs[0] for name, runs in accuracies_of("synthetic")[task].items()}
        plain = {name: run for name, run in arms.items() if not is_random(name)}
        drawn = {name: run for name, run in arms.items() if is_random(name)}
        guesses = [f"{guess(task, mean):.1f}" for mean in (trained, longer)]
        beyond = [_best(plain, longer), _best(drawn, longer)]
        rows.append([task, guesses[0], _best(arms, trained), guesses[1], *beyond])
    return Table("", header, rows).markdown()


def _best(arms: Mapping[str, Points], mean: Callable[[Points], float]) -> str:
    name = max(sorted(arms), key=lambda name: mean(arms[name]))
    return f"{mean(arms[name]):.1f} {name}"


def every_seed(
    head: str, mean: Callable[[Points], float], folders: Sequence[str], tasks: Sequence[str] = TASKS
) -> str:
    """Return the mean of each seed of each arm."""
    found = accuracies_of(*folders)
    rows = [
        [name, *(", ".join(f"{mean(run):.1f}" for run in found[task][name]) for task in tasks)]
        for name in sorted(found[tasks[0]])
    ]
    return Table("", [head, *tasks], rows).markdown()


def longer_training() -> str:
    """Return the accuracies with seed 0 after 3,000 and after 15,000 steps."""
    before, after = accuracies_of(*SEEDS), accuracies_of("synthetic_longer")
    header = ["task", "encoding", "trained, 3,000", "15,000", "longer, 3,000", "15,000",
              "at 500, 3,000", "15,000"]  # fmt: skip
    rows = []
    for task in before:
        for name, (run, *_) in sorted(after.get(task, {}).items()):
            both = before[task][name][0], run
            means = [mean(one) for mean in (trained, longer) for one in both]
            ends = [one[500] for one in both]
            rows.append([task, name, *(f"{value:.1f}" for value in (*means, *ends))])
    return Table("", header, rows).markdown()


TABLES: Mapping[str, Callable[[], str]] = {
    "best of tasks": best_of_tasks,
    "trained lengths": lambda: every_seed("encoding, trained lengths", trained, SEEDS),
    "longer lengths": lambda: every_seed("encoding, longer lengths", longer, SEEDS),
    "longer training": longer_training,
    "log n": lambda: every_seed("encoding and change, longer lengths", longer, ["synthetic_log_n"]),
}
