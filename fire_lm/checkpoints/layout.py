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
    """`RUN[@STEP]` -> (run, step); a run whose name holds an @ needs an explicit step."""
    name, at, step = run.rpartition("@")
    if not at:
        return run, None
    if not re.fullmatch("[0-9]{1,18}", step):
        raise UserError(f"'{run}': after @ comes a step number, as in {name}@1000")
    return name, int(step)


def checkpoint_directory(workdir: str | epath.Path) -> epath.Path:
    path = epath.Path(workdir)  # absolute() would take gs:// for a local folder
    return (path if "://" in path.as_posix() else path.absolute()) / "checkpoints"


def available_steps(workdir: str | epath.Path) -> list[int]:
    """Steps of a run whose save has ended, ascending."""
    return [step for step, ended in written_steps(workdir).items() if ended]


def written_steps(workdir: str | epath.Path) -> dict[int, bool]:
    """The existing steps, ascending, and whether the save of each has ended.

    Raises:
      RunFailed: the storage does not say, which must never look like a run without checkpoints.
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
    """Return whether Orbax or fire_lm wrote it; users may put other files beside checkpoints."""
    return any(present(path / name) for name in (MANIFEST, "_CHECKPOINT_METADATA", "state"))


def candidates(workdir: str | epath.Path, step: int | None) -> list[int]:
    """`step` alone, or for None all that the run has, the newest first; not verified.

    Raises:
      UserError: no such step; lists the existing ones.
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
    """`step` if the run has it, its newest for None; verified: what is damaged is told and, where
    none is asked for, left out.

    Raises:
      UserError: no such step; lists the existing ones. RunFailed: `step`, or each, is damaged.
    """
    steps = available_steps(workdir)
    for candidate in candidates(workdir, step):
        problem = checkpoint_damage(workdir, candidate)
        if problem is None:
            return candidate
        told = f"checkpoint {candidate} of {workdir} is damaged: {problem}"
        if step is not None:
            raise RunFailed(f"{told}\nthe run has {[other for other in steps if other != step]}")
        print(f"{told}: skipped", file=sys.stderr)
    raise RunFailed(f"every checkpoint of {workdir} is damaged: {steps}")


def checkpoint_damage(workdir: str | epath.Path, step: int) -> str | None:
    """Describe the damage of an existing checkpoint; None if it is intact."""
    return damage(checkpoint_directory(workdir) / str(step))


def unreadable(workdir: str | epath.Path, step: int, error: Exception) -> RunFailed:
    hush_abandoned_work()
    return RunFailed(
        f"checkpoint {step} of {workdir} cannot be read: {first_line(error)}\nif it is damaged, "
        f"move {checkpoint_directory(workdir) / str(step)} away to use the one before it"
    )


def misfit(workdir: str | epath.Path, step: int, error: Exception) -> RunFailed:
    """The error for an intact checkpoint that does not fit."""
    hush_abandoned_work()
    return RunFailed(
        f"checkpoint {step} of {workdir} does not fit this model: {first_line(error)}\n"
        "use a different --workdir for a different model"
    )


@functools.cache
def hush_abandoned_work() -> None:
    """After an error Orbax abandons its other reads and writes, whose ends would print tracebacks
    over our message, for as long as the process lives."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    before = sys.unraisablehook
    sys.unraisablehook = lambda found: (
        None if "Event loop is closed" in str(found.exc_value) else before(found)
    )
