"""`fire-lm evaluate`, which scores runs on a synthetic task by length, or on downstream tasks."""

from __future__ import annotations

import argparse

from fire_lm.cli.argument_checks import check_for_tasks
from fire_lm.cli.startup import quiet_libraries
from fire_lm.experiment import evaluates_a_task
from fire_lm.processes import initialize_distributed
from fire_lm.sweeps import accuracy, task_scores


def run(arguments: argparse.Namespace) -> None:
    quiet_libraries()
    initialize_distributed()
    if not evaluates_a_task(arguments.gin_file, arguments.bindings, arguments.gin_search_paths):
        accuracy.evaluate(arguments)
        return
    check_for_tasks(arguments)
    task_scores.evaluate(arguments)
