"""The checkpoints of a training run: saved while training continues, verified before a restore."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from fire_lm.checkpoints.fingerprints import changed_arrays, fingerprints, in_words
from fire_lm.checkpoints.layout import (
    available_steps,
    checkpoint_directory,
    has_ended,
    hush_abandoned_work,
    is_checkpoint,
    unreadable,
    written_steps,
)
from fire_lm.checkpoints.manifest import (
    MANIFEST,
    NEVER_ENDED,
    damage,
    write_manifest,
)
from fire_lm.checkpoints.orbax_checkpointer import orbax_checkpointer
from fire_lm.checkpoints.params import check_arrays
from fire_lm.checkpoints.policy import Checkpointing
from fire_lm.checkpoints.position import PositionRestore, PositionSave, process_file
from fire_lm.errors import RunFailed, UserError, first_line
from fire_lm.processes import agreed, exchanged
from fire_lm.storage import LeaseLost, children, in_bucket, present

_UNFINISHED = ".orbax-checkpoint-tmp"
_REMOVING = ".removing"
_LEFTOVER = re.compile(f"[0-9]+({re.escape(_UNFINISHED)}.*|{re.escape(_REMOVING)})")
_ASIDE = re.compile(r"[0-9]+\.unfinished(_[0-9]+)?")  # of no use once a later save has ended
_round = itertools.count()  # of what the processes tell each other; they all count alike


class Checkpoints:
    """Of several processes, all call each method; process 0 alone writes the manifest, removes
    what is not kept, and speaks. A save that fails in one of them has failed in all.
    """

    def __init__(
        self,
        workdir: str | epath.Path,
        policy: Checkpointing,
        ranked: Callable[[], Sequence[int]] = lambda: (),
        still_ours: Callable[[], None] = lambda: None,
    ):
        """
        Args:
          ranked: gives the steps that have been evaluated, the best first.
          still_ours: raises LeaseLost if another process has taken over the run directory.
        """
        self.workdir, self._policy, self._ranked = workdir, policy, ranked
        self._still_ours, self._directory = still_ours, checkpoint_directory(workdir)
        self._leads = jax.process_index() == 0
        self._orbax = orbax_checkpointer(self._directory)
        self._finishing: threading.Thread | None = None
        self._failures = 0  # since the last save that succeeded
        self._failure = ""  # the message of the last of them
        self._damaged: dict[int, str] = {}  # steps that only their restore has shown to be damaged

    def recover(self) -> int:
        """The newest whole step, verified; 0 if none has ever been saved.

        Later steps are reported and set aside, so that they can be saved again: damaged
        steps as `<step>.damaged`, those whose save never ended as `<step>.unfinished`, which a
        bucket, where this would copy object by object, does not keep. What a kill left of a save
        or a removal under way is removed.

        To be called once the run directory is ours: process 0 lists the steps for all.

        Raises:
          RunFailed: there are steps, but none is whole; or the storage cannot be read.
        """
        written: list[tuple[int, bool]] = agreed(
            list(written_steps(self.workdir).items()) if self._leads else []
        )
        problems: dict[int, str] = {}
        for step, _ in reversed(written):
            found = self._damaged.get(step) or damage(
                self._directory / str(step), jax.process_index(), jax.process_count()
            )
            problem = _problem_of_any(next(_round), found)
            if not problem:
                break
            problems[step] = problem
        else:
            step = 0
        if not step and problems and list(problems.values()) != [NEVER_ENDED]:
            told = "; ".join(f"{number}: {problem}" for number, problem in problems.items())
            raise RunFailed(
                f"{self.workdir} has no intact checkpoint ({told})\n"
                f"to start over, move {self._directory} away"
            )
        self._damaged.clear()
        if self._leads:
            self._still_ours()
            resuming = f"resuming from step {step}" if step else "starting from the beginning"
            for number, problem in problems.items():
                what = (
                    "incomplete (its save never finished)"
                    if problem == NEVER_ENDED
                    else f"damaged ({problem})"
                )
                print(
                    f"checkpoint {number} of {self.workdir} is {what}: "
                    f"{self._set_aside(number, problem)}; {resuming}",
                    file=sys.stderr,
                )
            for number, ended in written:
                path = self._directory / str(number)
                if number < step and not ended and damage(path) == NEVER_ENDED:
                    _remove(path)  # the rest of a removal, or of a save, that was cut short
            self._remove_leftovers()
        return step

    def save(
        self,
        step: int,
        state: Any,
        position: bytes,
        info: Mapping[str, Any],
        *,
        shared_position: bool = False,
    ) -> None:
        """Start an asynchronous save; `state` may be donated once this returns.

        With `shared_position`, all processes give the same position, and it is restored on any
        number of them.

        A failed save is reported and training may continue; the newest intact checkpoint stays. If
        no more may fail, this waits for the end of the save.

        Raises:
          RunFailed: more saves in a row have failed than are allowed.
          LeaseLost: another process has taken over the run directory.
        """
        self.settle()
        arrays: dict[str, jax.Array] = {}
        try:
            self._make_folder(step)
            if in_bucket(self._directory):  # on their way before the state is donated
                arrays = fingerprints(state)
            self._orbax.save(
                self._directory / str(step),
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state),
                    position=PositionSave(position, shared_position),
                    info=ocp.args.JsonSave(dict(info)),
                ),
            )
            error: Exception | None = None
        except LeaseLost:
            raise
        except Exception as found:  # a bucket's errors are of many classes
            error = found
        last_chance = self._failures == self._policy.failures_allowed
        self._finishing = threading.Thread(
            target=self._finish, args=(step, next(_round), error, arrays)
        )
        self._finishing.start()
        if last_chance:
            self.settle()
            if self._failures:
                raise RunFailed(self._failure)

    def restore(self, step: int, like: Any) -> tuple[Any, bytes, dict[str, Any]] | None:
        """(state, position, info) of a step; `like` has the shapes and shardings of the state.

        Returns:
          None if an array is not what was saved: `recover` then sets the step aside.

        Raises:
          RunFailed: it cannot be read, or is of another model.
        """
        written = [
            path.name
            for path in children(self._directory / str(step) / "position")
            if path.name.startswith("process")
        ]
        if written and process_file() not in written:
            raise UserError(
                f"checkpoint {step} of {self.workdir} was written by another number of processes: "
                f"their places in the data do not fit this job's {jax.process_count()}"
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
            # The files are intact, so either the arrays do not fit, or they could not be read.
            check_arrays(self.workdir, step, like)
            raise unreadable(self.workdir, step, error) from error
        if changed := changed_arrays(self._directory / str(step), restored.state):
            self._damaged[step] = f"{changed[0]} is not what was saved"
            return None
        return restored.state, restored.position, restored.info

    def reached_preemption(self, step: int) -> bool:
        """Return whether the processes of this job have agreed to stop after `step`."""
        return jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step)

    def newest(self) -> int:
        """The newest whole step, once the save under way has ended; 0 if there is none."""
        self.settle()
        return max(available_steps(self.workdir), default=0)

    def settle(self) -> None:
        """Wait for the save under way."""
        if self._finishing is not None:
            self._finishing.join()
            self._finishing = None

    def close(self) -> None:
        """Return once every started save is on disk.

        Raises:
          RunFailed: the last one is not, and this is not the end of another failure.
        """
        self.settle()
        self._orbax.close()
        if self._failures and sys.exc_info()[0] is None:
            raise RunFailed(self._failure)

    def _make_folder(self, step: int) -> None:
        """Process 0 makes the folder of a save, before Orbax has all wait for each other: of an
        error in this, Orbax would tell process 0 alone, and the others would wait for ever.

        Raises:
          RunFailed: on all processes, if it exists or cannot be made.
        """
        problem = None
        if self._leads:
            try:
                self._still_ours()
                path = self._directory / str(step)
                if present(path):
                    raise RunFailed(f"{path} already exists")
                asyncio.run(self._orbax.get_temporary_path(path).create())
            except LeaseLost:
                raise
            except Exception as error:
                problem = first_line(error)
        if told := _problem_of_any(next(_round), problem):
            raise RunFailed(told)

    def _finish(
        self, step: int, number: int, error: Exception | None, arrays: Mapping[str, jax.Array]
    ) -> None:
        """Wait in a thread until Orbax is done, then complete the checkpoint."""
        began = error is None or "already exists" not in str(error)
        try:
            if error is None:
                self._orbax.wait_until_finished()
                if self._leads:
                    self._still_ours()
                    write_manifest(self._directory / str(step), in_words(arrays))
        except Exception as found:
            error = found
        try:
            problem = _problem_of_any(number, None if error is None else first_line(error))
        except jax.errors.JaxRuntimeError as found:  # a process did not answer in time
            problem = first_line(found)
        if problem:
            self._fail(step, problem, began, isinstance(error, LeaseLost))
            return
        self._failures = 0
        if self._leads:
            try:
                self._prune()
            except Exception as found:
                print(f"no checkpoint removed: {first_line(found)}", file=sys.stderr)

    def _fail(self, step: int, problem: str, began: bool, lost: bool) -> None:
        """`began`: whether the existing files of the step were written by this save; `lost`: the
        run directory is another's, which ends the run at its next save."""
        self._failures += 1
        self._failure = f"checkpoint {step} of {self.workdir} could not be saved: {problem}"
        hush_abandoned_work()
        with contextlib.suppress(Exception):  # Orbax would raise this error again at a later save
            self._orbax.close()
        self._orbax = orbax_checkpointer(self._directory)
        if not self._leads:
            return
        with contextlib.suppress(Exception):  # the storage may refuse this as well
            self._failure += (
                "\nthe newest intact checkpoint is "
                f"{max(available_steps(self.workdir), default='none')}"
            )
        if self._failures <= self._policy.failures_allowed:
            print(f"{self._failure}{'' if lost else '; training continues'}", file=sys.stderr)
        with contextlib.suppress(Exception):
            self._still_ours()
            self._remove_leftovers()  # what was written may fill the disk
            path = self._directory / str(step)
            if began and not has_ended(path) and is_checkpoint(path):
                _remove(path)

    def _prune(self) -> None:
        """Remove what the policy does not keep; never the newest."""
        steps = available_steps(self.workdir)
        kept = self._policy.kept(steps, self._ranked)
        unkept = [self._directory / str(step) for step in sorted(set(steps) - kept)]
        aside = [path for path in children(self._directory) if _ASIDE.fullmatch(path.name)]
        if unkept or aside:
            self._still_ours()
        for path in unkept:
            _remove(path)
        for path in aside:
            path.rmtree()

    def _set_aside(self, step: int, problem: str) -> str:
        """Set a damaged checkpoint aside; returns what was done."""
        path, name = self._directory / str(step), f"{step}.damaged"
        if problem == NEVER_ENDED:
            if in_bucket(path):
                _remove(path)
                return "removed"
            name = f"{step}.unfinished"
        aside, copies = self._directory / name, 1
        while aside.exists():
            copies += 1
            aside = self._directory / f"{name}_{copies}"
        path.rename(aside)
        return f"kept as {aside.name}"

    def _remove_leftovers(self) -> None:
        """Remove what interrupted saves (Orbax's temporary folders) and removals left behind."""
        for path in children(self._directory):
            if _LEFTOVER.fullmatch(path.name):
                path.rmtree()


def _remove(step: epath.Path) -> None:
    """What a kill leaves is no whole checkpoint. It goes by another name, so that the next start
    removes the rest; a bucket, which would rename file by file, loses the manifest first."""
    if in_bucket(step):
        (step / MANIFEST).unlink(missing_ok=True)
        step.rmtree()
        return
    leaving = step.with_name(f"{step.name}{_REMOVING}")
    if leaving.exists():
        leaving.rmtree()
    step.rename(leaving).rmtree()


def _problem_of_any(number: int, problem: str | None) -> str:
    """The problem of this process and of the others, the same text on all; empty without any."""
    found = exchanged(problem or "", key=f"checkpoints/{number}")
    problems = {index: words for index, words in enumerate(found) if words}
    if len(set(problems.values())) > 1:  # one may fail, and others by waiting for it
        return "; ".join(f"process {index}: {words}" for index, words in problems.items())
    return next(iter(problems.values()), "")
