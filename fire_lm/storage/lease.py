"""Leases for run directories, and for checkpoints that are being scored.

A lease has at most one holder at a time. It serves only buckets: on a disk, a file lock suffices,
which the operating system releases when the process ends. A lease is an object that a process
creates only if no other process has created it. The holder rewrites the object every 20 seconds to
sign the lease again. If the holder dies, its object remains, and a process that sees no new
signature for a minute takes over the lease. The clocks of different machines are never compared.

A holder that was paused for longer, such as by a suspended machine, may have lost its lease, so it
signs again before it goes on (`Lease.check`). A process that waits for a lease counts only the time
in which it looked at it, because the holder may have been paused together with this process.
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

SIGN_SECONDS = 20.0  # the time between two signatures; a quarter of this after a failed signature
ANSWER_SECONDS = 15.0  # the timeout of a signature, which must leave time for further attempts
VOID_SECONDS = 60.0  # a lease is void after this time without a new signature

# For each lease, its latest known generation, for how many seconds this process has watched it, and
# the time at which this process last looked.
_seen: dict[str, tuple[bytes, float, float]] = {}


class LeaseLost(RunFailed):
    """The error raised if this process's lease has been removed or taken over."""


class Lease:
    """A lease in a bucket, represented by an object.

    Attributes:
      lost: An explanation of how this process lost the lease, or an empty string if it has not.
    """

    def __init__(self, path: str | epath.Path):
        self._path = epath.Path(path).as_posix()
        self._id = uuid.uuid4().hex
        self._generation = b""
        self._ended = threading.Event()
        self._signing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._tried = _clocks()  # the last attempt to sign
        self.lost = ""

    def take(self) -> str:
        """Take the lease if no process holds it, or if its holder has died.

        Returns:
          An empty string if this process now holds the lease; otherwise, the description of the
          holder that `holder` returns.

        Raises:
          RunFailed: The request to the storage fails.
        """
        stored = objects.read(self._path)
        if stored.content is not None and not _is_void(
            self._path, stored.content, stored.generation
        ):
            return _named(stored.content)
        generation = objects.write(self._path, self._signature(), stored.generation)
        if generation is None:
            return _named(objects.read(self._path).content or b"")
        self._generation, self._tried = generation, _clocks()
        self._thread = threading.Thread(target=self._keep_signing, name="lease", daemon=True)
        self._thread.start()
        return ""

    def holder(self) -> str:
        """Return a description of the holder: its process, its host and when it last signed.

        The holder may have died. The result is an empty string if no process holds the lease.

        Raises:
          RunFailed: The request to the storage fails.
        """
        content = objects.read(self._path).content
        return "" if content is None else _named(content)

    def is_held(self) -> bool:
        """Return whether a process holds the lease that, as far as is known, has not died.

        Raises:
          RunFailed: The request to the storage fails.
        """
        stored = objects.read(self._path)
        return stored.content is not None and not _is_void(
            self._path, stored.content, stored.generation
        )

    def sign(self) -> None:
        """Sign the lease again, so that no other process takes it over during the next minute.

        Raises:
          LeaseLost: This process no longer holds the lease.
          RunFailed: The request to the storage fails or receives no reply.
        """
        with self._signing:
            self._tried = _clocks()
            if not self.lost and not self._ended.is_set():
                generation = objects.write(
                    self._path, self._signature(), self._generation, ANSWER_SECONDS
                )
                if generation is None:
                    stored = objects.read(self._path, ANSWER_SECONDS)
                    if _facts(stored.content or b"").get("id") == self._id:
                        # an earlier write whose reply was late
                        generation = stored.generation
                    elif stored.content is None:
                        self.lost = f"{self._path} has been removed"
                    else:
                        self.lost = f"{self._path} is now held by {_named(stored.content)}"
                self._generation = generation or b""
        if self.lost:
            raise LeaseLost(self.lost)

    def check(self) -> None:
        """Raise LeaseLost if this process has lost the lease; return at once in the usual case.

        A request is made only if this process has not tried to sign for so long that it must have
        been paused, and that another process may have taken over the lease.

        Raises:
          LeaseLost: This process no longer holds the lease.
          RunFailed: The request to the storage fails or receives no reply.
        """
        paused = max(now - then for now, then in zip(_clocks(), self._tried, strict=True))
        if self.lost or paused > VOID_SECONDS:
            self.sign()

    def release(self) -> None:
        """Release the lease by removing its object, if this process still holds the lease.

        If the removal fails, the lease expires after a minute.
        """
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
    """Return whether the holder of a lease has died, as far as this process can tell."""
    now = time.monotonic()
    known, watched, looked = _seen.get(path, (b"", 0.0, now))
    watched = watched + min(now - looked, SIGN_SECONDS) if known == generation else 0.0
    _seen[path] = generation, watched, now
    facts = _facts(content)
    if facts.get("machine") == _machine() and not _lives(facts.get("process")):
        return True
    return watched > VOID_SECONDS


def _clocks() -> tuple[float, ...]:
    """Return the readings, in seconds, of clocks that run on while a machine is suspended.

    The wall clock may jump, and the other clock stands still while a virtual machine is paused.
    """
    boot = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the former exists on Linux
    return time.clock_gettime(boot), time.time()


def _machine() -> str:
    """Return an id that is identical for processes that can see each other's process ids.

    The id is empty if it cannot be determined.
    """
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _lives(process: Any) -> bool:
    if not isinstance(process, int) or not _machine():
        return True  # whether the process has died cannot be determined
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


def _facts(content: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(content)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
