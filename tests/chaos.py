"""Random faults for a job of two processes in a bucket, as a schedule that its seed determines.

Each process runs under `python -m tpu.host`, as on a host of a slice, which restarts it. A fault
strikes after a number of further requests to the bucket and a short delay, so that it falls into
the same part of a start-up, a save or the steps in between, whatever the speed of the machine.
"""

import contextlib
import dataclasses
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bucket import Bucket
from bucket_faults import Cut, Fault, LostAnswer, OneWriteASecond, Slow, Status
from environments import with_devices
from started_together import free_port

ROOT = Path(__file__).resolve().parent.parent
SILENCE = 10.0  # seconds after which a silent process counts as lost
_PROCESSES = (0, 1)
# `fire-lm`, which waits for the other process's part of a checkpoint not for 15 minutes (a save
# that has failed in one process), but for 20 s.
PROGRAM = """
import sys
from fire_lm import cli
from fire_lm.checkpoints import orbax_checkpointer

orbax_checkpointer.WRITING_SECONDS = 20
sys.exit(cli.main(sys.argv[1:]))
"""
_UNLIMITED = resource.RLIM_INFINITY
_WAIT = 60.0  # seconds after which a fault strikes although the job makes no requests


@dataclasses.dataclass(frozen=True)
class Event:
    """A fault: what happens to which process, or to the bucket, after how many more requests."""

    after: int
    delay: float
    kind: str
    process: int
    seconds: float

    def __str__(self) -> str:
        where = "the bucket" if self.kind in BUCKET else f"process {self.process}"
        return (
            f"after {self.after} requests and {self.delay:.1f} s: {self.kind} of {where} "
            f"({self.seconds:.0f} s)"
        )


# Faults of the bucket, which last for some seconds.
BUCKET: dict[str, Sequence[Fault]] = {
    "503s": [Status(status=503, chance=0.3)],
    "cut connections": [Cut(chance=0.1), LostAnswer(chance=0.1)],
    "slowness": [Slow(seconds=1.0, chance=0.2)],
    "one write a second": [OneWriteASecond()],
}
# Faults of a process; a freeze may be shorter or longer than SILENCE.
PROCESS = ("kill -9", "SIGTERM", "freeze", "full disk", "reboot")


def schedule(seed: int) -> list[Event]:
    """Return the faults of one round, which are the same for the same seed."""
    draw = random.Random(seed)
    kinds = [*PROCESS, *PROCESS, *BUCKET]  # those of a process twice as often
    return [
        Event(
            after=draw.randrange(5, 300),
            delay=draw.uniform(0.0, 1.5),
            kind=draw.choice(kinds),
            process=draw.choice(_PROCESSES),
            seconds=draw.choice((2.0, 5.0, SILENCE + 6.0)),
        )
        for _ in range(draw.randrange(3, 7))
    ]


class Hosts:
    """Two hosts with a process each, whose output goes to files in `folder`."""

    def __init__(self, arguments: Sequence[str], bucket: Bucket, folder: Path):
        command = [sys.executable, "-c", PROGRAM, *arguments]
        self._command = [sys.executable, "-m", "tpu.host", "--restarts=40", "--pause=1"]
        self._command.append(f"--job={json.dumps([command])}")
        self._environment = bucket.child_environment(retry_ms=100) | {
            name: value for name, value in with_devices(1).items() if name == "XLA_FLAGS"
        }
        self._environment |= {
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
            "JAX_NUM_PROCESSES": str(len(_PROCESSES)),
        }
        self.logs = [folder / f"host_{index}.txt" for index in _PROCESSES]
        self._hosts = [self._started(index) for index in _PROCESSES]

    def _started(self, index: int) -> subprocess.Popen[bytes]:
        with self.logs[index].open("ab") as log:
            return subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment | {"JAX_PROCESS_ID": str(index)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def child(self, index: int) -> int:
        """Return the process id of what a host runs, or 0 if it runs nothing now."""
        pid = self._hosts[index].pid
        with contextlib.suppress(OSError, ValueError):
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return 0

    def reboot(self, index: int) -> None:
        """Kill a host and all that runs on it, and start it again."""
        os.killpg(self._hosts[index].pid, signal.SIGKILL)
        self._hosts[index].wait()
        self._hosts[index] = self._started(index)

    def codes(self) -> list[int | None]:
        return [host.poll() for host in self._hosts]

    def running(self) -> bool:
        return None in self.codes()

    def end(self) -> None:
        for host in self._hosts:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(host.pid, signal.SIGKILL)
            host.wait()

    def output(self) -> str:
        return "\n".join(f"--- {log}:\n{log.read_text()[-6000:]}" for log in self.logs)


def strike(event: Event, hosts: Hosts, bucket: Bucket) -> None:
    """Let a fault happen, until it is over."""
    if event.kind in BUCKET:
        bucket.faults = BUCKET[event.kind]
        pause(event.seconds, hosts)
        bucket.faults = []
        return
    if event.kind == "reboot":
        hosts.reboot(event.process)
        return
    if not (pid := hosts.child(event.process)):
        return
    with contextlib.suppress(ProcessLookupError):
        if event.kind == "full disk":
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (2000, _UNLIMITED))
            pause(event.seconds, hosts)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (_UNLIMITED, _UNLIMITED))
        elif event.kind == "freeze":
            os.kill(pid, signal.SIGSTOP)
            pause(event.seconds, hosts)
            os.kill(pid, signal.SIGCONT)
        else:
            os.kill(pid, signal.SIGKILL if event.kind == "kill -9" else signal.SIGTERM)


def pause(seconds: float, hosts: Hosts, until: Callable[[], bool] = lambda: False) -> None:
    """Wait, but no longer than the hosts run."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and hosts.running() and not until():
        time.sleep(0.1)


def disturb(events: Sequence[Event], hosts: Hosts, bucket: Bucket) -> int:
    """Let all faults happen, one after another, and return how many did before the job ended."""
    for number, event in enumerate(events):
        wanted = bucket.num_requests + event.after
        pause(_WAIT, hosts, lambda: bucket.num_requests >= wanted)  # noqa: B023
        pause(event.delay, hosts)
        if not hosts.running():
            return number
        print(f"{time.strftime('%H:%M:%S')} {event}", flush=True)
        strike(event, hosts, bucket)
    return len(events)
