"""The checkpoints of a training run, saved in the background and verified before a restore."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
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
from fire_lm.checkpoints.manifest import NEVER_ENDED, damage, write_manifest
from fire_lm.checkpoints.orbax_checkpointer import orbax_checkpointer
from fire_lm.checkpoints.params import check_arrays
from fire_lm.checkpoints.policy import Checkpointing
from fire_lm.checkpoints.position import PositionRestore, PositionSave, check_processes
from fire_lm.checkpoints.removal import remove, remove_leftovers, set_aside, unfinished_set_aside
from fire_lm.errors import RunFailed, first_line
from fire_lm.processes import agreed, exchanged
from fire_lm.sharding import leaves_by_path
from fire_lm.storage import LeaseLost, in_bucket, present

_round = itertools.count()  # numbers exchanges between processes identically on every process


class Checkpoints:
    """The checkpoints of a run that is being trained.

    All processes of a job must call each method. Only process 0 writes the manifest, removes
    checkpoints that are not kept, and prints messages. A save that fails on one process counts as
    failed on all processes.
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
          policy: The policy that determines which checkpoints to keep.
          ranked: A function that returns the evaluated steps, starting with the best.
          still_ours: A function that raises LeaseLost if another process has taken over the run
            directory.
        """
        self.workdir, self._policy, self._ranked = workdir, policy, ranked
        self._still_ours, self._directory = still_ours, checkpoint_directory(workdir)
        self._leads = jax.process_index() == 0
        self._orbax = orbax_checkpointer(self._directory)
        self._finishing: threading.Thread | None = None
        self._failures = 0  # the number of failed saves since the last successful save
        self._failure = ""  # the message of the last failure
        self._damaged: dict[int, str] = {}  # steps whose damage was found only during a restore

    def recover(self) -> int:
        """Verify and return the newest intact step, or return 0 if there are no steps.

        The result is also 0 if no save ever finished. Later steps are reported and set aside, so
        that these steps can be saved again. A damaged step is renamed to `<step>.damaged`, and a
        step whose save never finished is renamed to `<step>.unfinished`. In a bucket, a step whose
        save never finished is removed instead, because renaming would copy every object. Files that
        were left behind when a save or a removal was killed are removed.

        This method must be called after the run directory has been locked. Process 0 lists the
        steps for all processes.

        Raises:
          RunFailed: The saves of some steps finished, but no step is intact; a process does not see
            the checkpoints of process 0; or the storage cannot be read.
        """
        written: list[tuple[int, bool]] = agreed(
            list(written_steps(self.workdir).items()) if self._leads else []
        )
        problems: dict[int, str] = {}
        for step, _ in reversed(written):
            trouble = self._damaged.get(step) or damage(
                self._directory / str(step), jax.process_index(), jax.process_count()
            )
            problem = _problem_of_any(next(_round), trouble)
            if not problem:
                break
            if problem == NEVER_ENDED and not agreed(trouble == NEVER_ENDED):
                raise RunFailed(
                    f"process 0 finds checkpoint {step} in {self.workdir}, but another process "
                    "does not\nevery host needs the same --workdir, on storage that all share"
                )
            problems[step] = problem
        else:
            step = 0
        if not step and not set(problems.values()) <= {NEVER_ENDED}:
            trouble = "; ".join(f"{number}: {problem}" for number, problem in problems.items())
            raise RunFailed(
                f"{self.workdir} has no intact checkpoint ({trouble})\n"
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
                    f"{set_aside(self._directory / str(number), problem)}; {resuming}",
                    file=sys.stderr,
                )
            for number, ended in written:
                path = self._directory / str(number)
                if number < step and not ended and damage(path) == NEVER_ENDED:
                    remove(path)  # the remains of an interrupted removal or save
            remove_leftovers(self._directory)
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
        """Start an asynchronous save; `state` may be donated once this method has returned.

        With `shared_position`, all processes must pass the same position, which a job with any
        number of processes can restore.

        If a save fails, the failure is reported, training may continue, and the newest intact
        checkpoint is kept. If no further failure is allowed, this method waits until the save has
        succeeded or failed.

        Raises:
          RunFailed: More consecutive saves have failed than are allowed.
          LeaseLost: Another process has taken over the run directory.
        """
        self.settle()
        arrays: dict[str, jax.Array] = {}
        names = list(leaves_by_path(state))  # such as `params/embedding`
        try:
            self._make_folder(step)
            if in_bucket(self._directory):  # this computation must start before `state` is donated
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
        except Exception as found:  # a bucket may raise many classes of errors
            error = found
        last_chance = self._failures == self._policy.failures_allowed
        self._finishing = threading.Thread(
            target=self._finish, args=(step, next(_round), error, names, arrays)
        )
        self._finishing.start()
        if last_chance:
            self.settle()
            if self._failures:
                raise RunFailed(self._failure)

    def restore(self, step: int, like: Any) -> tuple[Any, bytes, dict[str, Any]] | None:
        """Restore the state, position and info of a step, with the shapes and shardings of `like`.

        Returns:
          The three items, or None if an array differs from the saved array. In that case, the next
          call to `recover` sets the step aside.

        Raises:
          RunFailed: The checkpoint cannot be read, or belongs to another model.
          UserError: The checkpoint was written by a different number of processes.
        """
        check_processes(self.workdir, step, jax.process_count())
        path = self._directory / str(step)
        args = ocp.args.Composite(
            state=ocp.args.StandardRestore(like),
            position=PositionRestore(),
            info=ocp.args.JsonRestore(),
        )
        try:
            restored = self._orbax.restore(path, args=args)
        except Exception as error:  # Orbax raises plain Exceptions
            # The files are intact, so the arrays either do not match the model or cannot be read.
            check_arrays(self.workdir, step, like)
            raise unreadable(self.workdir, step, error) from error
        if changed := changed_arrays(path, restored.state):
            check_arrays(self.workdir, step, like)  # Orbax converts other data types silently
            self._damaged[step] = f"{changed[0]} has changed since it was saved"
            return None
        return restored.state, restored.position, restored.info

    def reached_preemption(self, step: int) -> bool:
        """Return whether the processes of this job have agreed to stop after `step`."""
        return jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step)

    def newest(self) -> int:
        """Wait for any save in progress and return the newest complete step, or 0."""
        self.settle()
        return max(available_steps(self.workdir), default=0)

    def settle(self) -> None:
        """Wait for the save that is in progress, if any."""
        if self._finishing is not None:
            self._finishing.join()
            self._finishing = None

    def close(self) -> None:
        """Wait for the save that is in progress, if any, and close Orbax's checkpointer.

        Raises:
          RunFailed: The last save failed, and no other exception is being handled.
        """
        self.settle()
        self._orbax.close()
        if self._failures and sys.exc_info()[0] is None:
            raise RunFailed(self._failure)

    def _make_folder(self, step: int) -> None:
        """Create the folder of a save on process 0, before Orbax synchronises the processes.

        Orbax would report a failure to create the folder only on process 0, and the other processes
        would wait forever.

        Raises:
          RunFailed: The folder exists or cannot be created. All processes raise this error.
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
        if trouble := _problem_of_any(next(_round), problem):
            raise RunFailed(trouble)

    def _finish(
        self,
        step: int,
        number: int,
        error: Exception | None,
        names: Sequence[str],
        arrays: Mapping[str, jax.Array],
    ) -> None:
        """Wait until Orbax has finished, then complete the checkpoint; this runs in a thread."""
        began = error is None or "already exists" not in str(error)
        try:
            if error is None:
                self._orbax.wait_until_finished()
                if self._leads:
                    self._still_ours()
                    write_manifest(self._directory / str(step), in_words(arrays), names)
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
                print(f"old checkpoints could not be removed: {first_line(found)}", file=sys.stderr)

    def _fail(self, step: int, problem: str, began: bool, lost: bool) -> None:
        """Report a failed save and remove its files.

        Args:
          step: The step of the save.
          problem: The reason for the failure.
          began: Whether this save wrote the existing files of the step.
          lost: Whether another process has taken over the run directory. In that case, the run ends
            at its next save.
        """
        self._failures += 1
        self._failure = f"checkpoint {step} of {self.workdir} could not be saved: {problem}"
        hush_abandoned_work()
        with contextlib.suppress(Exception):  # closing keeps Orbax from raising the error again
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
            remove_leftovers(self._directory)  # because the written files may fill the disk
            path = self._directory / str(step)
            if began and not has_ended(path) and is_checkpoint(path):
                remove(path)

    def _prune(self) -> None:
        """Remove the checkpoints that the policy does not keep, and unfinished ones set aside.

        The newest checkpoint is never removed.
        """
        steps = available_steps(self.workdir)
        kept = self._policy.kept(steps, self._ranked)
        unkept = [self._directory / str(step) for step in sorted(set(steps) - kept)]
        aside = unfinished_set_aside(self._directory)
        if unkept or aside:
            self._still_ours()
        for path in unkept:
            remove(path)
        for path in aside:
            path.rmtree()


def _problem_of_any(number: int, problem: str | None) -> str:
    """Return a description of all processes' problems, which is identical on every process.

    The description is empty if there are no problems.
    """
    by_process = exchanged(problem or "", key=f"checkpoints/{number}")
    problems = {index: words for index, words in enumerate(by_process) if words}
    # If one process fails, others may fail with a different error while waiting for that process.
    if len(set(problems.values())) > 1:
        return "; ".join(f"process {index}: {words}" for index, words in problems.items())
    return next(iter(problems.values()), "")
