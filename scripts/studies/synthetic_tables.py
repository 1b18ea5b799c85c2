"""The tables of docs/synthetic_results.md, from docs/evidence/synthetic*.

The page shows the range over seeds; the reports of the folders have means and deviations.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

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
    ", max_length 2048": "",  # a learned table covers the range of the draws
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


def models_of(task: str) -> list[Points]:
    """Return the accuracies of every model that was trained on a task, in all studies."""
    studies = [accuracies_of("synthetic"), accuracies_of(*SEEDS), accuracies_of("synthetic_log_n")]
    arms = {name: runs for study in studies for name, runs in study.get(task, {}).items()}
    after = accuracies_of("synthetic_longer").get(task, {})
    return [run for runs in (*arms.values(), *after.values()) for run in runs]


def best_of_tasks() -> str:
    """Return the number of models of each task, and the highest means of any of them."""
    header = ["task", "models", "guess, trained", "best, trained", "guess, longer", "best, longer"]
    rows = []
    for task in (task.__name__ for task in CHOMSKY):
        models, means = models_of(task), []
        for mean in (trained, longer):
            means += [guess(task, mean), max(mean(points) for points in models)]
        rows.append([task, str(len(models)), *(f"{value:.1f}" for value in means)])
    return Table("", header, rows).markdown()


def span(means: Iterable[float]) -> str:
    """Return the lowest and the highest mean."""
    values = list(means)
    return f"{min(values):.1f}-{max(values):.1f}"


def every_seed() -> str:
    """Return the lowest and the highest mean of each arm's seeds, on each task."""
    columns = {
        "CycleNavigation, trained": trained,
        **{task: longer for task in TASKS if task not in ("EvenPairs", "CycleNavigation")},
    }
    arms = accuracies_of(*SEEDS)
    rows = [
        [name] + [span(map(mean, arms[of.partition(",")[0]][name])) for of, mean in columns.items()]
        for name in sorted(arms[TASKS[0]])
    ]
    return Table("", ["encoding", *columns], rows).markdown()


def longer_training() -> str:
    """Return the means with seed 0 after 3,000 and after 15,000 steps."""
    before, after = accuracies_of(*SEEDS), accuracies_of("synthetic_longer")
    tasks = [task for task in TASKS if task in after]
    rows = []
    for name in sorted({name for arms in after.values() for name in arms}):
        cells = []
        for task in tasks:
            pairs = [(before[task][name][0], run) for run in after[task].get(name, [])]
            for mean in (trained, longer):
                cells.append("".join(f"{mean(few):.1f}→{mean(many):.1f}" for few, many in pairs))
        rows.append([name, *cells])
    header = ["encoding", *(name for task in tasks for name in (f"{task}, trained", "longer"))]
    return Table("", header, rows).markdown()


def log_n() -> str:
    """Return the lowest and the highest mean over longer lengths of sorting, by change."""
    arms = {**accuracies_of(*SEEDS)["BucketSort"], **accuracies_of("synthetic_log_n")["BucketSort"]}
    changes = ("", ", log n", ", equal-mean", ", equal-mean, log n")
    rows = [
        [name, *(span(map(longer, arms[name + change])) for change in changes)] for name in CHANGED
    ]
    return Table("", ["encoding", "unchanged", "log n", "equal-mean", "both"], rows).markdown()


def tries() -> dict[str, list[dict[str, str]]]:
    """Return the tries of scripts/studies/learnable.py by task."""
    found: dict[str, list[dict[str, str]]] = {}
    with (EVIDENCE / "che" / "search.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["task"], []).append(row)
    return found


def search() -> str:
    """Return the best try of each task, best tasks first."""
    columns = ("steps", "batch", "learning_rate")
    best = {
        task: max(rows, key=lambda row: float(row["accuracy"])) for task, rows in tries().items()
    }
    rows = [
        [task, str(len(tries()[task])), *(row[name] for name in columns)]
        + [f"{float(row['accuracy']):.1f}", "yes" if row["learned"] == "True" else "no"]
        for task, row in sorted(best.items(), key=lambda item: -float(item[1]["accuracy"]))
    ]
    names = (name.replace("_", " ") for name in columns)
    return Table("", ["task", "tries", *names, "accuracy", "learned"], rows).markdown()


def encoders(suffix: str) -> str:
    """Return the means of encoders over trained and longer lengths of each task, with one seed.

    `suffix` is that of the arms' names: empty for positions 0, 1, 2, ..., else ", random".
    """
    studies = accuracies_of("synthetic_encoders")
    tasks = [task.__name__ for task in CHOMSKY if task.__name__ in studies]
    guesses = [f"{guess(task, mean):.1f}" for task in tasks for mean in (trained, longer)]
    rows = [["guess", *guesses]]
    for encoding in sorted({arm.partition(",")[0] for arms in studies.values() for arm in arms}):
        (runs,) = zip(*(studies[task].get(encoding + suffix, [{}]) for task in tasks), strict=True)
        if any(runs):
            rows.append([encoding, *(cell for run in runs for cell in _means(run))])
    header = [name for task in tasks for name in (f"{task}, trained", "longer")]
    return Table("", ["encoding", *header], rows).markdown()


def _means(points: Points) -> list[str]:
    """Return both means in words; a learned table has no rows for the longer lengths."""
    longest = max(points, default=0)
    return [
        f"{trained(points):.1f}" if longest else "",
        f"{longer(points):.1f}" if longest > 40 else "",
    ]


TABLES: Mapping[str, Callable[[], str]] = {
    "best of tasks": best_of_tasks,
    "every seed": every_seed,
    "longer training": longer_training,
    "log n": log_n,
    "search": search,
    "encoders": functools.partial(encoders, ""),
    "encoders, random": functools.partial(encoders, ", random"),
}
