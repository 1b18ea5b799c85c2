"""Files in a bucket with the interface of Python's binary files, which gzip and PyArrow need."""

from __future__ import annotations

import io
from typing import Any, BinaryIO, cast

from etils import epath

_BUFFER_BYTES = 2**20  # per read; TensorFlow itself reads further ahead


def open_binary(path: epath.Path) -> BinaryIO:
    """Open a file on a disk or in a bucket for reading.

    Raises:
      OSError, tf.errors.OpError: The file cannot be opened. Reading from it may raise the same
        errors later.
    """
    if "://" not in path.as_posix():
        return path.open("rb")  # type: ignore[return-value]
    return cast(BinaryIO, io.BufferedReader(_Raw(path.as_posix()), _BUFFER_BYTES))


class _Raw(io.RawIOBase):
    """A raw file based on TensorFlow's GFile, which lacks `closed`, `readable` and `readinto`."""

    def __init__(self, name: str):
        from fire_lm.data.quiet_tensorflow import tf

        self._file = tf.io.gfile.GFile(name, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
