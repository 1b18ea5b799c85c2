"""What a launch refuses before it asks Google Cloud for anything, as does a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ml_collections import ConfigDict

from fire_lm.errors import UserError
from tpu import image as images
from tpu import zones
from tpu.cluster import slice_of

if TYPE_CHECKING:
    from fire_lm.experiment import Experiment


def check_place(where: ConfigDict) -> None:
    """Check the cluster by itself.

    Raises:
      UserError: The zone has no such TPUs, or the hosts cannot pull the image.
    """
    zones.check(where)
    images.check_registry(where.image)


def check_run(config: Experiment, where: ConfigDict) -> None:
    """Check a training run on a cluster.

    Raises:
      UserError: The hosts cannot read a file, or the mesh or the batch does not fit the slice.
    """
    from fire_lm.preflight.plan import check_plan, local_paths

    for name, path in local_paths(config).items():
        check_readable(name, path, where)
    check_plan(config.train, slice_of(where))


def data_buckets(config: Experiment, where: ConfigDict) -> set[str]:
    """Return the names of the buckets with the text of a run, apart from the cluster's bucket."""
    from fire_lm.preflight.plan import data_paths  # imports JAX

    names = {path.partition("://")[2].partition("/")[0] for path in data_paths(config)}
    return names - {where.bucket.partition("/")[0], ""}


def check_bindings(bindings: Sequence[str], where: ConfigDict) -> None:
    """Check the paths among the bindings of a job that reads the rest of its configuration itself.

    Raises:
      UserError: The hosts cannot read a path.
    """
    for binding in bindings:
        name, _, value = binding.partition("=")
        path = value.strip().strip("'\"")
        is_local = "://" not in path and not (name == "VOCABULARY" and path == "bytes")
        if name in ("DATA_DIR", "VOCABULARY") and is_local:
            check_readable(name, path.removeprefix("hf:"), where)


def check_readable(name: str, path: str, where: ConfigDict) -> None:
    """Raise UserError if the local path that `name` is bound to is not in the image."""
    if images.contains(path):
        return
    last = PurePosixPath(path).name
    raise UserError(
        f"{name} is {path}, a path on this machine: the hosts of {where.accelerator} cannot read "
        f"it\ncopy it to the bucket, and set --gin.{name}=gs://{where.bucket}/{last}"
    )
