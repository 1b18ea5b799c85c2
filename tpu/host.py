"""Runs a job on one host, in the container: `python -m tpu.host --job='[["fire-lm", ...]]'`.

A command that fails is started again, some times, unless it would fail again: exit code 0 is done,
2 a mistake of its configuration, and a run that stopped at a loss that is not finite would come
there again. All hosts judge alike, by exit codes that they share and by the run directory, and find
each other again when they have all started. What a command prints is also kept in FOLDER/logs/.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from types import FrameType
from typing import IO

from etils import epath

# This program's own exit code; fire-lm has none for it.
DIVERGED = 4
FINAL = (0, 2, DIVERGED)


class Host:
    """One job's process on this host."""

    def __init__(self, restarts: int, pause: float, folder: str):
        self._restarts, self._pause, self._folder = restarts, pause, folder
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def stop(self, signum: int, frame: FrameType | None) -> None:
        """SIGTERM and SIGINT: the command saves its state and ends, and is not started again."""
        self._stopping = True
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)

    def run(self, commands: Sequence[Sequence[str]]) -> int:
        """The exit code of the first command that failed for good, else 0."""
        for command in commands:
            if code := self._insist(command):
                return code
        return 0

    def _insist(self, command: Sequence[str]) -> int:
        for attempt in range(self._restarts + 1):
            if self._stopping:
                return 3
            if attempt:
                print(f"tpu.host: start {attempt + 1} of {self._restarts + 1}", flush=True)
            code = self._once(command, attempt)
            why = diverged(workdir_of(command)) if code not in (*FINAL, 3) else ""
            if why:
                print(f"tpu.host: {why}: it would come there again", flush=True)
                return DIVERGED
            if code in FINAL or self._stopping:
                return code
            print(f"tpu.host: {command[0]} ended with exit code {code}", flush=True)
            if attempt < self._restarts:
                time.sleep(self._pause)
        return code

    def _once(self, command: Sequence[str], attempt: int) -> int:
        with tempfile.TemporaryFile() as log:
            self._child = subprocess.Popen(
                list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            if self._stopping:  # the signal came between the check and the start
                self._child.send_signal(signal.SIGTERM)
            assert self._child.stdout is not None
            while chunk := self._child.stdout.read1(65536):  # type: ignore[attr-defined]
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
                log.write(chunk)
            code = self._child.wait()
            if self._folder:
                keep(log, self._folder, attempt)
        return code if code >= 0 else 128 - code  # as a shell says it


def workdir_of(command: Sequence[str]) -> str:
    """What `--workdir=` names, else nothing."""
    named = [a.partition("=")[2] for a in command if a.startswith("--workdir=")]
    return named[-1] if named else ""


def keep(log: IO[bytes], folder: str, attempt: int) -> None:
    """Puts what was printed into `folder`: a lost host takes its own disk with it."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path = epath.Path(folder) / "logs" / f"{stamp}-{socket.gethostname()}-{attempt}.txt"
    log.seek(0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(log.read())
    except Exception as error:  # a bucket's errors are TensorFlow's; a log is not worth the run
        print(f"tpu.host: {path} was not written: {error}", flush=True)


def diverged(workdir: str) -> str:
    """Why the run in `workdir` would fail again, if it stopped at a loss that is not finite."""
    path = epath.Path(workdir) / "spikes.jsonl"
    if not workdir or not path.exists():
        return ""
    lines = path.read_text().splitlines()
    last = json.loads(lines[-1]) if lines else {}
    if not last.get("stopped"):
        return ""
    return f"loss {last['loss']}, grad_norm {last['grad_norm']} at step {last['step']}"


def try_bucket(folder: str) -> None:
    """Writes, reads and removes a file there. Raises what the bucket's library raises."""
    path = epath.Path(folder) / f".tried_by_{socket.gethostname()}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("fire_lm")
    assert path.read_text() == "fire_lm", path
    path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", type=json.loads, default=[], help="JSON: a list of commands")
    parser.add_argument("--folder", default="", help="for logs, local or gs://")
    parser.add_argument("--mark", default="", help="file to write when all is done")
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--pause", type=float, default=10.0, help="seconds before a restart")
    parser.add_argument("--try_bucket", metavar="GS", help="see whether it can be written; no job")
    arguments = parser.parse_args()
    if arguments.try_bucket:
        try_bucket(arguments.try_bucket)
        return 0
    host = Host(arguments.restarts, arguments.pause, arguments.folder)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, host.stop)
    code = host.run(arguments.job)
    if code == 0 and arguments.mark:
        epath.Path(arguments.mark).write_text("")
    return code


if __name__ == "__main__":
    sys.exit(main())
