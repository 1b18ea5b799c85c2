"""Single objects in a bucket, accessed through TensorStore with generations as preconditions.

A generation identifies a version of an object. A missing object has a generation too. A write or
removal that is conditional on a generation is atomic, which is all that a lease requires.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from etils import epath

from fire_lm.errors import RunFailed, reason

# These retries take about ten seconds in total; TensorStore's default is a quarter of an hour.
RETRIES = {"max_retries": 5, "initial_delay": "500ms", "max_delay": "4s"}
_ANSWER_SECONDS = 120.0  # a request without a reply within this time counts as failed


class Denied(RunFailed):
    """A request that the bucket denies, which it will deny again."""


class Stored(NamedTuple):
    """The content and generation of an object; `content` is None if the object does not exist."""

    content: bytes | None
    generation: bytes


def read(path: str | epath.Path, seconds: float = _ANSWER_SECONDS) -> Stored:
    """Return the content and generation of an object, waiting at most `seconds` for the reply.

    Raises:
      RunFailed: The request fails, so it is unknown whether the object exists.
    """
    store, key = _located(path)
    result = _result(store.read(key), f"{_url(path)} cannot be read", seconds)
    return Stored(None if result.state == "missing" else result.value, result.stamp.generation)


def write(
    path: str | epath.Path,
    content: bytes,
    if_generation: bytes | None = None,
    seconds: float = _ANSWER_SECONDS,
) -> bytes | None:
    """Write an object; with `if_generation`, only if the current object has that generation.

    Returns:
      The new generation, or None if the current object has another generation and different
      content. If the content is identical, the object comes from an earlier attempt at this write
      whose reply was lost, and its generation is returned.

    Raises:
      RunFailed: The object cannot be written.
    """
    store, key = _located(path)
    condition = {} if if_generation is None else {"if_equal": if_generation}
    failure = f"{_url(path)} cannot be written"
    written = _result(store.write(key, content, **condition), failure, seconds)
    if written.generation:
        return bytes(written.generation)
    current = read(path, seconds)
    return current.generation if current.content == content else None


def remove(path: str | epath.Path, if_generation: bytes | None = None) -> bool:
    """Remove an object if it exists and, with `if_generation`, has that generation.

    Returns:
      Whether the object no longer exists.

    Raises:
      RunFailed: The object cannot be removed.
    """
    store, key = _located(path)
    condition = {} if if_generation is None else {"if_equal": if_generation}
    removed = _result(store.write(key, None, **condition), f"{_url(path)} cannot be removed")
    return bool(removed.generation) or read(path).content is None


def read_ends(path: str | epath.Path, count: int) -> bytes | None:
    """Return the first and the last `count` bytes of an object; see `files.read_ends`.

    Raises:
      RunFailed: The object cannot be read.
    """
    store, key = _located(path)
    futures = [store.read(key, byte_range=each) for each in (slice(0, count), slice(-count, None))]
    failure = f"{_url(path)} cannot be read"
    try:
        parts = [_result(future, failure) for future in futures]
    except RunFailed as error:
        if "OUT_OF_RANGE" not in str(error.__cause__):
            raise
        return read(path).content  # the object is shorter
    if any(part.state == "missing" for part in parts):
        return None
    return b"".join(part.value for part in parts)


def names_below(path: str | epath.Path) -> list[str]:
    """Return the names, relative to a folder, of all objects below it at any depth.

    The listing takes one request per thousand objects. The empty objects with which some libraries
    represent folders are omitted.

    Raises:
      RunFailed: The folder cannot be listed.
    """
    import tensorstore as ts

    store, key = _located(path)
    prefix = f"{key}/" if key else ""
    after = f"{key}0" if key else ""  # "0" is the character after "/"
    keys = store.list(ts.KvStore.KeyRange(prefix, after), strip_prefix_length=len(prefix.encode()))
    names = [name.decode() for name in _result(keys, f"{_url(path)} cannot be listed")]
    return [name for name in names if name and not name.endswith("/")]


def _located(path: str | epath.Path) -> tuple[Any, str]:
    scheme, _, rest = _url(path).partition("://")
    bucket, _, key = rest.partition("/")
    return _bucket(f"{scheme}://{bucket}"), key.rstrip("/")


def _url(path: str | epath.Path) -> str:
    return path if isinstance(path, str) else path.as_posix()


@functools.cache
def _bucket(url: str) -> Any:
    import tensorstore as ts

    context = ts.Context({f"{kind}_request_retries": RETRIES for kind in ("gcs", "s3", "http")})
    scheme, _, name = url.partition("://")
    spec = {"driver": "gcs", "bucket": name} if scheme == "gs" else f"{url}/"
    return ts.KvStore.open(spec, context=context).result()


def _result(future: Any, failure: str, seconds: float = _ANSWER_SECONDS) -> Any:
    try:
        return future.result(timeout=seconds)
    except TimeoutError as error:
        raise RunFailed(f"{failure}: no reply within {seconds:.0f} s") from error
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        kind = Denied if "PERMISSION_DENIED" in str(error) else RunFailed
        raise kind(f"{failure}: {reason(error)}") from error
