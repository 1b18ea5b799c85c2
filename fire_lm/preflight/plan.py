"""Checks of a run on a slice that need neither the compiler nor the run's files."""

from __future__ import annotations

import dataclasses
from typing import Any

from fire_lm import sharding
from fire_lm.errors import UserError
from fire_lm.experiment import SHIPPED, Experiment
from fire_lm.hardware.slices import Slice
from fire_lm.measures.base import Measure, RunModel
from fire_lm.measures.length_accuracy import exercise_lengths
from fire_lm.models import parameter_shapes
from fire_lm.preflight.report import SKIPPED, Check
from fire_lm.sharding import MeshShape
from fire_lm.storage import in_bucket, place
from fire_lm.training import Pretraining


def check_plan(run: Pretraining, where: Slice) -> None:
    """Check that the mesh and the batch of a run fit a slice.

    Raises:
      UserError: They do not fit, or the optimizer cannot train the model; the message suggests
        settings that fit.
    """
    sizes = run.mesh.resolve(where.chips)
    try:
        sharding.check_sizes(sizes, where.chips, where.count, str(where))
    except UserError as error:
        raise UserError(f"{error}{_what_else_to_change(run, where, sizes)}") from error
    mesh = sharding.abstract_mesh(run.mesh, where.chips)
    run.check_batches(mesh)
    run.check_rows(mesh)
    run.check_optimizer()
    sharding.tree_shardings(parameter_shapes(run.model), mesh)


def slices_that_fit(run: Pretraining, where: Slice, least: int) -> tuple[int, ...]:
    """Return on how many of several slices a run can continue, with the same batches, in order.

    The batch stays as it is, so each chip has more of its rows.

    Args:
      run: The run, which fits `where`.
      least: The smallest number of slices on which it must be able to continue.

    Raises:
      UserError: It cannot continue on `least` slices, or on none but all of them.
    """
    if not run.data.any_hosts:
        raise UserError(
            f"the run cannot continue on {least} of {where.count} slices: with {run.data.title}, "
            "only the same number of hosts can resume\n"
            "use token blocks (docs/blocks.md), or set --cluster.min_slices=0"
        )
    if run.mesh.data != -1:
        raise UserError(
            f"MeshShape.data is {run.mesh.data}, but the run is to continue on {least} of "
            f"{where.count} slices: set --gin.MeshShape.data=-1, which means all remaining chips"
        )
    counts = []
    for count in range(least, where.count + 1):
        try:
            check_plan(run, dataclasses.replace(where, count=count))
        except UserError as error:
            if count in (least, where.count):
                raise UserError(f"on {count} of {where.count} slices, {error}") from error
            continue
        counts.append(count)
    return tuple(counts)


def _what_else_to_change(run: Pretraining, where: Slice, sizes: sharding.Sizes) -> str:
    """Return what else to change for a mesh that fits the slice, as the rest of a message."""
    preset = f"configs/slices/{where.name.replace('-', '_')}.gin"
    if (SHIPPED / preset).is_file():
        return f"\nor add --gin_file={preset} after the run file, which also sets microbatches"
    fits = sharding.fitting(sizes, where.chips, where.count)
    mesh = sharding.abstract_mesh(MeshShape(*fits), where.chips)
    try:
        run.check_batches(mesh)
    except UserError as error:
        return f"\nwith this mesh, {error}"
    return ""


def check_scoring(experiment: Experiment, name: str, measure: Measure | None = None) -> None:
    """Check that a run called `name` can be scored: by `measure`, or at its lengths if it is None.

    In the latter case, tell which of the lengths it cannot be scored at.

    Raises:
      UserError: It can be scored at none of the lengths, a length exceeds the rows of text, or the
        measure refuses the model.
    """
    model, train = experiment.model, experiment.train
    data: Any = train.data
    if measure is not None:
        label, length = experiment.label, train.trained_length
        measure.check(RunModel(place(name), label, "", model, length, lambda: data))
    elif data.exercises:
        exercise_lengths(model, data, experiment.values("length_sweep")["lengths"], name)
    else:
        experiment.sweep.readable_lengths(name)


def local_paths(experiment: Experiment) -> list[tuple[str, str]]:
    """Return the paths that an experiment reads on the machine where it runs.

    Each path follows the name with which a user would bind it. Paths in buckets are left out.
    """
    return [
        (name, path.removeprefix("hf:") if kind == "vocabulary" else path)
        for name, kind, path in _paths(experiment)
        if not in_bucket(path) and (kind, path) != ("vocabulary", "bytes")
    ]


def bucket_paths(experiment: Experiment) -> dict[str, str]:
    """Return the names with which a user would bind the data and the vocabulary, keyed by path.

    Only paths in buckets are returned.
    """
    return {
        path: name
        for name, kind, path in _paths(experiment)
        if kind in ("data", "vocabulary") and in_bucket(path)
    }


def _paths(experiment: Experiment) -> list[tuple[str, str, str]]:
    """Return the name, the kind and each path of all settings that are paths or tuples of them."""
    paths = [
        (name, kind, path)
        for name, kind, value in experiment.paths
        for path in (value if isinstance(value, tuple) else (value,))
    ]
    return list(dict.fromkeys(paths))  # several classes may use one macro


def check_local_paths(experiment: Experiment, where: Slice) -> list[Check]:
    """Return a check that asks whether the hosts of a slice have the local paths, if there are any.

    This machine cannot find out: the paths may be those of a disk that the hosts share.
    """
    paths = local_paths(experiment)
    if not paths:
        return []
    named = ", ".join(f"{name}={path}" for name, path in sorted(paths))
    hosts = "the host" if where.hosts == 1 else f"each of the {where.hosts} hosts"
    return [Check("local paths", SKIPPED, f"{named}: does {hosts} of the slice have it there?")]
