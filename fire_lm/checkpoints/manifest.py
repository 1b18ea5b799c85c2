"""The manifest, which is the last file of a checkpoint and serves to verify all other files.

Orbax stores no checksums of arrays, so a restore would not notice a bit that flipped on disk. The
manifest is written last, so a step without a manifest comes from a save that never finished. On a
local disk, the whole checkpoint survives a power failure once the manifest has been written, and
the previous step may then be removed.

In a bucket, the files that contain arrays are not read back to compute checksums. The manifest only
lists these files, and contains a fingerprint of each array as it was in memory. A restore compares
this fingerprint with that of the array that it reads.

Each line has one of three forms: `sha256 bytes name` for a file with a checksum, `- - name` for a
file that is only listed, and `fingerprint digits array` for an array. The last line is the SHA-256
of all preceding lines.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from etils import epath

from fire_lm.errors import RunFailed
from fire_lm.storage import (
    create_text,
    in_bucket,
    objects,
    present,
    read_bytes,
    replace_text,
    stored_keys,
)

MANIFEST = "manifest.sha256"
NEVER_ENDED = "its save never finished"
_NOT_READ = "- -"
_ARRAY = "fingerprint"
_ARRAYS_OF = "state/"  # the folder whose files contain arrays
_METADATA = "_CHECKPOINT_METADATA"  # the first file that Orbax writes
_READERS = 16  # the number of concurrent reads from a bucket


def write_manifest(
    step: epath.Path, arrays: Mapping[str, str] | None = None, names: Iterable[str] = ()
) -> None:
    """Write the manifest into the folder `step`, which completes the checkpoint.

    Args:
      step: The folder of the checkpoint.
      arrays: The fingerprint of each array, keyed by path; used only in a bucket.
      names: The path of each array, such as `params/embedding`. The store of the arrays must list
        all of them when it is opened as for a restore; the arrays themselves are not read.

    Raises:
      RunFailed: An array is missing, or another process has removed or completed the checkpoint.
    """
    if in_bucket(step):
        files = sorted(objects.names_below(step))
        if MANIFEST in files or _METADATA not in files or not _holds_arrays(files):
            raise RunFailed(f"another process has changed {step} in the meantime")
        _check_arrays(step, names)
        read = [name for name in files if not name.startswith(_ARRAYS_OF)]
        with ThreadPoolExecutor(_READERS) as pool:
            known = dict(zip(read, pool.map(lambda name: _digest(step / name), read), strict=True))
        lines = "".join(f"{known.get(name, _NOT_READ)} {name}\n" for name in files)
        lines += "".join(f"{_ARRAY} {value} {path}\n" for path, value in (arrays or {}).items())
        if not create_text(step / MANIFEST, f"{lines}{_sha256(lines)}\n"):
            raise RunFailed(f"another process has completed {step} in the meantime")
        return
    _check_arrays(step, names)
    lines = "".join(f"{_digest(step / name)} {name}\n" for name in sorted(_files(step)))
    _flush_tree(step)
    # Written atomically, because a partial manifest would look like damage.
    replace_text(step / MANIFEST, f"{lines}{_sha256(lines)}\n", durable=True)
    _flush_folder(step)
    _flush_folder(step.parent)


def _check_arrays(step: epath.Path, names: Iterable[str]) -> None:
    """Raise RunFailed unless the checkpoint's store of arrays can be opened and lists all of them.

    Orbax reports a success even if it has not merged the parts of the store.
    """
    keys = stored_keys(step / _ARRAYS_OF)
    for name in names:
        if f"{name.replace('/', '.')}/.zarray" not in keys:
            raise RunFailed(f"its arrays cannot be read: {name} is missing")


def damage(step: epath.Path, part: int = 0, parts: int = 1) -> str | None:
    """Return a short description of damage to a checkpoint, or None if all files are intact.

    Only every `parts`-th file is checked, beginning with number `part`, so that several processes
    can share the work. Files that are not in the manifest are ignored.

    Raises:
      RunFailed: A request to the bucket fails, which does not count as damage.
    """
    try:
        written = read_bytes(step / MANIFEST)
        if written is None:
            return NEVER_ENDED
        lines = _checked_lines(written)
        if lines is None:
            return f"{MANIFEST} has changed since it was written"
        files = [line.split(" ", 2) for line in lines if not line.startswith(f"{_ARRAY} ")]
        if not _holds_arrays(name for _, _, name in files):
            return f"{MANIFEST} lists no arrays"
        there = set(objects.names_below(step)) if in_bucket(step) else None
        for digest, size, name in files[part::parts]:
            if not (name in there if there is not None else present(step / name)):
                return f"{name} is missing"
            if f"{digest} {size}" not in (_NOT_READ, _digest(step / name)):
                return f"{name} has changed since it was written"
    except OSError as error:  # such as a bad block
        return f"it cannot be read: {error}"
    return None


def array_fingerprints(step: epath.Path) -> dict[str, str]:
    """Return the fingerprint of each array, keyed by path.

    The dict is empty if the files with the arrays have checksums instead.

    Raises:
      RunFailed: The manifest is damaged or cannot be read.
    """
    lines = _checked_lines(read_bytes(step / MANIFEST) or b"")
    if lines is None:
        raise RunFailed(f"{step / MANIFEST} is missing or damaged")
    recorded = (line.split(" ", 2) for line in lines if line.startswith(f"{_ARRAY} "))
    return {path: value for _, value, path in recorded}


def _holds_arrays(names: Iterable[str]) -> bool:
    return any(name.startswith(_ARRAYS_OF) for name in names)


def _checked_lines(written: bytes) -> list[str] | None:
    """Return all lines but the last, or None if the last line is not the SHA-256 of the others."""
    *lines, last, end = ["", *written.decode(errors="replace").split("\n")]
    if end or last != _sha256("".join(f"{line}\n" for line in lines[1:])):
        return None
    return lines[1:]


def _flush_tree(top: epath.Path) -> None:
    """Flush all files and folders to the disk, because Orbax flushes only its arrays."""
    for folder, _, names in os.walk(top):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                os.fsync(file.fileno())
        _flush_folder(folder)


def _flush_folder(folder: str | epath.Path) -> None:
    """Flush a folder's entries to the disk if the file system supports this.

    A mounted bucket, for example, does not.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


def _files(folder: epath.Path, prefix: str = "") -> Iterator[str]:
    """Yield the files below a folder; unlike in a glob, one that cannot be read is an error."""
    for path in folder.iterdir():
        if path.is_dir():
            yield from _files(path, f"{prefix}{path.name}/")
        else:
            yield f"{prefix}{path.name}"


def _digest(path: epath.Path) -> str:
    if in_bucket(path):
        content = read_bytes(path) or b""
        return f"{hashlib.sha256(content).hexdigest()} {len(content)}"
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()} {size}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
