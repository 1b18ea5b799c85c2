"""Cluster files: each file in `clusters/` describes a slice as a locked ConfigDict.

A cluster never determines what is trained, and gin never determines where it is trained.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from fire_lm.errors import UserError, nearest
from fire_lm.hardware.slices import Slice, parse_slice
from tpu.placeholders import check_filled_in

FOLDER = Path(__file__).parent / "clusters"
_REQUIRED = ("project", "zone", "bucket", "accelerator", "image")


def base() -> ConfigDict:
    """Return a configuration with all fields; the files in `clusters/` set the values."""
    config = ConfigDict(
        {
            "project": "",  # the project that is billed
            "bucket": "",  # for gs://BUCKET/runs/NAME; should be in the region of `zone`
            "image": "",  # REGION-docker.pkg.dev/PROJECT/REPOSITORY/fire_lm:TAG
            "zone": "",
            "accelerator": "",  # such as v4-256, or 2xv4-128 for two slices
            "spot": True,  # whether TPUs are spot TPUs: cheaper, but may be preempted at any time
            "retries": 20,  # limit on restarts after failures, and on new requests for lost slices
            "min_slices": 0,  # fewest slices on which a job continues if others are lost; 0 for all
            "service_account": "",  # account of the hosts; empty for the project's default
            "gke_context": "",  # kubectl context of a GKE cluster; empty for queued resources
            "price_per_chip_hour": 0.0,  # in dollars, for estimates of cost; 0 if unknown
            "check_zone": True,  # whether the zone must be in our table (zones.py)
            "far_bucket": False,  # whether the bucket may be outside the region of the TPUs
        }
    )
    return config.lock()


def load(name: str, overrides: Sequence[str] = ()) -> ConfigDict:
    """Load a cluster file and apply overrides.

    Args:
      name: The name of a file in `clusters/`, or a path.
      overrides: Overrides of the form `FIELD=VALUE`.

    Raises:
      UserError: The file or a field does not exist, a value has the wrong type or contains a
        placeholder, or a required field is empty.
    """
    path = Path(name) if name.endswith(".py") else FOLDER / f"{name}.py"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in FOLDER.glob("*.py") if p.stem not in _NO_SLICE))
        raise UserError(f"--cluster={name}: there is no {path}\npass a file, or one of {there}")
    spec = importlib.util.spec_from_file_location(f"cluster_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # This holds for every .py file.
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    try:
        config: ConfigDict = module.get_config()
    except Exception as error:  # ml_collections and the user's own code raise various errors.
        raise UserError(f"{path}: {str(error).partition(chr(10))[0]}") from error
    if not isinstance(config, ConfigDict):
        kind = type(config).__name__
        raise UserError(f"{path}: get_config returns {kind}: it must return a ConfigDict of site()")
    if missing := sorted({*base()} - {*config}):
        raise UserError(f"{path}: get_config lacks {', '.join(missing)}: begin with site()")
    for override in overrides:
        _override(config, override)
    empty = [field for field in _REQUIRED if not config[field]]
    if empty:
        raise UserError(
            f"the cluster {name} does not define: {', '.join(empty)}\n"
            f"add values to {path} or clusters/site.py, or pass --cluster.{empty[0]}=..."
        )
    for field, value in config.items():
        if field != "gke_context":  # `check_context`: it is in our cluster file, which is no slip
            check_filled_in(f"--cluster.{field}", str(value))
    config.bucket = config.bucket.removeprefix("gs://").rstrip("/")
    if not re.fullmatch(r"[a-z0-9][-a-z0-9._]*(/[-\w./]+)?", config.bucket):
        raise UserError(
            f"--cluster.bucket={config.bucket} is not a valid bucket name: write BUCKET or "
            "BUCKET/FOLDER"
        )
    _check_slices(config)
    with config.unlocked():
        config.flags = (f"--cluster={name}", *(f"--cluster.{override}" for override in overrides))
    return config


def _check_slices(config: ConfigDict) -> None:
    count, least = slice_of(config).count, config.min_slices
    if not least:
        return
    if config.gke_context:
        raise UserError(
            f"--cluster.min_slices is {least}: it applies only to queued resources; on GKE, a job "
            "waits until all of its slices are back"
        )
    if least >= count:
        raise UserError(
            f"--cluster.min_slices is {least}: it must be less than the {count} of "
            f"{config.accelerator}, or 0"
        )


_NO_SLICE = {"__init__", "site"}


def _override(config: ConfigDict, text: str) -> None:
    field, _, value = text.partition("=")
    if field not in config:
        near = nearest(field, list(config))
        hint = f"did you mean {near}?" if near else f"its fields are {', '.join(config)}"
        raise UserError(f"--cluster.{field}: a cluster has no such field; {hint}")
    old = config[field]
    if isinstance(old, bool):
        if value.lower() not in ("true", "false"):
            raise UserError(f"--cluster.{field}={value}: set it to true or false")
        config[field] = value.lower() == "true"
    elif isinstance(old, int):
        if not (value.isascii() and value.isdigit()):
            raise UserError(f"--cluster.{field}={value} is not a whole number")
        config[field] = int(value)
    elif isinstance(old, float):
        config[field] = _price(field, value)
    else:
        config[field] = value


def _price(field: str, value: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(value) < math.inf:
            return float(value)
    raise UserError(f"--cluster.{field} is {value}: it must be a number of 0 or more")


def slice_of(config: ConfigDict) -> Slice:
    """Return the slice or slices of a cluster."""
    try:
        return parse_slice(config.accelerator)
    except UserError as error:
        raise UserError(str(error).replace("--slice=", "--cluster.accelerator=")) from error


def region_of(config: ConfigDict) -> str:
    """Return the region of the zone, such as `us-central2` for `us-central2-b`."""
    return config.zone.rpartition("-")[0]


def run_directory(config: ConfigDict, name: str) -> str:
    """Return the directory of the run `name` in the bucket."""
    return f"gs://{config.bucket}/runs/{name}"


def command(verb: str, config: ConfigDict, name: str = "") -> str:
    """Return a command for messages, which applies to the same cluster as this one."""
    words = ["python", "-m", "tpu", verb, *([name] if name else []), *config.flags]
    return f"`{shlex.join(words)}`"
