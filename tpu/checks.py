"""What a launch refuses before it asks Google Cloud for anything, as does a dry run."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
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


def check_run(config: Experiment, where: ConfigDict) -> tuple[int, ...]:
    """Check a training run on a cluster, and on the fewest slices on which it may continue.

    Returns:
      The numbers of slices on which the run can continue; none without `min_slices`.

    Raises:
      UserError: The hosts cannot read a file or import a module, or the mesh or the batch does not
        fit the slice.
    """
    from fire_lm.preflight.plan import check_plan, local_paths, slices_that_fit

    for name, path in local_paths(config):
        check_readable(name, path, where)
    for module in config.imports:
        check_importable(module, where)
    run = config.train
    check_plan(run, slice_of(where))
    return slices_that_fit(run, slice_of(where), where.min_slices) if where.min_slices else ()


def data_buckets(paths: Iterable[str], where: ConfigDict) -> set[str]:
    """Return the names of the buckets with the data of runs, apart from the cluster's bucket."""
    names = {path.partition("://")[2].partition("/")[0] for path in paths}
    return names - {where.bucket.partition("/")[0], ""}


def check_here(config: Experiment) -> None:
    """Raise UserError if a path on this machine, which a run here would read, does not exist."""
    # These modules import JAX.
    from fire_lm.preflight.plan import local_paths
    from fire_lm.storage import in_bucket

    instead = "correct it, or write the data first with `fire-lm corpus`: docs/data.md"
    for name, path in local_paths(config):
        if name == "DATA_DIR" and config.train.data.exercises:
            continue  # made while training; the binding serves sweeps of text only
        run = path.rpartition("@")[0]  # of a RUN@STEP
        if not (Path(path).exists() or (run and Path(run).exists())):
            raise UserError(f"{name} is {path}, but there is nothing at this path\n{instead}")
    for text in getattr(config.train.data, "parts", ()):
        folder = getattr(text, "data_dir", "")
        if folder and not in_bucket(folder) and not text.known_label():
            missing = f"there is no data set {text.title} in it"
            raise UserError(f"DATA_DIR is {folder}, but {missing}\n{instead}")


def check_manifest_is_used(where: ConfigDict) -> None:
    """Raise UserError if a cluster is not one of GKE, where alone a manifest is used."""
    if not where.gke_context:
        raise UserError(
            "--cluster.gke_context is empty, so `pretrain` requests queued resources and uses no "
            "manifest\nset it to your cluster's context, which `kubectl config get-contexts` lists"
        )


def check_context(where: ConfigDict) -> None:
    """Raise UserError if the context of a GKE cluster is still that of our cluster file."""
    if "PROJECT" in where.gke_context:
        raise UserError(
            f"--cluster.gke_context is {where.gke_context}: PROJECT is a placeholder\n"
            "set your cluster's context in the cluster file: `kubectl config get-contexts`"
        )


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


def check_importable(module: str, where: ConfigDict) -> None:
    """Raise UserError if the image contains neither an imported module nor its installed package.

    Hosts import packages from the root of the repository, and those of requirements.lock. An image
    of the user's own, which has a tag, may contain others.
    """
    if images.has_tag(where.image):
        return
    path = module.replace(".", "/")
    if images.contains(f"{path}.py") or images.contains(f"{path}/__init__.py"):
        return
    lines = (images.ROOT / "requirements.lock").read_text().splitlines()
    locked = {line.partition("==")[0] for line in lines}
    installed = importlib.metadata.packages_distributions().get(module.partition(".")[0], [])
    if any(re.sub(r"[-_.]+", "-", name).lower() in locked for name in installed):
        return
    raise UserError(
        f"{module} is imported, but the hosts of {where.accelerator} do not have it\ncopy its "
        f"package into {images.ROOT}, beside fire_lm, so that the image contains it"
    )
