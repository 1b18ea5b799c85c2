"""`fire-lm sweep`, which scores runs at several lengths."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import jax
from etils import epath

from fire_lm.cli.sweep_tables import write_tables
from fire_lm.experiment import Experiment, check_settings
from fire_lm.hardware.program_cache import keep_programs
from fire_lm.measures import LengthSweep
from fire_lm.measures.length_sweep import FILE
from fire_lm.processes import initialize_distributed, say
from fire_lm.runs.saved import check_same_vocabulary, check_text_of_run
from fire_lm.storage import place
from fire_lm.sweeps.command import Command
from fire_lm.sweeps.schedule import evaluate_checkpoints


def run(arguments: argparse.Namespace) -> None:
    keep_programs()
    initialize_distributed()
    evaluate_checkpoints(Sweep(arguments))


class Sweep(Command):
    """The command `fire-lm sweep`, which combines the losses of several runs."""

    combines = True

    def measure_of(self, experiment: Experiment, workdir: epath.Path) -> LengthSweep:
        """Return the length sweep that the configuration of a run on text describes."""
        check_text_of_run(experiment, workdir)
        sweep: LengthSweep = experiment.sweep
        check_same_vocabulary(sweep.data, workdir)
        check_settings(experiment)
        return sweep

    def describe(self, workdir: epath.Path, step: int) -> None:
        for setting in self.settings(workdir):
            plan = setting.measure.plan_text(setting.run_model, step, setting.also)
            say(f"{plan}\n{setting.experiment.text()}")

    def combine(self, checkpoints: Sequence[tuple[str, int]], top: str) -> None:
        """Print a table, and write a figure and, unless `top` is a run directory, all rows."""
        if jax.process_index() == 0:
            folder = place(top)
            table = write_tables(checkpoints, folder)
            print(f"\n{table}\n\n{folder / FILE}, .png")
