"""Single objects of a bucket, through tensorstore, with generations as preconditions.

A generation names one version of an object; that of an object which does not exist is a value too.
A write or a removal on the condition of a generation is atomic, which is all that a lease needs.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from etils import epath

from fire_lm.errors import RunFailed, reason

# About ten seconds in all. By default tensorstore tries for a quarter of an hour.
RETRIES = {"max_retries": 5, "initial_delay": "500ms", "max_delay": "4s"}
_ANSWER_SECONDS = 120.0  # after which a server that holds a request back counts as failing


class Stored(NamedTuple):
    """An object; `content` is None if there is none."""

    content: bytes | None
    generation: bytes


def read(path: str | epath.Path, seconds: float = _ANSWER_SECONDS) -> Stored:
    """Read an object; one that gives no answer for `seconds` cannot be read.

    Raises:
      RunFailed: it cannot be read, which says nothing about whether it exists.
    """
    store, key = _located(path)
    found = _result(store.read(key), f"{_url(path)} cannot be read", seconds)
    return Stored(None if found.state == "missing" else found.value, found.stamp.generation)


def write(
    path: str | epath.Path,
    content: bytes,
    if_generation: bytes | None = None,
    seconds: float = _ANSWER_SECONDS,
) -> bytes | None:
    """Write an object; with `if_generation` only if the present one is of that generation.

    Returns:
      The new generation; None if the present object is of another generation, and of another
      content: else the answer to our own write was lost.

    Raises:
      RunFailed: it cannot be written.
    """
    store, key = _located(path)
    condition = {} if if_generation is None else {"if_equal": if_generation}
    failure = f"{_url(path)} cannot be written"
    written = _result(store.write(key, content, **condition), failure, seconds)
    if written.generation:
        return bytes(written.generation)
    found = read(path, seconds)
    return found.generation if found.content == content else None


def remove(path: str | epath.Path, if_generation: bytes | None = None) -> bool:
    """Remove an object if there is one, and if it is of this generation.

    Returns:
      Whether there is none now.

    Raises:
      RunFailed: it cannot be removed.
    """
    store, key = _located(path)
    condition = {} if if_generation is None else {"if_equal": if_generation}
    removed = _result(store.write(key, None, **condition), f"{_url(path)} cannot be removed")
    return bool(removed.generation) or read(path).content is None


def names_below(path: str | epath.Path) -> list[str]:
    """Names of all objects below a folder, relative to it, at any depth: a request a thousand.

    The empty objects that some libraries make to stand for folders are left out.

    Raises:
      RunFailed: it cannot be listed.
    """
    import tensorstore as ts

    store, key = _located(path)
    prefix = f"{key}/" if key else ""
    after = f"{key}0" if key else ""  # "0" comes after "/"
    found = store.list(ts.KvStore.KeyRange(prefix, after), strip_prefix_length=len(prefix.encode()))
    names = [name.decode() for name in _result(found, f"{_url(path)} cannot be listed")]
    return [name for name in names if name and not name.endswith("/")]


def _located(path: str | epath.Path) -> tuple[Any, str]:
    bucket, _, key = _url(path).removeprefix("gs://").partition("/")
    return _bucket(bucket), key.rstrip("/")


def _url(path: str | epath.Path) -> str:
    return path if isinstance(path, str) else path.as_posix()


@functools.cache
def _bucket(name: str) -> Any:
    import tensorstore as ts

    context = ts.Context({"gcs_request_retries": RETRIES})
    return ts.KvStore.open({"driver": "gcs", "bucket": name}, context=context).result()


def _result(future: Any, failure: str, seconds: float = _ANSWER_SECONDS) -> Any:
    try:
        return future.result(timeout=seconds)
    except TimeoutError as error:
        raise RunFailed(f"{failure}: no answer within {seconds:.0f} s") from error
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        raise RunFailed(f"{failure}: {reason(error)}") from error
