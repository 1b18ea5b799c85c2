"""Checkpoints whose arrays were not merged into one store, which are completed when they are read.

Each process writes its arrays into `state/ocdbt.process_<index>/`, and the merge then writes
`state/manifest.ocdbt` and `state/d/`, through which the arrays are read. Orbax finds the parts with
a pattern that contains the path of the checkpoint, and reports success if it finds none. Earlier
versions of fire_lm passed it the path as it was, so a folder such as `run [1]` has checkpoints
whose merge never took place. Their arrays are complete.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable
from typing import TypeVar

import jax
import orbax.checkpoint as ocp
from etils import epath

from fire_lm.checkpoints.layout import hush_abandoned_work
from fire_lm.checkpoints.manifest import add_to_manifest
from fire_lm.errors import RunFailed, first_line
from fire_lm.storage import children, in_bucket, present

_MERGED = "manifest.ocdbt"
_PART = "ocdbt.process_"
_Result = TypeVar("_Result")


def opened(step: epath.Path, read: Callable[[], _Result]) -> _Result:
    """Return `read()`; if that fails because the store was never merged, merge it and read again.

    Raises:
      RunFailed: The store was never merged, and cannot be merged now.
      Exception: Any exception of `read`.
    """
    if not in_bucket(step):  # there, to look costs a request at every restore
        merge(step)
        return read()
    try:
        return read()
    except Exception:
        hush_abandoned_work()
        if not merge(step):
            raise
        return read()


def merge(step: epath.Path) -> bool:
    """Merge the store of an intact checkpoint unless it is merged, and return whether it was not.

    Raises:
      RunFailed: The store cannot be merged, for example because the folder is not writable.
    """
    state = step / "state"
    if present(state / _MERGED):
        return False
    parts = [path for path in children(state) if path.name.startswith(_PART)]
    if not parts:
        return False
    try:
        asyncio.run(
            ocp.type_handlers.merge_ocdbt_per_process_files(
                state, ocp.type_handlers.get_ts_context(use_ocdbt=True), use_zarr3=False
            )
        )
        if jax.process_index() == 0:
            add_to_manifest(step)
            print(
                f"checkpoint {step.name} of {step.parent.parent} has been completed: an earlier "
                "version had not merged its arrays",
                file=sys.stderr,
            )
    except Exception as error:  # tensorstore raises many classes of errors
        raise RunFailed(
            f"checkpoint {step.name} of {step.parent.parent} is incomplete: an earlier version did "
            f"not merge its arrays, and this failed now: {first_line(error)}\n"
            f"{_remedy(state, parts)}"
        ) from error
    return True


def _remedy(state: epath.Path, parts: list[epath.Path]) -> str:
    if len(parts) > 1 or in_bucket(state):
        return "run this command where the folder can be written"
    files = " ".join(shlex.quote(f"{parts[0]}/{name}") for name in (_MERGED, "d"))
    copy = f"cp -r {files} {shlex.quote(f'{state}/')}"
    return f"run this command where the folder can be written, or first `{copy}`"
