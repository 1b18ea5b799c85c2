"""Run a job in the container of one host: `python -m tpu.host --job='[["fire-lm", ...]]'`.

A command that fails is restarted a limited number of times, unless it would fail again: exit code 2
means a configuration error, and a run that stopped at a loss that is not finite would reach that
loss again. All hosts make the same decision, because they base it on exit codes that they share and
on the run directory. Once all hosts have restarted the command, its processes connect to each other
again. The output of a command is also stored in FOLDER/logs/.

SIGUSR1 requests the end of the job (`python -m tpu stop`); SIGTERM and the other signals of
`hardware.host.ANNOUNCEMENTS` mean that the machine or the session is ending. All of them make the
command save its state; except after SIGUSR1, the job is expected to continue, perhaps on another
machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import IO

from etils import epath

from fire_lm.console import standard_streams
from fire_lm.errors import reason
from fire_lm.hardware.host import ANNOUNCEMENTS
from fire_lm.hardware.running_time import TICK_SECONDS, RunningTime
from fire_lm.storage import make_folder, require_bucket

# The exit codes of this program that fire-lm itself does not have.
DIVERGED, STOPPED = 4, 5
FINAL = (0, 2, DIVERGED, STOPPED)
# The number of seconds between two copies of a log to the bucket.
_KEEP_EVERY = 300.0
# The number of seconds in which a command must end: with a run directory, to which it saves its
# state, and without one.
_GRACE, _GRACE_UNSAVED = 540.0, 30.0


class Host:
    """The runner of a job on this host, which executes the commands one after another."""

    def __init__(self, restarts: int, pause: float, folder: str):
        self._restarts, self._pause, self._folder = restarts, pause, folder
        self._child: subprocess.Popen[bytes] | None = None
        self._grace = _GRACE
        self._ending = 0  # the exit code once the end of the job has been requested; 0 before that

    def stop(self, signum: int, frame: FrameType | None) -> None:
        """Make the command save its state and end, and do not restart it on this host."""
        self._ending = STOPPED if signum == signal.SIGUSR1 else 3
        if self._child is not None:
            self._end(self._child)

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """Send SIGTERM and, if the process has not ended after the grace period, SIGKILL.

        For example, a sweep on several hosts does not end on SIGTERM, because JAX handles it there.
        """
        child.send_signal(signal.SIGTERM)
        threading.Thread(target=_kill_after, args=(child, self._grace), daemon=True).start()

    def run(self, commands: Sequence[Sequence[str]]) -> int:
        """Run the commands in order until one fails, and return the exit code of the job."""
        for command in commands:
            if code := self._insist(command):
                return code
        return 0

    def _insist(self, command: Sequence[str]) -> int:
        for attempt in range(self._restarts + 1):
            if self._ending:
                return self._ending
            if attempt:
                print(f"tpu.host: attempt {attempt + 1} of {self._restarts + 1}", flush=True)
            began = time.time()
            code = self._once(command, attempt)
            if code in (0, 2):
                return code
            if self._ending:
                continue
            if code != 3 and (why := diverged(workdir_of(command), began)):
                print(f"tpu.host: {why}: a restart would end the same way", flush=True)
                return DIVERGED
            print(f"tpu.host: {command[0]} ended with exit code {code}", flush=True)
            if attempt < self._restarts:
                time.sleep(self._pause)
        return self._ending or 1

    def _once(self, command: Sequence[str], attempt: int) -> int:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        name = f"{stamp}-{socket.gethostname()}-{attempt}.txt"
        kept = time.monotonic()
        with tempfile.TemporaryFile() as log:
            self._child = subprocess.Popen(
                list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            self._grace = _GRACE if workdir_of(command) else _GRACE_UNSAVED
            if self._ending:  # The signal arrived between the check and the start.
                self._end(self._child)
            assert self._child.stdout is not None
            with self._child.stdout as output:
                while chunk := os.read(output.fileno(), 65536):
                    sys.stdout.buffer.write(chunk)
                    sys.stdout.buffer.flush()
                    log.write(chunk)
                    if time.monotonic() > kept + _KEEP_EVERY:
                        keep(log, self._folder, name)
                        kept = time.monotonic()
            code = self._child.wait()
            keep(log, self._folder, name)
        return code


def _kill_after(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Kill a process that has not ended after `seconds` in which this machine was not paused."""
    clock = RunningTime()
    while clock.seconds() < seconds and child.poll() is None:
        time.sleep(TICK_SECONDS)
    child.kill()


