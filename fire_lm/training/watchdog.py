"""A watchdog that ends a stuck run, so that it can be restarted, and reports the process at fault.

Each process has a thread that watches the steps of the process and, through JAX's coordination
service, the other processes. In a job of several processes, a process that waits for data blocks
all others in their collectives. Every process therefore publishes its current stage; the process
that is not waiting for the devices is the one that delays the others. A process that has died is
detected by its silence, because JAX itself would take a minute and then abort without a plain
message. Process 0 hosts the coordination service: when process 0 dies, JAX aborts the other
processes within a second. Each of the other processes therefore also keeps a direct connection to
process 0, because the end of this connection is noticed slightly earlier.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import faulthandler
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator

import jax
from etils import epath

from fire_lm.console import Guarded, duplicate_of
from fire_lm.errors import FireLMError, Preempted, UserError
from fire_lm.hardware.running_time import TICK_SECONDS, RunningTime
from fire_lm.processes import coordination_client, coordinator_host
from fire_lm.training.goodput import DEVICES, EVALUATION, SAVE, STEPS, Goodput

_PERIOD = TICK_SECONDS  # between two checks
# The minimum time limit while saving or evaluating; saves also have their own limits.
_SAVE_SECONDS = 1800.0
_FOR_SLOW_STEPS = (
    "; if steps are that slow, add --gin.Watchdog.least_seconds=SECONDS --allow_config_change"
)
_PREFIX = "fire_lm/watchdog/"
_PORT = "fire_lm/watchdog_port"
_FAILED = _PREFIX + "failed"
_START_SECONDS = 30.0  # the additional time that a process's first message may take
FINISHED = "finished"  # the last stage that a process reports


@dataclasses.dataclass(frozen=True)
class Watchdog:
    """The conditions under which a run counts as stuck.

    Attributes:
      multiple: The time limit of a step, as a multiple of the median duration of the last hundred
        steps.
      least_seconds: The minimum time limit of a step, which is also the limit of the first step.
      silence_seconds: The time after which a silent process counts as lost.
    """

    multiple: float = 30.0
    least_seconds: float = 300.0
    silence_seconds: float = 45.0

    def __post_init__(self) -> None:
        # A silence of a few checks is normal, and threads cannot wait longer than 1e9 s.
        for name, least in {"multiple": 1, "least_seconds": 1, "silence_seconds": 5}.items():
            value = getattr(self, name)
            if not least <= value <= 1e9:
                raise UserError(f"Watchdog.{name} is {value}: it must be between {least} and 1e9")

    @contextlib.contextmanager
    def watching(self, workdir: str, goodput: Goodput) -> Iterator[Watch]:
        """Yield a watchdog that runs until the block ends.

        `goodput` provides the current stage of the process.
        """
        watch = Watch(self, workdir, goodput)
        # A clock of its own, because a message to the other processes may take long.
        clock = threading.Thread(target=watch.clock.tick, args=(watch.stop,), daemon=True)
        thread = threading.Thread(target=watch.run, name="watchdog", daemon=True)
        clock.start()
        thread.start()
        finished = False
        try:
            yield watch
            finished = True
        except FireLMError as error:
            finished = _is_shared(error)
            raise
        except jax.errors.JaxRuntimeError:
            # A collective raises this error if another process has died. Only the silence of that
            # process shows which process it was.
            if jax.process_count() > 1:
                thread.join(self.silence_seconds + 5 * _PERIOD)
            raise
        finally:
            watch.close()
            thread.join()
            if finished:
                watch.leave()


@contextlib.contextmanager
def telling_others() -> Iterator[None]:
    """Report an error in this process to the other processes, which would otherwise wait forever.

    The watchdogs of the other processes print the error and exit with the same code. An error that
    all processes raise is not reported, because a watchdog would cut short what its process does
    before it exits, such as uploads.
    """
    try:
        yield
    except Exception as error:
        if jax.process_count() > 1 and not _is_shared(error):
            code = error.exit_code if isinstance(error, FireLMError) else 1
            words = f"{code}|{_own_name()}: {str(error) or type(error).__name__}"
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # only the first error is kept
                coordination_client().key_value_set(_FAILED, words)
            if jax.process_index() == 0:  # it hosts the service that delivers the message
                time.sleep(3 * _PERIOD)
        raise


def _is_shared(error: Exception) -> bool:
    """Return whether all processes raise this error."""
    return isinstance(error, Preempted) or (isinstance(error, FireLMError) and error.everywhere)


class Watch:
    """The watchdog of a training loop, to which the loop reports finished steps and saves.

    Attributes:
      clock: The clock of all time limits, which stands still while this process does.
      stop: An event that ends the watchdog.
    """

    def __init__(self, settings: Watchdog, workdir: str, goodput: Goodput):
        self._settings, self._workdir, self._goodput = settings, workdir, goodput
        self.clock, self.stop = RunningTime(), threading.Event()
        self._step = 0
        self._since = self.clock.seconds()  # the start of this step
        self._durations: collections.deque[float] = collections.deque(maxlen=100)
        self._peers = _Peers(self.clock) if jax.process_count() > 1 else None

    def close(self) -> None:
        self.stop.set()
        if self._peers is not None:
            self._peers.say(".")

    def leave(self) -> None:
        """Announce that this process has finished, so that its silence does not count as a loss."""
        if self._peers is not None:
            self._peers.tell(self._step, FINISHED)

    def finished(self, step: int) -> None:
        now = self.clock.seconds()
        self._durations.append(now - self._since)
        self._step, self._since = step, now

    def saved(self) -> None:
        """Exclude the time of a save from the duration of the step."""
        self._since = self.clock.seconds()

    def limit(self) -> float:
        """Return the number of seconds that a step may take."""
        typical = statistics.median(self._durations) if self._durations else 0.0
        return max(self._settings.least_seconds, self._settings.multiple * typical)

    def run(self) -> None:
        """Check the steps and the other processes periodically, in the watchdog's thread."""
        while not self.stop.wait(_PERIOD):
            stage, taken = self._goodput.stage, self.clock.seconds() - self._since
            if self._peers is not None:
                self._peers.tell(self._step, stage)
                if self._peers.failed and not self.stop.is_set():
                    code, _, why = self._peers.failed.partition("|")
                    say_at_once(why)
                    os._exit(int(code))
                lost = self._peers.lost(self._settings.silence_seconds)
                if lost and not self.stop.is_set():
                    self._end(f"{lost} at step {self._step + 1}")
            if stage not in STEPS:  # starting and compiling have no time limit
                self._since = self.clock.seconds()
                continue
            slow = stage in (SAVE, EVALUATION)
            limit = max(self.limit(), _SAVE_SECONDS if slow else 0.0)
            if taken > limit:
                late = self._peers.late() if self._peers is not None else ""
                self._end(
                    f"step {self._step + 1} has taken {taken:.0f} s (limit: {limit:.0f} s): "
                    f"{late or f'this process is {stage}'}",
                    "" if slow else _FOR_SLOW_STEPS,
                )

    def _end(self, why: str, remedy: str = "") -> None:
        """Print `why`, write the stack traces to the run directory and exit the process.

        `remedy` says what to add to the command that resumes the run.

        The process must exit because a thread that waits in a collective cannot be interrupted.
        """
        try:
            name = f"stacks_{jax.process_index():04d}.txt"
            if self._peers is not None:
                self._peers.say(why)
            tell_end(why, f"the stack traces are in {self._workdir}/{name}; ", remedy)
            # The storage itself may be stuck, so the writing has a time limit.
            writing = threading.Thread(target=self._write_stacks, args=(name,), daemon=True)
            writing.start()
            writing.join(10.0)
        finally:
            os._exit(1)

    def _write_stacks(self, name: str) -> None:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            (epath.Path(self._workdir) / name).write_text(file.read())


