"""The checkpoints of a run that writes: saved while training goes on, verified before a restore."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from fire_lm.checkpoints.layout import (
    available_steps,
    checkpoint_directory,
    first_line,
    unreadable,
)
from fire_lm.checkpoints.manifest import MANIFEST, damage, write_manifest
from fire_lm.checkpoints.position import PositionRestore, PositionSave, process_file
from fire_lm.errors import RunFailed, UserError


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """How often to save and what to keep; the last step of a run is always saved.

    Attributes:
      save_every: steps between checkpoints.
      keep_last: newest checkpoints kept.
      keep_every: checkpoints at multiples of this step are kept for good; None keeps none extra.
      failures_allowed: saves that may fail in a row while training goes on; the next one ends it.
    """

    save_every: int = 1000
    keep_last: int = 3
    keep_every: int | None = None
    failures_allowed: int = 2


class Checkpoints:
    """Of several processes, all call each method; process 0 alone writes the manifest, removes
    what is not kept, and speaks.
    """

    def __init__(self, workdir: str | epath.Path, policy: Checkpointing):
        self.workdir, self._policy = workdir, policy
        self._directory = checkpoint_directory(workdir)
        self._leads = jax.process_index() == 0
        self._orbax = _checkpointer()
        self._finishing: threading.Thread | None = None
        self._failures = 0  # since the last save that succeeded
        self._failure = ""  # the last of them, told

    def recover(self) -> int:
        """The newest whole step, verified; 0 if there is none.

        Damaged steps above it are set aside as `<step>.damaged`, so that they can be saved again;
        saves that never ended are removed.
        """
        newest = 0
        for step in reversed(available_steps(self.workdir)):
            problem = _any_process(
                damage(self._directory / str(step), jax.process_index(), jax.process_count())
            )
            if not problem:
                newest = step
                break
            if self._leads:
                aside = self._set_aside(step)
                print(
                    f"checkpoint {step} of {self.workdir} is damaged: {problem}; kept as "
                    f"{aside.name}, going on from the one before",
                    file=sys.stderr,
                )
        if self._leads:
            self._remove_unfinished()
        multihost_utils.sync_global_devices("checkpoints recovered")
        return newest

    def save(
        self,
        step: int,
        state: Any,
        position: bytes,
        info: Mapping[str, Any],
        *,
        shared_position: bool = False,
    ) -> None:
        """Starts an asynchronous save; `state` may be donated once this returns.

        With `shared_position`, all processes give the same position, and it is restored on any
        number of them.

        A save that fails is told and training may go on: the newest whole checkpoint stays.

        Raises:
          RunFailed: more saves in a row have failed than are allowed.
        """
        self.settle()
        if self._failures > self._policy.failures_allowed:
            raise RunFailed(self._failure)
        try:
            self._orbax.save(
                self._directory / str(step),
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state),
                    position=PositionSave(position, shared_position),
                    info=ocp.args.JsonSave(dict(info)),
                ),
            )
        except Exception as error:  # a bucket's errors are of many classes
            self._fail(step, error)
            return
        self._finishing = threading.Thread(target=self._finish, args=(step,))
        self._finishing.start()

    def restore(self, step: int, like: Any) -> tuple[Any, bytes, dict[str, Any]]:
        """(state, position, info) of a step; `like` has the shapes and shardings of the state."""
        written = [
            path.name for path in (self._directory / str(step) / "position").glob("process*")
        ]
        if written and process_file() not in written:
            raise UserError(
                f"checkpoint {step} of {self.workdir} was written by another number of processes: "
                f"their places in the data do not fit the {jax.process_count()} of now"
            )
        try:
            restored = self._orbax.restore(
                self._directory / str(step),
                args=ocp.args.Composite(
                    state=ocp.args.StandardRestore(like),
                    position=PositionRestore(),
                    info=ocp.args.JsonRestore(),
                ),
            )
        except Exception as error:  # Orbax raises bare Exceptions
            raise unreadable(self.workdir, step, error) from error
        return restored.state, restored.position, restored.info

    def reached_preemption(self, step: int) -> bool:
        """Whether the processes of this job have agreed to stop after `step`."""
        return jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step)

    def close(self) -> None:
        """Returns once every started save is on disk.

        Raises:
          RunFailed: the last one is not.
        """
        self.settle()
        self._orbax.close()
        if self._failures:
            raise RunFailed(self._failure)

    def _finish(self, step: int) -> None:
        """In a thread: waits until Orbax is done, and makes the step a whole one."""
        try:
            self._orbax.wait_until_finished()
            if self._leads:
                write_manifest(self._directory / str(step))
                self._prune()
        except Exception as error:
            self._fail(step, error)
        else:
            self._failures = 0

    def settle(self) -> None:
        """Waits for the save that is under way."""
        if self._finishing is not None:
            self._finishing.join()
            self._finishing = None

    def _fail(self, step: int, error: Exception) -> None:
        whole = available_steps(self.workdir)
        self._failures += 1
        # Orbax would raise this error again at a later save, or at the end.
        with contextlib.suppress(Exception):
            self._orbax.close()
        self._orbax = _checkpointer()
        self._failure = (
            f"checkpoint {step} of {self.workdir} could not be saved: {first_line(error)}\n"
            f"the newest whole one is {whole[-1] if whole else 'none'}"
        )
        if self._leads:
            print(f"{self._failure}; training goes on", file=sys.stderr)
            self._remove_unfinished()  # what was written may fill the disk

    def _prune(self) -> None:
        """Removes what the policy does not keep; never the newest."""
        steps, every = available_steps(self.workdir), self._policy.keep_every
        for step in steps[: -self._policy.keep_last]:
            if every is None or step % every:
                _remove(self._directory / str(step))

    def _set_aside(self, step: int) -> epath.Path:
        aside, copies = self._directory / f"{step}.damaged", 1
        while aside.exists():
            copies += 1
            aside = self._directory / f"{step}.damaged_{copies}"
        return (self._directory / str(step)).rename(aside)

    def _remove_unfinished(self) -> None:
        """Saves that never ended: Orbax's temporary folders, and steps without manifest."""
        if not self._directory.is_dir():
            return
        for path in self._directory.iterdir():
            step, _, rest = path.name.partition(".orbax-checkpoint-tmp")
            if step.isdigit() and (rest or path.name != step or not (path / MANIFEST).exists()):
                _remove(path)


def _checkpointer() -> ocp.AsyncCheckpointer:
    return ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler())


def _remove(step: epath.Path) -> None:
    """Its manifest first: what a kill leaves is no whole checkpoint."""
    (step / MANIFEST).unlink(missing_ok=True)
    step.rmtree()


def _any_process(problem: str | None) -> str:
    """The problem of the first process that has one, the same on all; empty if none has."""
    text = np.zeros(500, np.uint8)
    found = (problem or "").encode()[: text.size]
    text[: len(found)] = list(found)
    gathered = np.asarray(multihost_utils.process_allgather(text)).reshape(-1, text.size)
    said = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in gathered]
    return next(filter(None, said), "")
