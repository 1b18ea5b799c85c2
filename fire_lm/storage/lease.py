"""Leases with one holder at a time: of a run directory, of a checkpoint being scored.

On a disk the operating system keeps the lock and releases it with the process. In a bucket the
lock is an object, written on the condition that nobody else has written it, and signed again every
20 seconds. A holder that died leaves its object: whoever watches it for a minute without a new
signature takes it over. No clocks of two machines are compared for that.
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

SIGN_SECONDS = 20.0  # between two signatures; after one that failed, a quarter of that
ANSWER_SECONDS = 15.0  # for a signature: one that is held back must leave time for others
VOID_SECONDS = 60.0  # without a signature, as the one who waits sees it

# When this process first saw the signature that each lease bears now.
_seen: dict[str, tuple[bytes, float]] = {}


class LeaseLost(RunFailed):
    """Another process holds the lease, or it has been removed."""


class Lease:
    """An object in a bucket that one process holds.

    Attributes:
      lost: who has taken it over, or that it is gone; empty while it is ours.
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
          Empty if it is ours, else the words that name its holder, host and time.

        Raises:
          RunFailed: the storage refuses.
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
        """Whose the lease is, with host and time; empty if it is nobody's.

        Raises:
          RunFailed: the storage refuses.
        """
        content = objects.read(self._path).content
        return "" if content is None else _named(content)

    def sign(self) -> None:
        """Signs again: nobody takes the lease over during the next minute.

        Raises:
          LeaseLost: it is not ours any more. RunFailed: the storage refuses, or does not answer.
        """
        with self._signing:
            if not self.lost and not self._ended.is_set():
                generation = objects.write(
                    self._path, self._signature(), self._generation, ANSWER_SECONDS
                )
                if generation is None:
                    found = objects.read(self._path, ANSWER_SECONDS)
                    if _id_of(found.content) == self._id:  # of a write that had no answer in time
                        generation = found.generation
                    elif found.content is None:
                        self.lost = "nobody: it has been removed"
                    else:
                        self.lost = _named(found.content)
                self._generation = generation or b""
        if self.lost:
            raise LeaseLost(f"{self._path} is now held by {self.lost}")

    def release(self) -> None:
        """Remove the object, if it is still ours; storage that refuses leaves it to grow void."""
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
    """The same for two processes that know each other by their process ids."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _lives(process: Any) -> bool:
    if not isinstance(process, int) or not _machine():
        return True  # not known
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
