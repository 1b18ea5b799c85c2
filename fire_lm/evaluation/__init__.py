"""Evaluation of trained models: length sweeps, accuracy by length, task scores and probes."""

from fire_lm.evaluation.length_sweep import (
    CHECKED,
    LengthSweep,
    Scored,
    check_scoring,
    score_checkpoint,
)
from fire_lm.evaluation.measurements import Known
from fire_lm.evaluation.probes import attention_scores, interpolated, learned_biases
from fire_lm.evaluation.readable_lengths import lengths_refused
from fire_lm.evaluation.scoring import compile_scoring, sequences_at_a_time

__all__ = [
    "CHECKED",
    "Known",
    "LengthSweep",
    "Scored",
    "attention_scores",
    "check_scoring",
    "compile_scoring",
    "interpolated",
    "learned_biases",
    "lengths_refused",
    "score_checkpoint",
    "sequences_at_a_time",
]
