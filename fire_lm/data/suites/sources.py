"""Functions that write task data sets, from official records or from generated exercises."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from fire_lm.data.suites import records
from fire_lm.data.suites.writing import Written, write_task
from fire_lm.errors import UserError
from fire_lm.tasks.suites import Generated, Official, TextTask
from fire_lm.tasks.suites.rows import Row
from fire_lm.tasks.suites.selection import Source, rows_of

# The first component of each split's seed, which ensures that the splits use different random
# numbers.
_TRAIN, _VALIDATION, _TEST = 1, 2, 3


def find_all(tasks: list[TextTask], source: str) -> dict[str, records.RecordSet]:
    """Return the data set of each task, keyed by task name.

    Raises:
      UserError: A data set is missing. The message states the expected files and their origin.
    """
    records_by_task = {task.name: records.find(_official(task), source) for task in tasks}
    missing = [task for task in tasks if records_by_task[task.name] is None]
    if missing:
        first = _official(missing[0])
        present = ",".join(task.title for task in tasks if task not in missing)
        raise UserError(
            f"{source} does not contain {', '.join(task.title for task in missing)} "
            f"(expected for {missing[0].title}: {first.folder}/train.jsonl, {first.folder}.zip or "
            f"the TFDS data set {first.tfds_names[0]})\n"
            f"to get {missing[0].title}: {first.where}"
            + (f"; to write only the other data sets: --tasks={present}" if present else "")
        )
    return {name: rows for name, rows in records_by_task.items() if rows is not None}


def write_official(task: TextTask, source: records.RecordSet, data_dir: str) -> Written:
    """Write a data set of official records; see `write_task`."""
    splits = {split: rows_of(_official(task), split, read) for split, read in source.splits.items()}
    return write_task(task.name, data_dir, splits, {"files": source.identity})


def _official(task: TextTask) -> Official:
    if not isinstance(task.origin, Official):
        raise UserError(f"{task.title} is generated and has no source files: omit --source")
    return task.origin


def write_generated(
    task: TextTask,
    data_dir: str,
    *,
    sizes: tuple[int, ...] = (),
    train_size: int | None = None,
    rows: int = 10_000,
    examples: int = 50,
    seed: int = 0,
) -> Written:
    """Write a data set of generated exercises, which are determined by a seed.

    The exercises of one size depend neither on the machine nor on the other sizes.

    Args:
      sizes: The sizes of the test exercises; the exercises of size N become the split `size_N`.
        An empty tuple selects the task's default sizes.
      train_size: The largest size in `train` and `validation`, where sizes are drawn uniformly
        from 1 to this number. None selects the smallest of `sizes`.
      rows: The number of rows in `train`.
      examples: The number of examples in `validation` and in the split of each size.

    Raises:
      UserError: The task is not generated, or has no exercises of a requested size. See also
        `write_task`.
    """
    origin = task.origin
    if not isinstance(origin, Generated):
        raise UserError(f"{task.title} is read from files: set --source=FOLDER")
    sizes = sizes or origin.sizes
    train_size = train_size or min(sizes)
    if origin.largest is not None and max(*sizes, train_size) > origin.largest:
        raise UserError(
            f"{task.title} has no exercises of size {max(*sizes, train_size)}: the largest size is "
            f"{origin.largest}"
        )
    splits = {
        "train": _exercises(origin, (_TRAIN, seed), rows, train_size=train_size),
        "validation": _exercises(origin, (_VALIDATION, seed), examples, train_size=train_size),
    } | {
        f"size_{size}": _exercises(origin, (_TEST, seed, size), examples, size=size)
        for size in sorted(set(sizes))
    }
    settings = {"sizes": sizes, "train_size": train_size, "rows": rows, "examples": examples}
    return write_task(task.name, data_dir, splits, {"generated": settings | {"seed": seed}})


def _exercises(
    origin: Generated, seeds: tuple[int, ...], count: int, *, size: int = 0, train_size: int = 0
) -> Source:
    """Return a source of exercises of one size or, if `size` is 0, of sizes up to `train_size`."""

    def exercise(number: int) -> Iterator[Row]:
        rng = np.random.default_rng([*seeds, number])
        yield origin.exercise(rng, size or int(rng.integers(1, train_size + 1)), str(number))

    def source() -> Iterator:
        for number in range(count):
            yield f"exercise {number}", functools.partial(exercise, number)

    return source
