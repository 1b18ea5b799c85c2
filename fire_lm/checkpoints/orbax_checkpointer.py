"""Orbax's checkpointer as `Checkpoints` uses it."""

from __future__ import annotations

from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from fire_lm.storage import in_bucket

WRITING_SECONDS = 900  # after which a process that has not written its part has failed


class _Checkpointer(ocp.AsyncCheckpointer):
    """Writes into a folder that exists (`Checkpoints._make_folder` makes it)."""

    async def create_temporary_path(self, temporary_path: Any) -> None:
        pass


class _NoFolder(ocp.path.atomicity.CommitFileTemporaryPath):
    """An item of a checkpoint in a bucket, which has no folders to be made."""

    async def create(self) -> epath.Path:
        return self.get()


def orbax_checkpointer(directory: epath.Path) -> ocp.AsyncCheckpointer:
    """A checkpointer that leaves making folders to `Checkpoints`, except those of items on a disk.

    Orbax would wait minutes for folders that a bucket refuses.
    """
    options = ocp.options.AsyncOptions(
        timeout_secs=WRITING_SECONDS, create_directories_asynchronously=False
    )
    items = ocp.CompositeOptions(temporary_path_class=_NoFolder if in_bucket(directory) else None)
    return _Checkpointer(
        ocp.CompositeCheckpointHandler(composite_options=items),
        async_options=options,
        file_options=ocp.options.FileOptions(skip_sync_file_validations=True),
    )
