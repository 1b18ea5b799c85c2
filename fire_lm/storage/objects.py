"""Single objects of a bucket, accessed through tensorstore with generations as preconditions.

A generation names one version of an object; an object that does not exist has a generation too. A
write or removal that is conditional on a generation is atomic, which is all that a lease needs.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from etils import epath

from fire_lm.errors import RunFailed, reason

# About ten seconds in all; tensorstore's default is a quarter of an hour.
RETRIES = {"max_retries": 5, "initial_delay": "500ms", "max_delay": "4s"}
_ANSWER_SECONDS = 120.0  # after which a server that does not reply counts as failing


class Stored(NamedTuple):
    """The content and generation of an object; `content` is None if the object does not exist."""

    content: bytes | None
    generation: bytes


def read(path: str | epath.Path, seconds: float = _ANSWER_SECONDS) -> Stored:
    """Read an object, waiting at most `seconds` for the reply.

    Raises:
      RunFailed: The object cannot be read, which says nothing about whether it exists.
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
    """Write an object; with `if_generation`, only if the current one has that generation.

    Returns:
      The new generation, or None if the current object has another generation and other content.
      (With the same content, it comes from our own write, whose reply was lost.)

    Raises:
      RunFailed: The object cannot be written.
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
    """Remove an object if it exists and, with `if_generation`, has that generation.

    Returns:
      Whether the object is absent now.

    Raises:
      RunFailed: The object cannot be removed.
    """
    store, key = _located(path)
    condition = {} if if_generation is None else {"if_equal": if_generation}
    removed = _result(store.write(key, None, **condition), f"{_url(path)} cannot be removed")
    return bool(removed.generation) or read(path).content is None


def names_below(path: str | epath.Path) -> list[str]:
    """Return the names of all objects below a folder at any depth, relative to it.

    This takes one request per thousand objects. The empty objects that some libraries create to
    stand for folders are omitted.

    Raises:
      RunFailed: The folder cannot be listed.
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
