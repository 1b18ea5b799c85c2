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
_ASIDE = re.compile(r"[0-9]+\.unfinished(_[0-9]+)?")  # useless once a later save has ended
_round = itertools.count()  # numbers the exchanges between processes, equally on all of them


class Checkpoints:
    """The checkpoints of a run that is being trained.

    All processes of a job call each method. Only process 0 writes the manifest, removes what is not
    kept, and prints messages. A save that fails in one process has failed in all.
    """

    def __init__(
        self,
        workdir: str | epath.Path,
        policy: Checkpointing,
        ranked: Callable[[], Sequence[int]] = lambda: (),
        still_ours: Callable[[], None] = lambda: None,
    ):
        """Open the checkpoints of a run directory.

        Args:
          workdir: The run directory.
          policy: When to save and what to keep.
          ranked: Returns the evaluated steps, best first.
          still_ours: Raises LeaseLost if another process has taken over the run directory.
        """
        self.workdir, self._policy, self._ranked = workdir, policy, ranked
        self._still_ours, self._directory = still_ours, checkpoint_directory(workdir)
        self._leads = jax.process_index() == 0
        self._orbax = orbax_checkpointer(self._directory)
        self._finishing: threading.Thread | None = None
        self._failures = 0  # failed saves since the last successful one
        self._failure = ""  # the message of the last failure
        self._damaged: dict[int, str] = {}  # steps whose damage was found only by restoring them

    def recover(self) -> int:
        """Return the newest intact step after verifying it, or 0 if none has ever been saved.

        Later steps are reported and set aside, so that they can be saved again: damaged steps as
        `<step>.damaged`, and steps whose save never ended as `<step>.unfinished`. In a bucket the
        latter are removed, because renaming them would copy object by object. The remains of saves
        and removals that were interrupted by a kill are removed.

        This must be called after the run directory has been locked; process 0 lists the steps for
        all processes.

        Raises:
          RunFailed: There are steps, but none is intact, or the storage cannot be read.
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
            found = "; ".join(f"{number}: {problem}" for number, problem in problems.items())
            raise RunFailed(
                f"{self.workdir} has no intact checkpoint ({found})\n"
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
                    _remove(path)  # the remains of an interrupted removal or save
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

        With `shared_position`, all processes pass the same position, and it can be restored on any
        number of processes.

        A failed save is reported and training may continue; the newest intact checkpoint stays. If
        no further failure is allowed, this method waits for the end of the save.

        Raises:
          RunFailed: More consecutive saves have failed than are allowed.
          LeaseLost: Another process has taken over the run directory.
        """
        self.settle()
        arrays: dict[str, jax.Array] = {}
        try:
            self._make_folder(step)
            if in_bucket(self._directory):  # started before the state is donated
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
        except Exception as found:  # a bucket's errors have many classes
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
        """Restore the (state, position, info) of a step, with the shapes and shardings of `like`.

        Returns:
          The three items, or None if an array differs from what was saved; `recover` then sets the
          step aside.

        Raises:
          RunFailed: The checkpoint cannot be read, or belongs to another model.
          UserError: It was written by another number of processes.
        """
        written = [
            path.name
            for path in children(self._directory / str(step) / "position")
            if path.name.startswith("process")
        ]
        if written and process_file() not in written:
            raise UserError(
                f"checkpoint {step} of {self.workdir} was written by another number of processes: "
                f"its data positions do not fit this job's {jax.process_count()} processes"
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
            # The files are intact, so the arrays either do not fit or could not be read.
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
        """Wait for the save in progress, then return the newest complete step, or 0 without one."""
        self.settle()
        return max(available_steps(self.workdir), default=0)

    def settle(self) -> None:
        """Wait for the save in progress."""
        if self._finishing is not None:
            self._finishing.join()
            self._finishing = None

    def close(self) -> None:
        """Wait until every started save is on disk.

        Raises:
          RunFailed: The last save failed, unless another exception is already being raised.
        """
        self.settle()
        self._orbax.close()
        if self._failures and sys.exc_info()[0] is None:
            raise RunFailed(self._failure)

    def _make_folder(self, step: int) -> None:
        """Create the folder of a save on process 0, before Orbax synchronises the processes.

        Orbax would report an error here to process 0 only, and the others would wait forever.

        Raises:
          RunFailed: On all processes: the folder exists or cannot be created.
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
        if found := _problem_of_any(next(_round), problem):
            raise RunFailed(found)

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
        except jax.errors.JaxRuntimeError as found:  # a process did not respond in time
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
        """Report a failed save and remove its files.

        Args:
          step: The step of the save.
          problem: Why the save failed.
          began: Whether this save wrote the existing files of the step.
          lost: Whether another process has taken over the run directory, which ends the run at its
            next save.
        """
        self._failures += 1
        self._failure = f"checkpoint {step} of {self.workdir} could not be saved: {problem}"
        hush_abandoned_work()
        with contextlib.suppress(Exception):  # Orbax would raise this error again at a later save
            self._orbax.close()
        self._orbax = orbax_checkpointer(self._directory)
        if not self._leads:
            return
        with contextlib.suppress(Exception):  # the storage may fail here as well
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
        """Set a damaged checkpoint aside and return what was done."""
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
    """Remove a checkpoint such that a kill in between leaves nothing that counts as complete.

    The folder is renamed first, so that the next start removes the remains. In a bucket, where
    renaming works file by file, the manifest is removed first.
    """
    if in_bucket(step):
        (step / MANIFEST).unlink(missing_ok=True)
        step.rmtree()
        return
    leaving = step.with_name(f"{step.name}{_REMOVING}")
    if leaving.exists():
        leaving.rmtree()
    step.rename(leaving).rmtree()


def _problem_of_any(number: int, problem: str | None) -> str:
    """Return the problems of all processes, as the same text on each; empty if there are none."""
    found = exchanged(problem or "", key=f"checkpoints/{number}")
    problems = {index: words for index, words in enumerate(found) if words}
    if len(set(problems.values())) > 1:  # one process may fail, and others while waiting for it
        return "; ".join(f"process {index}: {words}" for index, words in problems.items())
    return next(iter(problems.values()), "")
