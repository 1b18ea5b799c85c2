"""The layout of a run's checkpoint folder, and the selection of intact checkpoints."""

from __future__ import annotations

import functools
import logging
import re
import sys

from etils import epath

from fire_lm.checkpoints.manifest import MANIFEST, damage
from fire_lm.errors import RunFailed, UserError, first_line
from fire_lm.storage import children, in_bucket, literal, place, present


def parted(name: str) -> tuple[str, str, str]:
    """Split a name at the last @ of its last component into the run, the @, and what follows.

    Without an @ in the last component, the run is the name, and the other parts are empty.
    """
    folder, slash, last = name.rpartition("/")
    run, at, steps = last.rpartition("@")
    return (f"{folder}{slash}{run}", at, steps) if at else (name, "", "")


def names_a_folder(name: str) -> bool:
    """Return whether a name has an @ in its last component, but is an existing folder.

    Raises:
      UserError: The name also denotes an existing checkpoint of another run.
      RunFailed: A folder cannot be read.
    """
    run, at, steps = parted(name)
    if not at or not present(place(name)):
        return False
    there = available_steps(run)
    meant = {int(step) for step in steps.split(",") if _is_step(step)}
    if meant & set(there) or (there and steps == "all"):
        raise UserError(
            f"'{name}' is a folder, but also denotes checkpoints of {run}\n"
            f"write {name}/ for the folder; rename the folder to use the checkpoints"
        )
    return True


def split_run(run: str) -> tuple[str, int | None]:
    """Split `RUN[@STEP]` into the run and the step, which is None if no step is specified.

    Only an @ in the last component separates a step. An existing folder on a disk is always a run;
    a bucket is not asked.

    Raises:
      UserError: The text after the @ is not a step, or the name is ambiguous.
      RunFailed: A folder cannot be read.
    """
    name, at, step = parted(run)
    if not at or (not in_bucket(run) and names_a_folder(run)):
        return run, None
    if not _is_step(step):
        raise UserError(f"'{run}': a step number must follow the @, as in {name}@1000")
    return name, int(step)


def _is_step(text: str) -> bool:
    return bool(re.fullmatch("[0-9]{1,18}", text))


def checkpoint_directory(workdir: str | epath.Path) -> epath.Path:
    """Return the folder of a run's checkpoints.

    Raises:
      UserError: The arrays would be written to another folder.
    """
    path = literal(workdir)
    if in_bucket(path):  # absolute() would treat gs:// as a local folder
        return path / "checkpoints"
    path = path.absolute()
    if "\\" in path.as_posix():  # tensorstore would write to the folder a/b instead of a\b
        raise UserError(f"{path} cannot hold a run: its path must not contain a backslash")
    return path / "checkpoints"


def available_steps(workdir: str | epath.Path) -> list[int]:
    """Return, in ascending order, the steps of a run whose saves are complete."""
    return [step for step, ended in written_steps(workdir).items() if ended]


def written_steps(workdir: str | epath.Path) -> dict[int, bool]:
    """Map each existing step, in ascending order, to whether its save is complete.

    Raises:
      RunFailed: The folder cannot be listed, which must not look like a run without checkpoints.
    """
    paths = {
        int(path.name): path
        for path in children(checkpoint_directory(workdir))
        if re.fullmatch("0|[1-9][0-9]{0,17}", path.name)
    }
    ended = {step: has_ended(path) for step, path in sorted(paths.items())}
    return {step: whole for step, whole in ended.items() if whole or is_checkpoint(paths[step])}


def has_ended(path: epath.Path) -> bool:
    """Return whether the save into this folder is complete."""
    return present(path / MANIFEST)


def is_checkpoint(path: epath.Path) -> bool:
    """Return whether a folder was written by Orbax or fire_lm rather than by the user."""
    return any(present(path / name) for name in (MANIFEST, "_CHECKPOINT_METADATA", "state"))


def candidates(workdir: str | epath.Path, step: int | None) -> list[int]:
    """Return `[step]` or, if `step` is None, all steps of the run, starting with the newest.

    The checkpoints are not verified.

    Raises:
      UserError: The step does not exist (the message lists the existing steps), or the run has no
        checkpoint.
    """
    steps = available_steps(workdir)
    if not steps:
        raise UserError(
            f"{workdir} contains no complete checkpoint: check that it is the --workdir of a "
            "training run"
        )
    if step is not None and step not in steps:
        raise UserError(f"{workdir} has no checkpoint {step}: choose one of {steps}")
    return steps[::-1] if step is None else [step]


def choose_step(workdir: str | epath.Path, step: int | None) -> int:
    """Return `step` after verifying its checkpoint or, if `step` is None, the newest intact step.

    If `step` is None, damaged checkpoints are reported and skipped.

    Raises:
      UserError: See `candidates`.
      RunFailed: The checkpoint of `step` is damaged or, if `step` is None, every checkpoint is.
    """
    steps = available_steps(workdir)
    for candidate in candidates(workdir, step):
        problem = checkpoint_damage(workdir, candidate)
        if problem is None:
            return candidate
        damaged = f"checkpoint {candidate} of {workdir} is damaged"
        if step is not None:
            others = [other for other in steps if other != step]
            raise RunFailed(
                f"{damaged}: {problem}\nother checkpoints of the run: {others or 'none'}"
            )
        print(f"{damaged} and will be skipped: {problem}", file=sys.stderr)
    raise RunFailed(
        f"every checkpoint of {workdir} is damaged: {steps}\nrestore one from a copy, or train the "
        "run again"
    )


def checkpoint_damage(workdir: str | epath.Path, step: int) -> str | None:
    """Return a description of the damage to a checkpoint, or None if the checkpoint is intact."""
    return damage(checkpoint_directory(workdir) / str(step))


def unreadable(workdir: str | epath.Path, step: int, error: Exception) -> RunFailed:
    """Return the error for a checkpoint that cannot be read, unless `error` explains it."""
    hush_abandoned_work()
    if isinstance(error, RunFailed):
        return error
    return RunFailed(
        f"checkpoint {step} of {workdir} cannot be read: {first_line(error)}\nif it is damaged, "
        f"move {checkpoint_directory(workdir) / str(step)} away to use the previous one"
    )


def misfit(workdir: str | epath.Path, step: int, error: Exception) -> RunFailed:
    """Return the error for an intact checkpoint that does not match the model."""
    hush_abandoned_work()
    return RunFailed(
        f"checkpoint {step} of {workdir} does not match this model: {first_line(error)}\n"
        "use a different --workdir for a different model"
    )


@functools.cache
def hush_abandoned_work() -> None:
    """Silence the operations that Orbax abandons after an error, for the rest of the process.

    Otherwise, these reads and writes would print tracebacks after fire_lm's own error message.
    """
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    before = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: (
        None if "Event loop is closed" in str(unraisable.exc_value) else before(unraisable)
    )
