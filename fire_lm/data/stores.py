"""Arrays on a disk or in a bucket, accessed only through TensorStore.

Arrays are one-dimensional and stored in Zarr version 3. A file (a "shard" in Zarr) contains many
chunks, which are read individually by byte range. Each chunk, and the index of each file, ends with
its CRC-32C checksum. A flipped bit or a truncated file therefore causes an error and never yields
wrong text.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import tensorstore as ts

CHUNK = 2**13  # elements; the smallest unit that is read for a random row
FILE = 2**24  # elements
_CACHE_BYTES = 2**28  # for file indices (16 bytes per chunk) and recently read chunks
# These retries take about half a minute in total; TensorStore's default is a quarter of an hour.
_RETRIES = {"max_retries": 6, "initial_delay": "1s", "max_delay": "8s"}

_PLAIN = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
_SMALL = [_PLAIN[0], {"name": "zstd", "configuration": {"level": 3}}, _PLAIN[1]]


def join(path: str, *names: str) -> str:
    return "/".join([path.rstrip("/"), *names])


class ArrayWriter:
    """A writer that creates an array and appends values to it, one complete file at a time.

    An existing array at the same path is replaced.
    """

    def __init__(self, path: str, dtype: np.dtype, *, compress: bool):
        self._dtype, self._waiting, self.size = dtype, [np.zeros(0, dtype)], 0
        self._waiting_size = 0
        spec = _spec(path, dtype, 0, compress)
        self._array = ts.open(spec, create=True, delete_existing=True, context=_context()).result()

    def append(self, values: np.ndarray) -> None:
        """Append values, which must be representable in the array's data type.

        Raises:
          ValueError: A value does not fit.
        """
        fitting = values.astype(self._dtype, copy=False)
        if not np.array_equal(fitting, values):  # a cast would wrap
            raise ValueError(f"a value does not fit into {self._dtype.name}")
        self._waiting.append(fitting)
        self._waiting_size += len(values)
        if self._waiting_size >= FILE:
            joined = np.concatenate(self._waiting)
            whole = len(joined) // FILE * FILE
            self._write(joined[:whole])
            self._waiting, self._waiting_size = [joined[whole:]], len(joined) - whole

    def close(self) -> None:
        self._write(np.concatenate(self._waiting))
        self._waiting, self._waiting_size = [], 0

    def _write(self, values: np.ndarray) -> None:
        start, self.size = self.size, self.size + len(values)
        self._array = self._array.resize(exclusive_max=[self.size]).result()
        if len(values):
            self._array[start : self.size].write(values).result()


def open_array(path: str, dtype: np.dtype, size: int, *, compress: bool) -> ts.TensorStore:
    """Open an array for reading without sending a request to the storage.

    The shape and data type of the array are known from the manifest.
    """
    spec = _spec(path, dtype, size, compress) | {
        "recheck_cached_data": False,
        "recheck_cached_metadata": False,
    }
    return ts.open(spec, open=True, assume_metadata=True, context=_context()).result()


@functools.cache
def _context() -> ts.Context:
    retries = {f"{storage}_request_retries": _RETRIES for storage in ("gcs", "s3", "http")}
    return ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}, **retries})


def _spec(path: str, dtype: np.dtype, size: int, compress: bool) -> dict[str, Any]:
    inner = {
        "chunk_shape": [CHUNK],
        "codecs": _SMALL if compress else _PLAIN,
        "index_codecs": _PLAIN,
    }
    return {
        "driver": "zarr3",
        "kvstore": _store(path),
        "metadata": {
            "shape": [size],
            "data_type": dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [FILE]}},
            "codecs": [{"name": "sharding_indexed", "configuration": inner}],
            "fill_value": 0,
        },
        # Missing data must be an error and must not be read as zeros, so chunks that contain only
        # zeros must be written too.
        "fill_missing_data_reads": False,
        "store_data_equal_to_fill_value": True,
    }


def _store(folder: str) -> str | dict[str, str]:
    """Return the TensorStore spec for a folder.

    A local path must not be passed as a URL, where %, # and ? are special characters.
    """
    if "://" in folder:
        return f"{folder}/"
    return {"driver": "file", "path": f"{os.path.abspath(folder)}/"}


def brief(error: Exception) -> str:
    """Return the first line of a TensorStore error without the source locations."""
    return str(error).split("\n")[0].split(" [")[0]
