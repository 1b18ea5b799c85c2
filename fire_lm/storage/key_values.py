"""The keys of key-value stores in the format OCDBT, in which Orbax stores arrays."""

from __future__ import annotations

from typing import Any

from etils import epath

from fire_lm.storage import objects
from fire_lm.storage.files import in_bucket


def stored_keys(folder: epath.Path) -> set[str]:
    """Return the keys of the store in a folder; without a store, there are none.

    No value is read. In a bucket, this takes a request for the store's manifest and about one for
    each thousand keys.

    Raises:
      ValueError, OSError, RuntimeError: The store is damaged or cannot be read.
    """
    import tensorstore as ts

    path = f"{folder.as_posix()}/"
    base: dict[str, Any] = {"driver": "file", "path": path}
    if in_bucket(folder):
        bucket, _, key = path.removeprefix("gs://").partition("/")
        base = {"driver": "gcs", "bucket": bucket, "path": key}
    context = ts.Context({"gcs_request_retries": objects.RETRIES})
    store = ts.KvStore.open({"driver": "ocdbt", "base": base}, context=context).result()
    return {key.decode() for key in store.list().result()}
