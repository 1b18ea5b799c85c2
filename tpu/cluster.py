"""Clusters: one file per slice under `clusters/`, each a locked ConfigDict.

Nothing here says what is trained, and nothing in gin says where.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from fire_lm.errors import UserError, nearest
from fire_lm.hardware.slices import Slice, parse_slice

FOLDER = Path(__file__).parent / "clusters"
_REQUIRED = ("project", "zone", "bucket", "accelerator", "image")


def base() -> ConfigDict:
    """Every field there is; a file in `clusters/` sets those of its slice."""
    config = ConfigDict(
        {
            "project": "",  # which pays
            "bucket": "",  # for runs: gs://BUCKET/runs/NAME; in the region of `zone`
            "image": "",  # REGION-docker.pkg.dev/PROJECT/REPOSITORY/fire_lm:TAG
            "zone": "",
            "accelerator": "",  # v4-256; 2xv4-128 for two slices
            "spot": True,  # cheaper, and may be taken away at any time
            "retries": 20,  # a job's starts over after a failure, and slices after one that is lost
            "service_account": "",  # of the hosts; the project's default where empty
            "gke_context": "",  # kubectl's, of a GKE cluster; queued resources where empty
        }
    )
    return config.lock()


def load(name: str, overrides: Sequence[str] = ()) -> ConfigDict:
    """The cluster file `name` (in `clusters/`, or a path), then `FIELD=VALUE` of `overrides`.

    Raises:
      UserError: there is no such file or field, a value of another type, or a field left empty.
    """
    path = Path(name) if name.endswith(".py") else FOLDER / f"{name}.py"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in FOLDER.glob("*.py") if p.stem not in _NO_SLICE))
        raise UserError(f"--cluster={name}: there is no {path}\nname a file, or one of {there}")
    spec = importlib.util.spec_from_file_location(f"cluster_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # a .py file has them
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    try:
        config: ConfigDict = module.get_config()
    except (AttributeError, KeyError, TypeError) as error:  # of ml_collections
        raise UserError(f"{path}: {str(error).partition(chr(10))[0]}") from error
    for override in overrides:
        _override(config, override)
    empty = [field for field in _REQUIRED if not config[field]]
    if empty:
        raise UserError(
            f"the cluster {name} does not say its {', '.join(empty)}\n"
            f"set it in {path} or clusters/site.py, or add --cluster.{empty[0]}=..."
        )
    config.bucket = config.bucket.removeprefix("gs://").rstrip("/")
    if not re.fullmatch(r"[a-z0-9][-a-z0-9._]*(/[-\w./]+)?", config.bucket):
        raise UserError(f"--cluster.bucket={config.bucket} is not a valid bucket name")
    slice_of(config)
    return config


_NO_SLICE = {"__init__", "site"}


def _override(config: ConfigDict, text: str) -> None:
    field, _, value = text.partition("=")
    if field not in config:
        near = nearest(field, list(config))
        hint = f"did you mean {near}?" if near else f"there are {', '.join(config)}"
        raise UserError(f"--cluster.{field}: a cluster has no such field; {hint}")
    old = config[field]
    if isinstance(old, bool):
        if value.lower() not in ("true", "false"):
            raise UserError(f"--cluster.{field}={value}: say true or false")
        config[field] = value.lower() == "true"
    elif isinstance(old, int):
        if not (value.isascii() and value.isdigit()):
            raise UserError(f"--cluster.{field}={value} is not a whole number")
        config[field] = int(value)
    else:
        config[field] = value


def slice_of(config: ConfigDict) -> Slice:
    return parse_slice(config.accelerator)


def region_of(config: ConfigDict) -> str:
    """`us-central2` of the zone `us-central2-b`."""
    return config.zone.rpartition("-")[0]


def run_directory(config: ConfigDict, name: str) -> str:
    return f"gs://{config.bucket}/runs/{name}"
