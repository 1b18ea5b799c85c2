"""Orbax's checkpointer, adapted for `Checkpoints`."""

from __future__ import annotations

from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from fire_lm.storage import in_bucket

WRITING_SECONDS = 900  # after which a process that has not written its part counts as failed


class _Checkpointer(ocp.AsyncCheckpointer):
    """A checkpointer that writes into an existing folder (made by `Checkpoints._make_folder`)."""

    async def create_temporary_path(self, temporary_path: Any) -> None:
        pass


class _NoFolder(ocp.path.atomicity.CommitFileTemporaryPath):
    """The path of a checkpoint's item in a bucket, where no folder needs to be created."""

    async def create(self) -> epath.Path:
        return self.get()


def orbax_checkpointer(directory: epath.Path) -> ocp.AsyncCheckpointer:
    """Return a checkpointer that creates no folders except those of items on a disk.

    `Checkpoints` creates the others, because Orbax would wait minutes for a bucket that fails.
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
