"""Measures, one file each, with their helpers; `base` is the interface.

The measures of fire_lm are `length_sweep` (losses by length), `length_accuracy` (of synthetic
tasks), `masked_accuracy` (of encoders) and `task_scores` (of downstream tasks); `training_losses`
is evaluated while a run trains.
"""

from fire_lm.measures.base import Cell, Measure, RunModel
from fire_lm.measures.length_sweep import CHECKED, LengthSweep, SweepResult, check_scoring
from fire_lm.measures.readable_lengths import lengths_refused
from fire_lm.measures.scoring import compile_scoring, sequences_at_a_time
from fire_lm.measures.training_losses import TrainingLosses
from fire_lm.results import ValueByLength

__all__ = [
    "CHECKED",
    "Cell",
    "RunModel",
    "LengthSweep",
    "Measure",
    "SweepResult",
    "TrainingLosses",
    "ValueByLength",
    "check_scoring",
    "compile_scoring",
    "lengths_refused",
    "sequences_at_a_time",
]
