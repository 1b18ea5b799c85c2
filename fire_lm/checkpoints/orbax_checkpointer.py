"""Orbax's checkpointer, adapted for `Checkpoints`."""

from __future__ import annotations

from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from fire_lm.storage import in_bucket

WRITING_SECONDS = 900  # a process that needs longer to write its part counts as failed


class _Checkpointer(ocp.AsyncCheckpointer):
    """A checkpointer that writes into a folder that `Checkpoints` has already created."""

    async def create_temporary_path(self, temporary_path: Any) -> None:
        pass


class _NoFolder(ocp.path.atomicity.CommitFileTemporaryPath):
    """The path of an item of a checkpoint in a bucket, where no folder needs to be created."""

    async def create(self) -> epath.Path:
        return self.get()


def orbax_checkpointer(directory: epath.Path) -> ocp.AsyncCheckpointer:
    """Return a checkpointer for the checkpoints in `directory`.

    On a disk, the checkpointer creates only the folders of a checkpoint's items; in a bucket, it
    creates no folders. `Checkpoints` creates the folder of the checkpoint itself, because Orbax
    would wait for minutes if the bucket failed.
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