def workdir_of(command: Sequence[str]) -> str:
    """Return the value of `--workdir` in a command, or an empty string."""
    named = [a.partition("=")[2] for a in command if a.startswith("--workdir=")]
    return named[-1] if named else ""


def keep(log: IO[bytes], folder: str, name: str) -> None:
    """Copy the output so far to `folder`, because a host's disk is lost along with the host."""
    if not folder:
        return
    path = epath.Path(folder) / "logs" / name
    log.seek(0)
    try:
        make_folder(path.parent)
        path.write_bytes(log.read())  # Reading leaves the log positioned at its end.
    except Exception as error:  # TensorFlow raises various errors; a log must not end the run.
        print(f"tpu.host: {path} was not written: {error}", flush=True)
        log.seek(0, os.SEEK_END)


def diverged(workdir: str, began: float) -> str:
    """Return why the run in `workdir` would fail again, or an empty string if it might not.

    A run would fail again if it has stopped at a loss that is not finite since the time `began` (in
    seconds since the epoch). If the file that records this cannot be read, the result is empty.
    """
    if not workdir:
        return ""
    path = epath.Path(workdir) / "spikes.jsonl"
    try:
        if not path.exists() or path.stat().mtime < began - 1:  # An earlier start wrote the file.
            return ""
        last = json.loads(path.read_text().splitlines()[-1])
    except Exception as error:  # An unnecessary restart does less harm than ending the run.
        print(f"tpu.host: {path} was not read: {error}", flush=True)
        return ""
    if not last.get("stopped"):
        return ""
    return f"loss {last['loss']}, grad_norm {last['grad_norm']} at step {last['step']}"


def write_mark(path: str, pause: float) -> None:
    """Write the file that marks a job as done, with several attempts.

    Without this file, the job would run again.
    """
    for _ in range(5):
        try:
            make_folder(epath.Path(path).parent)
            epath.Path(path).write_text("")
            return
        except Exception as error:
            print(f"tpu.host: {path} was not written: {error}", flush=True)
            time.sleep(pause)


def try_bucket(folder: str) -> None:
    """Write, read and remove a file in a bucket, without catching the bucket library's errors."""
    path = epath.Path(folder) / f".tried_by_{socket.gethostname()}"
    require_bucket(folder, "--try_bucket")
    make_folder(path.parent)
    path.write_text("fire_lm")
    assert path.read_text() == "fire_lm", path
    path.unlink()


def main() -> int:
    """Run the job that the command line describes and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", type=json.loads, default=[], help="list of commands, as JSON")
    parser.add_argument("--folder", default="", help="folder for logs, local or gs://")
    parser.add_argument("--mark", default="", help="file to write when everything is done")
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--pause", type=float, default=10.0, help="seconds before a restart")
    parser.add_argument(
        "--try_bucket", metavar="GS", help="only check whether this folder is writable"
    )
    arguments = parser.parse_args()
    if arguments.try_bucket:
        try:
            try_bucket(arguments.try_bucket)
        except Exception as error:  # The bucket library raises various errors of TensorFlow.
            print(f"{arguments.try_bucket} cannot be written: {reason(error)}", file=sys.stderr)
            return 1
        return 0
    host = Host(arguments.restarts, arguments.pause, arguments.folder)
    announced = {one for one in ANNOUNCEMENTS if signal.getsignal(one) is signal.SIG_DFL}
    for signum in {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1} | announced:
        signal.signal(signum, host.stop)
    with standard_streams():  # the job goes on if its output cannot be written
        code = host.run(arguments.job)
    if code == 0 and arguments.mark:
        write_mark(arguments.mark, arguments.pause)
    return code


if __name__ == "__main__":
    sys.exit(main())
