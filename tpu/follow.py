"""Drives a job to its end: asks for TPUs, starts it, and again when they are lost; gives them back.

Each look at the place decides what is next, so that a follower that was stopped, on this machine or
another one, goes on by the same command.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fire_lm.errors import Preempted, RunFailed, UserError
from tpu import calls
from tpu.calls import CallFailed
from tpu.host import DIVERGED
from tpu.job import Job, Place, Stage, State

# Looks in a row at hosts that do not answer, after which they count as lost; looks in a row that
# failed themselves, and starts in a row, after which we give up.
_SILENT, _BLIND, _UNSTARTED = 10, 30, 3


class Follower:
    """Follows one job.

    Args:
      retries: how often TPUs that were lost are asked for again, and a job that was killed from
        outside is started again.
      progress: what the job has done, in a few words.
      say: takes each line.
      every: seconds between looks.
      keep: leaves the TPUs there when the job has ended.
      detach: returns once the job runs.
    """

    def __init__(
        self,
        job: Job,
        place: Place,
        *,
        retries: int,
        progress: Callable[[], str] = lambda: "",
        say: Callable[[str], None] = lambda words: print(words, flush=True),
        every: float = 60.0,
        keep: bool = False,
        detach: bool = False,
    ):
        self._job, self._place, self._retries = job, place, retries
        self._progress, self._say, self._every = progress, say, every
        self._keep, self._detach = keep, detach
        self._told = ""
        self._created = self._launched = 0
        self._silent = self._blind = self._unstarted = 0

    def follow(self) -> None:
        """Returns when the job is done, or runs if it is to be left then.

        Raises:
          UserError: it ended with exit code 2, or cannot be started as it was asked for.
          RunFailed: it failed in another way, or too often.
          Preempted: it was stopped (`python -m tpu stop`).
        """
        try:
            state = self._look()
            if state.stage is Stage.FAILED:  # earlier: asked for again, it starts again
                self._place.reset(self._job.name)
                state = self._look()
            while not self._act_patiently(state):
                state = self._look()
        except KeyboardInterrupt:
            self._say(f"\n{self._goes_on()}")
            raise

    def _goes_on(self) -> str:
        name = self._job.name
        return (
            f"{name} goes on without this command, and so does what it costs: the same command "
            f"follows it again, `python -m tpu delete {name}` ends it"
        )

    def _look(self) -> State:
        while True:
            try:
                state = self._place.look(self._job)
                break
            except CallFailed as error:
                self._stumble(error)
        words = str(state)
        if state.stage is Stage.RUNNING and (done := self._progress()):
            words += f"; {done}"
        self._tell(words)
        return state

    def _stumble(self, error: CallFailed) -> None:
        """A call failed, perhaps because of the network: looking again will tell."""
        self._blind += 1
        if self._blind >= _BLIND:
            raise error
        self._tell(f"no answer, trying again: {error}")
        calls.pause(self._every)

    def _act_patiently(self, state: State) -> bool:
        try:
            done = self._act(state)
            self._blind = 0
            return done
        except CallFailed as error:
            self._stumble(error)
            return False

    def _act(self, state: State) -> bool:
        """Whether the job is done; brings it one step nearer to that."""
        name = self._job.name
        self._silent = self._silent + 1 if state.stage is Stage.SILENT else 0
        match state.stage:
            case Stage.DONE:
                self._end()
                return True
            case Stage.RUNNING if self._detach:
                self._say(self._goes_on())
                return True
            case Stage.ABSENT:
                self._created = self._count(self._created, state)
                self._place.create(self._job)
            case Stage.READY:
                self._launched = self._count(self._launched, state)
                self._launch()
            case Stage.LOST:
                self._place.delete(name)
            case Stage.SILENT if self._silent >= _SILENT:
                self._place.delete(name)
            case Stage.FAILED if state.code > 128:  # killed: its host was started anew
                self._launched = self._count(self._launched, state)
                self._place.reset(name)
            case Stage.FAILED:
                self._fail(state)
            case _:
                calls.pause(self._every)
        return False

    def _count(self, number: int, state: State) -> int:
        if number > self._retries:
            self._end()
            raise RunFailed(f"{self._job.name} has been tried {number} times, no more: {state}")
        return number + 1

    def _launch(self) -> None:
        try:
            self._place.setup(self._job.name)
            self._place.launch(self._job)
            self._unstarted = 0
        except UserError:
            self._end()
            raise
        except RunFailed as error:
            self._unstarted += 1
            if self._unstarted >= _UNSTARTED:
                self._end()
                raise RunFailed(str(error)) from error
            self._tell(str(error))
            calls.pause(self._every)

    def _fail(self, state: State) -> None:
        name = self._job.name
        if state.code == 3:
            raise Preempted(
                f"{name} was stopped, its state is saved; its TPUs are still there\n"
                f"the same command goes on, `python -m tpu delete {name}` gives them back"
            )
        try:
            self._say(self._place.tail(name, 20))
        except CallFailed as error:
            self._say(f"its last lines could not be had: {error}")
        self._end()
        if state.code == 2:
            raise UserError(f"{name} ended with exit code 2, a mistake of its configuration: above")
        if state.code == DIVERGED:
            raise RunFailed(f"{name} stopped at a loss that is not finite: it is not started again")
        raise RunFailed(f"{name}: {state}")

    def _end(self) -> None:
        name = self._job.name
        if self._keep:
            self._say(f"{name}: its TPUs are kept; `python -m tpu delete {name}` gives them back")
            return
        try:
            self._place.delete(name)
            self._say(f"{name}: its TPUs are given back")
        except RunFailed as error:
            self._say(
                f"{name}: ITS TPUS ARE PERHAPS STILL THERE, giving them back failed: {error}\n"
                f"`python -m tpu status` tells; `python -m tpu delete {name}` tries again"
            )

    def _tell(self, words: str) -> None:
        if words != self._told:
            self._say(f"{time.strftime('%H:%M')} {self._job.name}: {words}")
            self._told = words
