"""Checkpoints of a run, built on Orbax (v0 API).

`<workdir>/checkpoints/<step>/` contains `state/` (the arrays, sharded and written asynchronously),
`position/` (the position in the data, as one opaque file for each process or a single file for all
processes) and `info/` (a small JSON file). Once all of these have been stored, `manifest.sha256` is
written, which marks the checkpoint as complete.
"""

from fire_lm.checkpoints.evaluated import AverageState, evaluation_params
from fire_lm.checkpoints.layout import (
    available_steps,
    candidates,
    checkpoint_damage,
    checkpoint_directory,
    choose_step,
    names_a_folder,
    parted,
    split_run,
)
from fire_lm.checkpoints.params import (
    Allowed,
    array_paths,
    check_arrays,
    check_params,
    restore_params,
)
from fire_lm.checkpoints.policy import Checkpointing
from fire_lm.checkpoints.position import check_processes
from fire_lm.checkpoints.writer import Checkpoints

__all__ = [
    "Allowed",
    "AverageState",
    "Checkpointing",
    "Checkpoints",
    "array_paths",
    "available_steps",
    "candidates",
    "check_arrays",
    "check_params",
    "check_processes",
    "checkpoint_damage",
    "checkpoint_directory",
    "choose_step",
    "evaluation_params",
    "names_a_folder",
    "parted",
    "restore_params",
    "split_run",
]
