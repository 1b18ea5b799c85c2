"""`fire-lm corpus tasks`, which writes the data sets of a suite of tasks."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fire_lm.console import signs_of_life
from fire_lm.errors import UserError, did_you_mean
from fire_lm.tasks.suites import SUITES, Generated, TextTask

if TYPE_CHECKING:
    from fire_lm.data.suites.writing import Written

_GENERATED = ("sizes", "train_size", "rows", "examples", "seed")


def write_tasks(arguments: argparse.Namespace) -> None:
    tasks = chosen_tasks(arguments)
    settings = {
        name: value for name in _GENERATED if (value := getattr(arguments, name)) is not None
    }
    if all(isinstance(task.origin, Generated) for task in tasks):
        if arguments.source:
            raise UserError(f"the suite {arguments.suite} is generated: omit --source")
        write_exercises(tasks, arguments.data_dir, settings)
    else:
        if settings:
            given = next(iter(settings))
            raise UserError(
                f"--{given} applies only to generated suites: omit it for {arguments.suite}"
            )
        write_records(tasks, arguments.data_dir, arguments.source)
    print(
        f"tasks: {', '.join(f'fire_lm:{task.name}' for task in tasks)}\n"
        f"read them with --gin.DATA_DIR={arguments.data_dir}"
    )


def chosen_tasks(arguments: argparse.Namespace) -> list[TextTask]:
    """Return the selected tasks, or raise UserError for a suite or task that does not exist."""
    if arguments.suite not in SUITES:
        raise UserError(
            f"there is no suite {arguments.suite}{did_you_mean(arguments.suite, SUITES)}"
        )
    by_title = {task.title: task for task in SUITES[arguments.suite].tasks}
    for title in arguments.tasks:
        if title not in by_title:
            hint = did_you_mean(title, by_title) or f". Known: {', '.join(by_title)}"
            raise UserError(f"the suite {arguments.suite} has no task {title}{hint}")
    return [task for title, task in by_title.items() if title in (arguments.tasks or by_title)]


def write_exercises(tasks: list[TextTask], data_dir: str, settings: dict) -> None:
    from fire_lm.data.suites import sources

    if "sizes" in settings:
        settings = settings | {"sizes": tuple(settings["sizes"])}
    for task in tasks:
        with signs_of_life(task.title):
            describe(sources.write_generated(task, data_dir, **settings))


def write_records(tasks: list[TextTask], data_dir: str, source: str | None) -> None:
    from fire_lm.data.suites import sources

    if not source:
        raise UserError("add --source=FOLDER, the folder that contains the official data sets")
    records = sources.find_all(tasks, source)
    for task in tasks:
        print(f"{task.title}: {records[task.name].place}", flush=True)
        with signs_of_life(task.title):
            describe(sources.write_official(task, records[task.name], data_dir))


def describe(written: Written) -> None:
    if not written.written:
        print(f"  {written.name} already contains these rows: nothing to do")
    for split, rows in written.rows.items():
        left_out = [
            f"{one.count:,} {why} (first: {one.first})"
            for why, one in written.left_out[split].items()
        ]
        print(f"  {split}: {rows:,} rows; omitted: {', '.join(left_out) or 'none'}", flush=True)
