"""The last file of a checkpoint: SHA-256 and size of every other one.

Orbax keeps no checksum of arrays, so a bit that flips on disk is restored in silence. And as the
manifest is written when all else is there, a step without one is a save that never ended. On a
local disk all of it outlives a power cut from then on: the step before may be removed.

Its lines are `sha256 bytes name`; the last one is the SHA-256 of those above.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator

from etils import epath

MANIFEST = "manifest.sha256"
NEVER_ENDED = "its save never ended"
_CHUNK_BYTES = 2**24


def write_manifest(step: epath.Path) -> None:
    """Makes the checkpoint in the folder `step` a whole one."""
    lines = "".join(f"{_fingerprint(step / name)} {name}\n" for name in sorted(_files(step)))
    # Under another name first: a torn manifest would look like damage.
    temporary = step / f"{MANIFEST}.tmp"
    temporary.write_text(f"{lines}{_sha256(lines)}\n")
    if is_local := "://" not in step.as_posix():
        _flush_tree(step)
    temporary.replace(step / MANIFEST)
    if is_local:
        _flush_folder(step)
        _flush_folder(step.parent)


def damage(step: epath.Path, part: int = 0, parts: int = 1) -> str | None:
    """What is wrong with the checkpoint in the folder `step`, in a few words; None if nothing.

    Of every `parts` files one is read, that of number `part`, so that processes can share the
    work. Files that are not in the manifest are nobody's.
    """
    try:
        if not (step / MANIFEST).exists():
            return NEVER_ENDED
        written = (step / MANIFEST).read_bytes().decode(errors="replace")
        *lines, last = written.splitlines(keepends=True) or [""]
        if last != f"{_sha256(''.join(lines))}\n":
            return f"{MANIFEST} is not what was written"
        for line in lines[part::parts]:
            digest, size, name = line.rstrip("\n").split(" ", 2)
            if not (step / name).exists():
                return f"{name} is missing"
            if _fingerprint(step / name) != f"{digest} {size}":
                return f"{name} is not what was written"
    except OSError as error:  # as of a bad block
        return f"it cannot be read: {error}"
    return None


def _flush_tree(top: epath.Path) -> None:
    """Orbax flushes its arrays alone."""
    for folder, _, names in os.walk(top):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                os.fsync(file.fileno())
        _flush_folder(folder)


def _flush_folder(folder: str | epath.Path) -> None:
    """The names in it. Some file systems, as of a mounted bucket, refuse this and need none."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


def _files(folder: epath.Path, prefix: str = "") -> Iterator[str]:
    for path in folder.iterdir():
        if path.is_dir():
            yield from _files(path, f"{prefix}{path.name}/")
        else:
            yield f"{prefix}{path.name}"


def _fingerprint(path: epath.Path) -> str:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return f"{digest.hexdigest()} {size}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
