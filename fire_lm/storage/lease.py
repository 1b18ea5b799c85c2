"""Leases with one holder at a time, for a run directory or for a checkpoint that is being scored.

On a disk the operating system keeps the lock and releases it when the process ends. In a bucket the
lock is an object that is written on the condition that nobody else has written it, and is signed
again every 20 seconds. A holder that dies leaves its object behind; a process that has watched it
for a minute without seeing a new signature takes it over. This never compares the clocks of two
machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from etils import epath

from fire_lm.errors import RunFailed
from fire_lm.storage import objects

SIGN_SECONDS = 20.0  # between two signatures; a quarter of this after a failed one
ANSWER_SECONDS = 15.0  # timeout of one signature, which must leave time for further attempts
VOID_SECONDS = 60.0  # without a new signature, measured by the waiting process

# For each lease, its current generation and when this process first saw it.
_seen: dict[str, tuple[bytes, float]] = {}


class LeaseLost(RunFailed):
    """The loss of a lease: another process holds it, or it has been removed."""


class Lease:
    """An object in a bucket that one process holds.

    Attributes:
      lost: Who has taken the lease over, or that it has been removed; empty while it is ours.
    """

    def __init__(self, path: str | epath.Path):
        self._path = epath.Path(path).as_posix()
        self._id = uuid.uuid4().hex
        self._generation = b""
        self._ended = threading.Event()
        self._signing = threading.Lock()
        self._thread: threading.Thread | None = None
        self.lost = ""

    def take(self) -> str:
        """Take the lease if nobody holds it, or if its holder has died.

        Returns:
          An empty string if the lease is now ours, else its holder's process, host and time.

        Raises:
          RunFailed: The storage fails.
        """
        found = objects.read(self._path)
        if found.content is not None and not _is_void(self._path, found.content, found.generation):
            return _named(found.content)
        generation = objects.write(self._path, self._signature(), found.generation)
        if generation is None:
            return _named(objects.read(self._path).content or b"")
        self._generation = generation
        self._thread = threading.Thread(target=self._keep_signing, name="lease", daemon=True)
        self._thread.start()
        return ""

    def holder(self) -> str:
        """Return the holder of the lease, with host and time, or "" if nobody holds it.

        Raises:
          RunFailed: The storage fails.
        """
        content = objects.read(self._path).content
        return "" if content is None else _named(content)

    def sign(self) -> None:
        """Sign the lease again, so that no other process takes it over during the next minute.

        Raises:
          LeaseLost: The lease is no longer ours.
          RunFailed: The storage fails or does not reply.
        """
        with self._signing:
            if not self.lost and not self._ended.is_set():
                generation = objects.write(
                    self._path, self._signature(), self._generation, ANSWER_SECONDS
                )
                if generation is None:
                    found = objects.read(self._path, ANSWER_SECONDS)
                    if _id_of(found.content) == self._id:  # from a write whose reply came too late
                        generation = found.generation
                    elif found.content is None:
                        self.lost = "nobody: it has been removed"
                    else:
                        self.lost = _named(found.content)
                self._generation = generation or b""
        if self.lost:
            raise LeaseLost(f"{self._path} is now held by {self.lost}")

    def release(self) -> None:
        """Remove the object if it is still ours; if the storage fails, the lease simply expires."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._generation and not self.lost:
            with contextlib.suppress(RunFailed):
                objects.remove(self._path, self._generation)

    def _keep_signing(self) -> None:
        pause = SIGN_SECONDS
        while not self.lost and not self._ended.wait(pause):
            try:
                self.sign()
                pause = SIGN_SECONDS
            except RunFailed:  # the next signature may succeed
                pause = SIGN_SECONDS / 4

    def _signature(self) -> bytes:
        facts = {
            "id": self._id,
            "process": os.getpid(),
            "host": socket.gethostname(),
            "machine": _machine(),
            "signed": time.time(),
        }
        return json.dumps(facts).encode()


def _is_void(path: str, content: bytes, generation: bytes) -> bool:
    """Return whether the holder has died, as far as this process has seen."""
    now = time.monotonic()
    if _seen.get(path, (b"",))[0] != generation:
        _seen[path] = generation, now
    facts = _facts(content)
    if facts.get("machine") == _machine() and not _lives(facts.get("process")):
        return True
    return now - _seen[path][1] > VOID_SECONDS


def _machine() -> str:
    """Return an id that is equal for two processes which can see each other's process ids."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _lives(process: Any) -> bool:
    if not isinstance(process, int) or not _machine():
        return True  # this cannot be determined
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _named(content: bytes) -> str:
    facts = _facts(content)
    signed = facts.get("signed")
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(signed if signed else 0))
    return f"process {facts.get('process')} on {facts.get('host')}, last seen {when} UTC"


def _id_of(content: bytes | None) -> str:
    return str(_facts(content or b"").get("id"))


def _facts(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
