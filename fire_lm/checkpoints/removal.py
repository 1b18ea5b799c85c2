"""Removal of checkpoints, and of what interrupted saves and removals left behind."""

from __future__ import annotations

import re

from etils import epath

from fire_lm.checkpoints.manifest import MANIFEST, NEVER_ENDED
from fire_lm.storage import children, in_bucket

_UNFINISHED = ".orbax-checkpoint-tmp"
_REMOVING = ".removing"
_LEFTOVER = re.compile(f"[0-9]+({re.escape(_UNFINISHED)}.*|{re.escape(_REMOVING)})")
_ASIDE = re.compile(r"[0-9]+\.unfinished(_[0-9]+)?")


def remove(step: epath.Path) -> None:
    """Remove a checkpoint so that an interruption cannot leave a seemingly complete one behind.

    The folder is renamed first, so that the next start removes any remaining files. In a bucket,
    where renaming would copy every object, the manifest is removed first instead.
    """
    if in_bucket(step):
        (step / MANIFEST).unlink(missing_ok=True)
        step.rmtree()
        return
    leaving = step.with_name(f"{step.name}{_REMOVING}")
    if leaving.exists():
        leaving.rmtree()
    step.rename(leaving).rmtree()


def set_aside(path: epath.Path, problem: str) -> str:
    """Rename or remove a checkpoint that has a problem, and return a description of the outcome."""
    name = f"{path.name}.damaged"
    if problem == NEVER_ENDED:
        if in_bucket(path):
            remove(path)
            return "removed"
        name = f"{path.name}.unfinished"
    aside, copies = path.with_name(name), 1
    while aside.exists():
        copies += 1
        aside = path.with_name(f"{name}_{copies}")
    path.rename(aside)
    return f"kept as {aside.name}"


def unfinished_set_aside(directory: epath.Path) -> list[epath.Path]:
    """Return the unfinished checkpoints that `set_aside` has renamed.

    They are not needed once a later save is complete.
    """
    return [path for path in children(directory) if _ASIDE.fullmatch(path.name)]


def remove_leftovers(directory: epath.Path) -> None:
    """Remove the folders that interrupted saves and interrupted removals left behind."""
    for path in children(directory):
        if _LEFTOVER.fullmatch(path.name):
            path.rmtree()
