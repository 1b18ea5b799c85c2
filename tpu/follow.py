"""The follower of a job, which requests TPUs, starts and restarts the job, and releases the TPUs.

The next action follows from the state that the backend reports. If a follower is stopped, the same
command, on this machine or another, therefore continues its work. Each job must have only one
follower.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ml_collections import ConfigDict

from fire_lm.errors import Preempted, RunFailed, UserError
from tpu.cluster import command
from tpu.commands import CallFailed, NotFound, Refused
from tpu.host import DIVERGED, STOPPED
from tpu.job import EARLIER, Backend, Job, Stage, State

_T = TypeVar("_T")
# The number of consecutive checks that find unresponsive hosts after which the hosts count as lost,
# if they also take some minutes, and the numbers of consecutive failed calls, failed starts, and
# checks that find no request after which the follower gives up.
_SILENT, _SILENT_SECONDS, _FAILED, _UNSTARTED, _GONE = 10, 300.0, 30, 3, 3


class Follower:
    """A loop that takes one job from the request for TPUs to their release.

    Args:
      where: The cluster. Its `retries` is the number of times that lost TPUs are requested again,
        and the number of times that a job killed from outside is started again.
      progress: Returns a description of the job's progress in a few words.
      every: The number of seconds between checks of the job's state.
      keep: Whether to keep the TPUs when the job has ended.
      detach: Whether to return once the job is running.
      leave: An event that makes the follower stop and leave the job running.
    """

    def __init__(
        self,
        job: Job,
        backend: Backend,
        where: ConfigDict,
        *,
        progress: Callable[[], str] = lambda: "",
        every: float = 60.0,
        keep: bool = False,
        detach: bool = False,
        leave: threading.Event | None = None,
    ):
        self._job, self._backend, self._retries = job, backend, where.retries
        self._status = command("status", where)
        self._delete = command("delete", where, job.name)
        self._progress, self._every = progress, every
        self._patience = max(_SILENT, _SILENT_SECONDS / every if every else 0)
        self._keep, self._detach = keep, detach
        self._leave = leave or threading.Event()
        self._told = self._done_so_far = ""
        self._may_cost = False  # whether resources that cost money may exist
        self._known = False  # whether this follower has seen or made a request for TPUs
        self._ours = True  # whether the absence of a request, if any, is due to this follower
        self._created = self._launched = 0
        self._failed = {"look": 0, "act": 0}
        self._silent = self._unstarted = self._gone = 0

    def follow(self) -> None:
        """Follow the job until it is done or, with `detach`, until it is running.

        Raises:
          UserError: The job ended with exit code 2, or it cannot be started as requested.
          RunFailed: The job failed in another way or too often.
          Preempted: The job was stopped with `python -m tpu stop`, or `leave` was set.
        """
        try:
            state = self._look()
            if self._is_of_earlier_command(state):
                while self._patiently("act", self._reset) is None:
                    pass
                state = self._look()
            while not self._patiently("act", lambda: self._act(state)):  # noqa: B023
                state = self._look()
        except BaseException:
            if self._may_cost:
                self._say(f"\n{self._goes_on()}")
            raise

    def _is_of_earlier_command(self, state: State) -> bool:
        """Return whether the job ended before this command, which should therefore start it again.

        Without `keep`, the result is False for a job that would fail again: its failure is
        reported, and its TPUs are released.
        """
        if state.stage is Stage.FAILED:
            return self._keep or state.code not in (2, DIVERGED)
        return state.stage is Stage.DONE and not self._job.once and self._may_cost

    def _goes_on(self) -> str:
        return (
            f"{self._job.name} continues without this command, and still costs money: rerun the "
            f"command to follow it, or run {self._delete} to end it"
        )

    def _look(self) -> State:
        state = None
        while state is None:
            state = self._patiently("look", lambda: self._backend.look(self._job))
        if state.stage is not Stage.ABSENT:
            self._may_cost = self._may_cost or state is not EARLIER
            self._gone = 0
            if state.stage is not Stage.LEAVING:
                self._ours = False
            self._known = True
        done = self._progress() if state.stage in (Stage.RUNNING, Stage.SILENT) else ""
        if done != self._done_so_far:
            self._silent = 0  # The job makes progress, although hosts do not respond.
        self._done_so_far = done
        self._tell(f"{state}; {done}" if done else str(state))
        return state

    def _patiently(self, kind: str, step: Callable[[], _T]) -> _T | None:
        """Return the result of `step`, or None if one of its calls failed and may be repeated.

        The cause may be the network or expired credentials; repeating the call will show whether it
        persists.
        """
        try:
            result = step()
        except CallFailed as error:
            self._failed[kind] += 1
            if self._failed[kind] >= _FAILED or (isinstance(error, Refused) and not self._known):
                raise
            self._tell(f"trying again: {error}")
            self._nap()
            return None
        self._failed[kind] = 0
        return result

    def _nap(self) -> None:
        if self._leave.wait(self._every):
            raise Preempted(f"{self._job.name} is no longer followed")

    def _act(self, state: State) -> bool:
        """Bring the job one step closer to its end, and return whether the follower is finished."""
        if self._leave.is_set():
            raise Preempted(f"{self._job.name} is no longer followed")
        self._silent = self._silent + 1 if state.stage is Stage.SILENT else 0
        if state.stage in (Stage.RUNNING, Stage.MORE, Stage.LOST):
            self._unstarted = 0
        match state.stage:
            case Stage.DONE:
                self._end()
                return True
            case Stage.RUNNING if self._detach:
                self._say(self._goes_on())
                self._may_cost = False  # The line above has already warned about the cost.
                return True
            case Stage.ABSENT:
                self._create(state)
            case Stage.READY | Stage.FEWER:
                self._launched = self._count(self._launched, state)
                self._launch()
            case Stage.MORE:
                self._move()
            case Stage.LOST:
                self._give_up_on_slice()
            case Stage.SILENT if self._silent >= self._patience:
                self._give_up_on_slice()
            case Stage.FAILED if state.code == 3 or state.code > 128:  # A host was restarted.
                self._reset()
            case Stage.FAILED:
                self._fail(state)
            case _:
                self._nap()
        return False

    def _create(self, state: State) -> None:
        """Request TPUs, unless an earlier request has been deleted by somebody else."""
        name = self._job.name
        if not self._ours:
            self._gone += 1
            if self._gone == _GONE:
                self._may_cost = False
                raise RunFailed(
                    f"{name} was deleted by somebody else; rerun the command to request it again"
                )
            self._nap()
            return
        number = self._count(self._created, state)
        before, self._may_cost = self._may_cost, True  # The TPUs may exist even if no reply comes.
        try:
            self._backend.create(self._job)
        except NotFound as error:  # The zone or the project does not exist.
            self._may_cost = before
            raise Refused(f"{error}\ncheck --cluster.zone and --cluster.project") from error
        except Refused:
            self._may_cost = before
            raise
        self._created, self._known, self._ours = number, True, False

    def _give_up_on_slice(self) -> None:
        self._ours = True  # The TPUs may be deleted even if no reply comes.
        self._backend.delete(self._job.name)
        self._may_cost, self._silent = False, 0
        self._nap()

    def _reset(self) -> bool:
        self._ours = True
        self._backend.reset(self._job.name)
        return True

    def _count(self, number: int, state: State) -> int:
        if number > self._retries:
            self._end()
            raise RunFailed(f"{self._job.name}: giving up after {number} attempts: {state}")
        return number + 1

    def _launch(self) -> None:
        try:
            self._backend.setup(self._job.name)
            self._backend.launch(self._job)
            self._unstarted = 0
        except RunFailed as error:
            self._unstarted += 1
            self._tell(str(error))
            if self._unstarted >= _UNSTARTED:
                self._end()
                raise RunFailed(str(error)) from error
            self._nap()

    def _move(self) -> None:
        """Start the job again on more slices, unless they are lost again: it runs on the others."""
        try:
            self._backend.setup(self._job.name)
        except RunFailed as error:
            self._tell(f"it stays on fewer slices for now: {error}")
            self._nap()
            return
        self._launch()

    def _fail(self, state: State) -> None:
        name = self._job.name
        if state.code == STOPPED:
            self._may_cost = False  # The message below already warns about the TPUs.
            raise Preempted(
                f"{name} was stopped after saving\nrerun the command to resume; "
                f"{self._delete} releases any TPUs that it still holds"
            )
        try:
            self._say(self._backend.tail(name, 20))
        except CallFailed as error:
            self._say(f"the end of the output of {name} could not be read: {error}")
        self._end()
        if state.code == 2:
            raise UserError(f"{name} ended with exit code 2, a configuration error (see above)")
        if state.code == DIVERGED:
            raise RunFailed(f"{name} stopped at a loss that is not finite and is not restarted")
        raise RunFailed(f"{name}: {state}")

    def _end(self) -> None:
        """Release the TPUs, or report that they are kept.

        Raises:
          RunFailed: Releasing the TPUs failed repeatedly.
        """
        name = self._job.name
        if not self._may_cost:
            return
        if self._keep:
            self._may_cost = False
            self._say(f"{name}: its TPUs are kept; {self._delete} releases them")
            return
        self._ours = True
        for _ in range(_FAILED):
            try:
                outcome = self._backend.delete(name)
            except CallFailed as error:
                self._tell(f"trying again to release its TPUs: {error}")
                self._nap()
                continue
            self._may_cost = False
            self._say(f"{name}: {outcome}")
            return
        raise RunFailed(
            f"{name} has ended, but ITS TPUS MAY STILL EXIST: releasing them failed\n"
            f"check with {self._status}; {self._delete} tries again"
        )

    def _say(self, words: str) -> None:
        print(words, flush=True)

    def _tell(self, words: str) -> None:
        if words != self._told:
            self._say(f"{time.strftime('%H:%M')} {self._job.name}: {words}")
            self._told = words
