"""The position in the data as an item of a checkpoint: opaque bytes.

There is one file per process, which only the same number of processes can restore, or, if the
position is the same for all processes, one file for any number of them.
"""

from __future__ import annotations

import dataclasses

import jax
import orbax.checkpoint as ocp
from etils import epath

SHARED_FILE = "all_processes"


class _PositionHandler(ocp.CheckpointHandler):
    """A handler that writes this process's bytes before the step becomes visible."""

    def save(self, directory: epath.Path, args: PositionSave) -> None:
        if not args.shared:
            (directory / process_file()).write_bytes(args.item)
        elif jax.process_index() == 0:
            (directory / SHARED_FILE).write_bytes(args.item)

    def restore(self, directory: epath.Path, args: PositionRestore) -> bytes:
        del args
        shared = directory / SHARED_FILE
        return (shared if shared.exists() else directory / process_file()).read_bytes()


def process_file() -> str:
    """Return the name of this process's file."""
    return f"process_{jax.process_index():04d}_of_{jax.process_count():04d}"


@ocp.args.register_with_handler(_PositionHandler, for_save=True)
@dataclasses.dataclass
class PositionSave(ocp.args.CheckpointArgs):
    """The position to save, and whether it is the same for all processes."""

    item: bytes
    shared: bool


@ocp.args.register_with_handler(_PositionHandler, for_restore=True)
@dataclasses.dataclass
class PositionRestore(ocp.args.CheckpointArgs):
    """The arguments to restore a position; there are none."""
