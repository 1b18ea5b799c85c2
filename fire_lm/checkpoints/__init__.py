"""Checkpoints of a run, a layer over Orbax (v0 API): state, position in the data, and facts.

`<workdir>/checkpoints/<step>/` holds `state/` (arrays, written asynchronously and sharded),
`position/` (one opaque file per process: its position in the data), `info/` (a small JSON file)
and, once all of these are on disk, `manifest.sha256`, which marks the checkpoint as complete.
"""

from fire_lm.checkpoints.layout import (
    available_steps,
    candidates,
    checkpoint_damage,
    checkpoint_directory,
    choose_step,
    split_run,
)
from fire_lm.checkpoints.params import check_arrays, check_params, restore_params
from fire_lm.checkpoints.policy import Checkpointing
from fire_lm.checkpoints.writer import Checkpoints

__all__ = [
    "Checkpointing",
    "Checkpoints",
    "available_steps",
    "candidates",
    "check_arrays",
    "check_params",
    "checkpoint_damage",
    "checkpoint_directory",
    "choose_step",
    "restore_params",
    "split_run",
]
