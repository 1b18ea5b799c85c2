"""Where a process is in the data, as an item of a checkpoint: one opaque file per process."""

from __future__ import annotations

import dataclasses

import jax
import orbax.checkpoint as ocp
from etils import epath


class _PositionHandler(ocp.CheckpointHandler):
    """Writes this process's bytes into the step directory, before the step becomes visible."""

    def save(self, directory: epath.Path, args: PositionSave) -> None:
        (directory / process_file()).write_bytes(args.item)

    def restore(self, directory: epath.Path, args: PositionRestore) -> bytes:
        del args
        return (directory / process_file()).read_bytes()


def process_file() -> str:
    return f"process_{jax.process_index():04d}_of_{jax.process_count():04d}"


@ocp.args.register_with_handler(_PositionHandler, for_save=True)
@dataclasses.dataclass
class PositionSave(ocp.args.CheckpointArgs):
    item: bytes


@ocp.args.register_with_handler(_PositionHandler, for_restore=True)
@dataclasses.dataclass
class PositionRestore(ocp.args.CheckpointArgs):
    pass