def tell_end(why: str, where: str = "", remedy: str = "") -> None:
    say_at_once(f"{why}: stopped\n{where}run the same command to resume{remedy}")


# The process's original stderr: while TensorFlow loads, descriptor 2 points elsewhere.
_STDERR = duplicate_of(2)


def say_at_once(text: str) -> None:
    """Write to stderr if that is possible; in any case, return soon."""
    Guarded(_STDERR, "stderr").write(f"\n{text}\n".encode())


def _own_name() -> str:
    return f"process {jax.process_index()} ({socket.gethostname()}, pid {os.getpid()})"


class _Peers:
    """This process's exchange of messages with the other processes of the job.

    Messages pass through JAX's coordination service. In addition, process 0 has a direct connection
    to each other process, through which it reports its end.
    """

    def __init__(self, clock: RunningTime) -> None:
        self._clock = clock
        self._client = coordination_client()
        self._index, self._count = jax.process_index(), jax.process_count()
        self._name = _own_name()
        self._beats = 0
        first = clock.seconds() + _START_SECONDS
        # The last message of each process, and the time at which the message arrived.
        self._heard = {i: (f"0|0|process {i}|starting", first) for i in range(self._count)}
        self.failed = ""  # the exit code and message of a process that failed
        self._lines: list[socket.socket] = []
        self._server = socket.create_server(("", 0)) if self._index == 0 else None
        start = self._accept if self._server else self._listen
        threading.Thread(target=start, name="watchdog_line", daemon=True).start()

    def say(self, last_words: str) -> None:
        """Send the other processes the reason why process 0 ends, or "." if it ends normally."""
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.sendall(last_words.encode())
            line.close()
        if self._server is not None:
            self._server.close()

    def _accept(self) -> None:
        assert self._server is not None
        with contextlib.suppress(Exception):  # the server is closed
            self._client.key_value_set(_PORT, str(self._server.getsockname()[1]), True)
            while True:
                self._lines.append(self._server.accept()[0])

    def _listen(self) -> None:
        """Exit this process when process 0 ends abnormally.

        If process 0 cannot be reached, JAX itself prints an error.
        """
        with contextlib.suppress(Exception):
            host = coordinator_host()
            port = int(self._client.blocking_key_value_get(_PORT, 60_000))
            with socket.create_connection((host, port), timeout=60) as line:
                line.settimeout(None)
                with line.makefile() as words:
                    why = words.read()
            if why == ".":
                return
            name = self._heard[0][0].split("|")[2]
            tell_end(why or f"{name} has ended, and the other processes depend on it")
            os._exit(1)

    def tell(self, step: int, doing: str) -> None:
        self._beats += 1
        words = f"{self._beats}|{step}|{self._name}|{doing}"
        now = self._clock.seconds()
        try:
            self._client.key_value_set(f"{_PREFIX}{self._index}", words, allow_overwrite=True)
            for key, said in self._client.key_value_dir_get(_PREFIX):
                if key == _FAILED:
                    self.failed = said
                    continue
                peer = int(key.rpartition("/")[2])
                if self._heard.get(peer, ("", 0.0))[0] != said:
                    self._heard[peer] = said, now
        except jax.errors.JaxRuntimeError:  # the coordinator, which is process 0, does not answer
            return

    def lost(self, silence_seconds: float) -> str:
        """Describe the processes that fell silent before they finished, or return ""."""
        now = self._clock.seconds()
        names = [
            said.split("|")[2]
            for said, since in self._heard.values()
            if now - since > silence_seconds and not said.endswith(f"|{FINISHED}")
        ]
        if not names:
            return ""
        if len(names) == self._count:  # including this process, so the coordinator is gone
            names = [self._heard[0][0].split("|")[2]]
        return f"no message from {' and '.join(names)} for {silence_seconds:.0f} s"

    def late(self) -> str:
        """Describe the processes that delay the others, and their current stages."""
        said_last = [said.split("|", 3) for said, _ in self._heard.values()]
        unfinished = [words for words in said_last if words[3] != FINISHED]
        behind = min(int(step) for _, step, _, _ in unfinished)
        candidates = [(name, doing) for _, step, name, doing in unfinished if int(step) == behind]
        busy = [entry for entry in candidates if entry[1] != DEVICES] or candidates
        return "; ".join(f"{name} is {doing}" for name, doing in sorted(busy))
