"""Jobs that run as processes on this machine, several at a time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO

from fire_lm.errors import Preempted, RunFailed, UserError
from fire_lm.hardware.host import ANNOUNCEMENTS, shares_of_cores, starting_on
from fire_lm.storage import lock_file
from tpu.host import DIVERGED
from tpu.image import ROOT
from tpu.job import Job


@contextlib.contextmanager
def only_grid(folder: Path) -> Iterator[None]:
    """Keep other grids out of a folder while the block runs.

    A grid that is killed does not block its folder, although its jobs may still be running.

    Raises:
      UserError: Another grid is running in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".grid.lock").open("a+") as lock:
        if not lock_file(lock):
            lock.seek(0)
            raise UserError(
                f"{folder} is in use by another grid: {lock.read().strip()}\n"
                "wait for it to finish, or choose another --output"
            )
        _sign(lock)
        yield


class LocalJobs:
    """Jobs that run on this machine.

    A job outlives a launcher that is killed. The next launcher waits until that job has ended.

    JAX keeps compiled programs in the folder `compiled` beside the logs, unless the environment
    chooses another. A job reuses the programs of earlier jobs on the same share of the cores, such
    as an arm with another seed. Jobs that run at the same time do not share programs, because JAX
    writes files in place. Each job holds the lock of its share, because it outlives its launcher.

    Args:
      at_once: The number of jobs that may run at a time, each on its own share of the cores.
    """

    def __init__(self, restarts: int = 2, at_once: int = 1):
        self._restarts = restarts
        self._shares = {
            f"share_{index}_of_{at_once}": cores
            for index, cores in enumerate(shares_of_cores(at_once))
        }
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._stopped = threading.Event()

    def run(self, job: Job, log: Path) -> None:
        """Run a job to its end and append its output to `log`.

        Raises:
          UserError: The job ended with exit code 2.
          RunFailed: The job failed in another way.
          Preempted: `stop` ended the job or prevented its start.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.with_suffix(".lock").open("a+") as lock, log.open("ab") as output:
            # The job's process inherits the lock, which therefore lasts until that process ends.
            self._wait_for(lock, job)
            _sign(lock)
            if Path(job.mark).exists():  # The earlier process has finished the job.
                return
            began = output.seek(0, os.SEEK_END)
            with self._share(log.parent, job) as (share, held):
                compiled = log.parent.absolute() / "compiled" / share
                code = self._ended(job, self._shares[share], (lock, held), output, compiled)
        self._judge(job, code, log, began)

    @contextlib.contextmanager
    def _share(self, folder: Path, job: Job) -> Iterator[tuple[str, IO[str]]]:
        """Yield the name of a share of the cores that no job uses, and its lock, which is held."""
        while not self._stopped.is_set():
            for share in self._shares:
                with (folder / f"{share}.lock").open("w") as lock:
                    if lock_file(lock):
                        yield share, lock
                        return
            self._stopped.wait(0.5)
        raise Preempted(f"{job.name} was not started")

    def _ended(
        self,
        job: Job,
        cores: list[int],
        locks: Iterable[IO[str]],
        output: IO[bytes],
        compiled: Path,
    ) -> int:
        """Run the job's process on `cores`, and return its exit code.

        It runs in the current folder, to which the paths in the configuration are relative, and
        finds the launcher wherever this is.
        """
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with starting_on(cores):
            child = subprocess.Popen(
                [sys.executable, *job.on_host(self._restarts)[1:]],
                env={"JAX_COMPILATION_CACHE_DIR": str(compiled)}
                | os.environ
                | {"PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[lock.fileno() for lock in locks],
                start_new_session=True,  # Ctrl-C reaches only this process, which stops the job.
            )
        self._children[job.name] = child
        if self._stopped.is_set():
            child.send_signal(signal.SIGTERM)
        code = child.wait()
        del self._children[job.name]
        return code

    def _wait_for(self, lock: IO[str], job: Job) -> None:
        reported = False
        while True:
            if self._stopped.is_set():
                raise Preempted(f"{job.name} was not started")
            if lock_file(lock):
                return
            if not reported:
                lock.seek(0)
                launcher = lock.read().strip()
                print(
                    f"{job.name} is still running: waiting for it (started by {launcher})",
                    flush=True,
                )
            reported = True
            self._stopped.wait(0.5)

    def stop(self) -> None:
        """Make all jobs save and end, and start no further jobs."""
        self._stopped.set()
        for child in list(self._children.values()):
            child.send_signal(signal.SIGTERM)

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Within the block, stop all jobs when the end of this process is announced.

        `grid.run` handles Ctrl-C. Signals that are ignored, such as SIGHUP under nohup, remain so.
        """

        def handle(signum: int, frame: FrameType | None) -> None:
            self.stop()

        announced = [one for one in ANNOUNCEMENTS if signal.getsignal(one) is signal.SIG_DFL]
        before = {one: signal.signal(one, handle) for one in (signal.SIGTERM, *announced)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def _judge(self, job: Job, code: int, log: Path, began: int) -> None:
        if self._stopped.is_set() and code:
            raise Preempted(f"{job.name} was stopped")
        if code == 2:
            raise UserError(f"exit code 2, a configuration error: {last_words(log, began)}")
        if code == DIVERGED:
            raise RunFailed(f"stopped at a loss that is not finite: {last_words(log, began)}")
        if code:
            raise RunFailed(f"exit code {code}: {last_words(log, began)}")


def newest_line(log: Path) -> str:
    """Return what a job's output says last: the phase of the job, and its progress with an ETA.

    The bar of a progress line is omitted, as is a phase's heartbeat of seconds.
    """
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = [line.strip() for line in file.read().decode(errors="replace").split("\n")]
    newest = next((line for line in reversed(lines) if line), "")
    return re.sub(r"^\[[#-]+\] |(?<= \.\.\.) \d.*", "", newest)


def _sign(lock: IO[str]) -> None:
    """Write into a lock that this process holds by whom, and since when, it is held."""
    lock.truncate(0)
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    lock.write(f"process {os.getpid()} on {socket.gethostname()} since {since} UTC\n")
    lock.flush()


def last_words(log: Path, began: int) -> str:
    """Return the last error message after the first `began` bytes of a log, and the log's path.

    If there is no error message, the last line takes its place.
    """
    lines = log.read_bytes()[began:].decode(errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("fire-lm: ")]
    return f"{errors[-1] if errors else (lines or ['nothing was printed'])[-1]} ({log})"
