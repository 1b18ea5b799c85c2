"""The position in the data, which a checkpoint stores as an item of opaque bytes.

If the processes have different positions, there is one file for each process, and only a job with
the same number of processes can restore these files. If all processes have the same position, there
is a single file, which a job with any number of processes can restore.
"""

from __future__ import annotations

import dataclasses

import jax
import orbax.checkpoint as ocp
from etils import epath

from fire_lm.checkpoints.layout import checkpoint_directory
from fire_lm.errors import UserError
from fire_lm.storage import children

SHARED_FILE = "all_processes"


class _PositionHandler(ocp.CheckpointHandler):
    """An Orbax handler that writes this process's position before the step becomes visible."""

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
    """Return the name of the file with this process's position."""
    return f"process_{jax.process_index():04d}_of_{jax.process_count():04d}"


def check_processes(workdir: str | epath.Path, step: int, count: int) -> None:
    """Raise UserError if `count` processes cannot restore the positions of a checkpoint."""
    written = [
        path.name
        for path in children(checkpoint_directory(workdir) / str(step) / "position")
        if path.name.startswith("process")
    ]
    if any(not name.endswith(f"_of_{count:04d}") for name in written):
        raise UserError(
            f"checkpoint {step} of {workdir} was written by a different number of processes, so "
            f"its data positions do not match the {count} processes of this job\n"
            "resume with the original number of processes"
        )


@ocp.args.register_with_handler(_PositionHandler, for_save=True)
@dataclasses.dataclass
class PositionSave(ocp.args.CheckpointArgs):
    """The position to save, and whether all processes have the same position."""

    item: bytes
    shared: bool


@ocp.args.register_with_handler(_PositionHandler, for_restore=True)
@dataclasses.dataclass
class PositionRestore(ocp.args.CheckpointArgs):
    """The arguments for restoring a position, of which there are none."""
