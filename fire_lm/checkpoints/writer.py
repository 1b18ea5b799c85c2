"""The checkpoints of a run that writes: saved while training goes on, verified before a restore."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from jax._src import distributed
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
from fire_lm.checkpoints.params import check_arrays
from fire_lm.checkpoints.position import PositionRestore, PositionSave, process_file
from fire_lm.errors import RunFailed, UserError, first_line
from fire_lm.processes import agreed
from fire_lm.storage import LeaseLost, children, in_bucket, present

_PATIENCE_MS = 3_600_000  # for the slowest reader of a checkpoint
_WRITING_SECONDS = 900  # after which a process that has not written its part has failed
_UNFINISHED = ".orbax-checkpoint-tmp"
_REMOVING = ".removing"
_LEFTOVER = re.compile(f"[0-9]+({re.escape(_UNFINISHED)}.*|{re.escape(_REMOVING)})")
_ASIDE = re.compile(r"[0-9]+\.unfinished(_[0-9]+)?")  # of no use once a later save has ended
_round = itertools.count()  # of what the processes tell each other; they all count alike


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """The schedule of saves and what is kept; the last step of a run is always saved.

    Attributes:
      save_every: steps between checkpoints.
      keep_last: newest checkpoints kept.
      keep_every: checkpoints at multiples of this step are kept for good; None keeps none extra.
      keep_best: so many with the best results of the sweeps so far are kept, too.
      failures_allowed: saves that may fail in a row while training goes on; the next one ends it.
    """

    save_every: int = 1000
    keep_last: int = 3
    keep_every: int | None = None
    keep_best: int = 0
    failures_allowed: int = 2

    def __post_init__(self) -> None:
        for name, least in {"save_every": 1, "keep_last": 1, "keep_every": 1}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"Checkpointing.{name} is {value}: it must be {least} or more")
        for name in ("keep_best", "failures_allowed"):
            if getattr(self, name) < 0:
                raise UserError(f"Checkpointing.{name} is negative: it must be 0 or more")


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
          still_ours: raises RunFailed where another process writes to the run directory by now.
        """
        self.workdir, self._policy, self._ranked = workdir, policy, ranked
        self._still_ours, self._directory = still_ours, checkpoint_directory(workdir)
        self._leads = jax.process_index() == 0
        self._orbax = _checkpointer(self._directory)
        self._finishing: threading.Thread | None = None
        self._failures = 0  # since the last save that succeeded
        self._failure = ""  # the last of them, told
        self._damaged: dict[int, str] = {}  # steps that only their restore has shown to be damaged

    def recover(self) -> int:
        """The newest whole step, verified; 0 if none has ever been saved.

        What lies above it is told and set aside, so that the step can be saved again: damaged
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
            problem = _told_by_all(next(_round), found)
            if not problem:
                break
            problems[step] = problem
        else:
            step = 0
        if not step and problems and list(problems.values()) != [NEVER_ENDED]:
            told = "; ".join(f"{number}: {problem}" for number, problem in problems.items())
            raise RunFailed(
                f"no checkpoint of {self.workdir} is whole ({told})\n"
                f"to begin again, move {self._directory} away"
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

        A save that fails is told and training may go on: the newest whole checkpoint stays. When
        no more may fail, this waits for the end of the save.

        Raises:
          RunFailed: more saves in a row have failed than are allowed.
          LeaseLost: another process writes to the run directory by now.
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
          RunFailed: on all processes, if it is there or cannot be made.
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
        if told := _told_by_all(next(_round), problem):
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
            problem = _told_by_all(number, None if error is None else first_line(error))
        except jax.errors.JaxRuntimeError as found:  # a process has not told in time
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
        """`began`: whether what there is of the step by now was written by this save; `lost`: the
        run directory is another's, which ends the run at its next save."""
        self._failures += 1
        self._failure = f"checkpoint {step} of {self.workdir} could not be saved: {problem}"
        hush_abandoned_work()
        with contextlib.suppress(Exception):  # Orbax would raise this error again at a later save
            self._orbax.close()
        self._orbax = _checkpointer(self._directory)
        if not self._leads:
            return
        with contextlib.suppress(Exception):  # the storage may refuse this as well
            self._failure += (
                "\nthe newest intact checkpoint is "
                f"{max(available_steps(self.workdir), default='none')}"
            )
        if self._failures <= self._policy.failures_allowed:
            print(f"{self._failure}{'' if lost else '; training goes on'}", file=sys.stderr)
        with contextlib.suppress(Exception):
            self._still_ours()
            self._remove_leftovers()  # what was written may fill the disk
            path = self._directory / str(step)
            if began and not has_ended(path) and is_checkpoint(path):
                _remove(path)

    def _prune(self) -> None:
        """Remove what the policy does not keep; never the newest."""
        steps, every = available_steps(self.workdir), self._policy.keep_every
        kept = set(steps[-self._policy.keep_last :])
        if every is not None:
            kept |= {step for step in steps if step % every == 0}
        if self._policy.keep_best:
            ranked = [step for step in self._ranked() if step in steps]
            kept |= set(ranked[: self._policy.keep_best])
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


class _Checkpointer(ocp.AsyncCheckpointer):
    """Writes into a folder that is there (`Checkpoints._make_folder`)."""

    async def create_temporary_path(self, temporary_path: Any) -> None:
        pass


class _NoFolder(ocp.path.atomicity.CommitFileTemporaryPath):
    """An item of a checkpoint in a bucket, which has no folders to be made."""

    async def create(self) -> epath.Path:
        return self.get()


def _checkpointer(directory: epath.Path) -> ocp.AsyncCheckpointer:
    """Without the folders that Orbax would make, waiting minutes for those that a bucket refuses;
    but for those of items on a disk."""
    options = ocp.options.AsyncOptions(
        timeout_secs=_WRITING_SECONDS, create_directories_asynchronously=False
    )
    items = ocp.CompositeOptions(temporary_path_class=_NoFolder if in_bucket(directory) else None)
    return _Checkpointer(
        ocp.CompositeCheckpointHandler(composite_options=items),
        async_options=options,
        file_options=ocp.options.FileOptions(skip_sync_file_validations=True),
    )


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


def _told_by_all(number: int, problem: str | None) -> str:
    """The problem of this process and of all others, the same text on all; empty if none has one.

    Told through JAX's coordination service: some may take minutes longer than others, which a
    collective does not survive (see `processes.wait_for_all`).
    """
    if jax.process_count() == 1:
        return problem or ""
    client: Any = distributed.global_state.client
    key = f"fire_lm/checkpoints/{number}"
    client.key_value_set(f"{key}/{jax.process_index()}", f"={problem or ''}")
    said = [
        client.blocking_key_value_get(f"{key}/{index}", _PATIENCE_MS)
        for index in range(jax.process_count())
    ]
    problems = {index: words[1:] for index, words in enumerate(said) if words[1:]}
    if len(set(problems.values())) > 1:  # one may fail, and others by waiting for it
        return "; ".join(f"process {index}: {words}" for index, words in problems.items())
    return next(iter(problems.values()), "")
