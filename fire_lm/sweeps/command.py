"""A command that evaluates checkpoints: its measure, and how a checkpoint is evaluated."""

from __future__ import annotations

import abc
import argparse
import contextlib
import functools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
from etils import epath

from fire_lm.errors import UserError
from fire_lm.experiment import Experiment
from fire_lm.measures.base import Cell, Measure
from fire_lm.measures.recorded_settings import check_settings, record_settings
from fire_lm.measures.scoring import read_params
from fire_lm.processes import by_first, failing_together, say, say_once
from fire_lm.runs.find import folder_of_all
from fire_lm.sharding import make_mesh
from fire_lm.storage import LeaseLost
from fire_lm.sweeps.claims import StillOurs, claimed_by_job, claimed_when_free, kept
from fire_lm.sweeps.settings import Setting, resolved_settings


class Command(abc.ABC):
    """A command such as `fire-lm sweep`; subclasses name its measure and may combine results.

    Attributes:
      arguments: The arguments of the command line, including `runs`, `also`, `follow` and
        `dry_run`.
      combines: Whether `combine` writes results into a folder, which --output may name.
    """

    combines = False

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments

    @abc.abstractmethod
    def measure_of(self, experiment: Experiment, workdir: epath.Path) -> Measure:
        """Return the measure that the configuration of a run describes.

        Raises:
          UserError: The run has no such measure, or a setting is invalid.
        """

    def folder(self, workdirs: Sequence[epath.Path], named: Iterable[epath.Path]) -> str:
        """Return the folder for combined results, or "" if the command does not write any.

        Args:
          workdirs: The directories of the runs.
          named: The folders on the command line, which are runs or contain runs.
        """
        if not self.combines:
            return ""  # `fire-lm report` combines the rows of several runs
        return str(folder_of_all(self.arguments.output, workdirs, named))

    def settings(self, workdir: epath.Path) -> list[Setting]:
        """Return the plain setting and the setting of each --also that affects this run.

        Every other --also is reported and skipped.
        """
        settings, idle = resolved_settings(self.measure_of, self.arguments, workdir)
        for also, why in idle.items():
            say_once(f"{workdir}: --also='{also}' is skipped: {why}")
        return settings

    def check(self, workdirs: Iterable[epath.Path]) -> None:
        """Raise UserError if the value of an --also affects none of the runs.

        A run that cannot be evaluated is ignored here; `evaluate` reports it.
        """
        if not self.arguments.also:
            return
        idle, errors = [], []
        for workdir in workdirs:
            try:
                idle.append(resolved_settings(self.measure_of, self.arguments, workdir)[1])
            except UserError as error:
                errors.append(error)
        if errors and not idle:
            raise errors[0]
        for also in () if errors else self.arguments.also:
            if idle and all(also in of_run for of_run in idle):
                raise UserError(
                    f"--also='{also}' changes nothing for any of these runs: {idle[0][also]}\n"
                    "correct or omit this flag"
                )

    def describe(self, workdir: epath.Path, step: int) -> None:
        """Check what `evaluate` checks, and print the plan for a checkpoint (--dry_run)."""
        for setting in self.settings(workdir):
            say(setting.measure.plan_text(setting.run_model, step, setting.also))

    def evaluate(self, workdir: epath.Path, step: int) -> bool:
        """Write a checkpoint's missing rows; return False if another job is writing some rows."""
        with failing_together():
            settings = self.settings(workdir)
        whole = all([compute_cells(setting, step) for setting in settings])
        if whole and not self.combines:
            by_first(lambda: self.show(settings, step))
        return whole

    def show(self, settings: Sequence[Setting], step: int) -> None:
        """Print the rows of a checkpoint."""
        workdir, measure = settings[0].run_model.workdir, settings[0].measure
        check_settings(measure, workdir)  # another job may have written the table since
        lines = {  # by key, because settings that differ in lengths may share rows
            row.key: setting.measure.row_text(row)
            for setting in settings
            for cell in setting.measure.plan(setting.run_model, step)
            for row in setting.measure.rows_of(cell)
        }
        print(
            "\n".join([f"{workdir}@{step}", *lines.values(), str(measure.file(workdir))]),
            flush=True,
        )

    def scored_steps(self, workdir: epath.Path) -> set[int]:
        """Return the steps of a run for which rows exist; none if it cannot be evaluated."""
        try:
            settings = self.settings(workdir)
        except UserError:  # which `evaluate` reports
            return set()
        return set().union(*(s.measure.steps(s.run_model) for s in settings))

    def combine(  # noqa: B027 (optional)
        self, checkpoints: Sequence[tuple[str, int]], top: str
    ) -> None:
        """Write the combined results of these checkpoints into the folder `top`."""


def compute_cells(setting: Setting, step: int) -> bool:
    """Compute the cells of a checkpoint that are neither finished nor claimed by another job.

    Returns:
      Whether no other job is computing one of the cells.
    """
    measure, run_model = setting.measure, setting.run_model
    mesh = make_mesh(measure.mesh)
    checkpoint = (str(run_model.workdir), step, run_model.model)
    params = functools.cache(lambda: read_params(*checkpoint, mesh, measure.layout))
    whole = True
    for cell in measure.plan(run_model, step):
        if by_first(lambda: measure.is_finished(cell)):  # noqa: B023 (called at once)
            continue
        with claimed_by_job(run_model.workdir, cell.claim) as still_ours:
            whole &= still_ours is not None and kept(
                lambda: compute(measure, cell, params, mesh, still_ours)  # noqa: B023
            )
    return whole


def compute(
    measure: Measure, cell: Cell, params: Any, mesh: jax.sharding.Mesh, still_ours: StillOurs
) -> None:
    """Compute a claimed cell, and write the results; if the measure resumes, as they are computed.

    If the computation of such a measure is interrupted, the results so far are written.

    Raises:
      LeaseLost: Another job has taken over the cell.
    """
    if by_first(lambda: measure.is_finished(cell)):  # by another job, before the claim
        return
    results: list[Any] = []
    written = time.monotonic()

    def write() -> None:
        unwritten = results.copy()
        results.clear()

        def first() -> None:
            with claimed_when_free(cell.workdir, "rows") as ours:
                record_settings(measure, cell.workdir, ours)
                measure.write(cell, unwritten, ours)

        if unwritten:
            still_ours()
            by_first(first)

    try:
        for result in results_of(measure, cell, params, mesh):
            results.append(result)
            if measure.resumes and time.monotonic() - written >= measure.write_every:
                write()
                written = time.monotonic()
    except BaseException:
        if measure.resumes and jax.process_count() == 1:  # or others might not write as well
            with contextlib.suppress(LeaseLost):  # the interruption must not be forgotten
                write()
        raise
    write()
    still_ours()
    by_first(lambda: measure.finish(cell))


def results_of(measure: Measure, cell: Cell, params: Any, mesh: jax.sharding.Mesh) -> Iterator[Any]:
    """Yield what a measure yields for a cell.

    Raises:
      UserError: The measure returns something else, or yields nothing and is not one that resumes.
    """
    run = f"{type(measure).__name__}.run"
    results: Any = measure.run(cell, params, mesh)
    if not isinstance(results, Iterable):
        raise UserError(
            f"{run} returns {results!r}: it must yield rows, as `yield self.row(cell, ...)`",
            everywhere=True,
        )
    empty = True
    for result in results:
        empty = False
        yield result
    if empty and not measure.resumes:
        key = ", ".join(map(str, cell.key))
        raise UserError(
            f"{run} yields no row for {key}: it must yield at least one", everywhere=True
        )
