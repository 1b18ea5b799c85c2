"""The layout of a run's checkpoints, and which of them are intact."""

from __future__ import annotations

import functools
import logging
import re
import sys

from etils import epath

from fire_lm.checkpoints.manifest import MANIFEST, damage
from fire_lm.errors import RunFailed, UserError, first_line
from fire_lm.storage import children, present


def split_run(run: str) -> tuple[str, int | None]:
    """Split `RUN[@STEP]` into (run, step); a run with an @ in its name needs an explicit step."""
    name, at, step = run.rpartition("@")
    if not at:
        return run, None
    if not re.fullmatch("[0-9]{1,18}", step):
        raise UserError(f"'{run}': a step number must follow the @, as in {name}@1000")
    return name, int(step)


def checkpoint_directory(workdir: str | epath.Path) -> epath.Path:
    """Return the folder of a run's checkpoints."""
    path = epath.Path(workdir)  # absolute() would treat gs:// as a local folder
    return (path if "://" in path.as_posix() else path.absolute()) / "checkpoints"


def available_steps(workdir: str | epath.Path) -> list[int]:
    """Return the steps of a run whose save has ended, ascending."""
    return [step for step, ended in written_steps(workdir).items() if ended]


def written_steps(workdir: str | epath.Path) -> dict[int, bool]:
    """Return the existing steps, ascending, and whether the save of each has ended.

    Raises:
      RunFailed: The storage fails, which must never look like a run without checkpoints.
    """
    paths = {
        int(path.name): path
        for path in children(checkpoint_directory(workdir))
        if re.fullmatch("0|[1-9][0-9]{0,17}", path.name)
    }
    ended = {step: has_ended(path) for step, path in sorted(paths.items())}
    return {step: whole for step, whole in ended.items() if whole or is_checkpoint(paths[step])}


def has_ended(path: epath.Path) -> bool:
    """Return whether the save into this folder has ended."""
    return present(path / MANIFEST)


def is_checkpoint(path: epath.Path) -> bool:
    """Return whether Orbax or fire_lm wrote this folder; users may add other files beside it."""
    return any(present(path / name) for name in (MANIFEST, "_CHECKPOINT_METADATA", "state"))


def candidates(workdir: str | epath.Path, step: int | None) -> list[int]:
    """Return `step` alone, or for None all steps of the run, newest first, without verifying them.

    Raises:
      UserError: There is no such step; the message lists the existing ones.
    """
    steps = available_steps(workdir)
    if not steps:
        raise UserError(
            f"{workdir} holds no complete checkpoint: is it the --workdir of a pretrain run?"
        )
    if step is not None and step not in steps:
        raise UserError(f"{workdir} has no checkpoint {step}, only {steps}")
    return steps[::-1] if step is None else [step]


def choose_step(workdir: str | epath.Path, step: int | None) -> int:
    """Return `step` after verifying it, or for None the newest intact step.

    With None, damaged checkpoints are reported and skipped.

    Raises:
      UserError: There is no such step; the message lists the existing ones.
      RunFailed: `step`, or with None every checkpoint, is damaged.
    """
    steps = available_steps(workdir)
    for candidate in candidates(workdir, step):
        problem = checkpoint_damage(workdir, candidate)
        if problem is None:
            return candidate
        damaged = f"checkpoint {candidate} of {workdir} is damaged: {problem}"
        if step is not None:
            others = [other for other in steps if other != step]
            raise RunFailed(f"{damaged}\nother checkpoints of the run: {others}")
        print(f"{damaged}: skipped", file=sys.stderr)
    raise RunFailed(f"every checkpoint of {workdir} is damaged: {steps}")


def checkpoint_damage(workdir: str | epath.Path, step: int) -> str | None:
    """Return a description of an existing checkpoint's damage, or None if it is intact."""
    return damage(checkpoint_directory(workdir) / str(step))


def unreadable(workdir: str | epath.Path, step: int, error: Exception) -> RunFailed:
    """Return the error for a checkpoint that cannot be read."""
    hush_abandoned_work()
    return RunFailed(
        f"checkpoint {step} of {workdir} cannot be read: {first_line(error)}\nif it is damaged, "
        f"move {checkpoint_directory(workdir) / str(step)} away to use the previous one"
    )


def misfit(workdir: str | epath.Path, step: int, error: Exception) -> RunFailed:
    """Return the error for an intact checkpoint that does not fit the model."""
    hush_abandoned_work()
    return RunFailed(
        f"checkpoint {step} of {workdir} does not fit this model: {first_line(error)}\n"
        "use a different --workdir for a different model"
    )


@functools.cache
def hush_abandoned_work() -> None:
    """Silence the operations that Orbax abandons after an error, for the rest of the process.

    When these reads and writes end, they would print tracebacks over our message.
    """
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    before = sys.unraisablehook
    sys.unraisablehook = lambda found: (
        None if "Event loop is closed" in str(found.exc_value) else before(found)
    )
