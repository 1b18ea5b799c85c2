"""Evaluation of trained models: length sweeps, accuracy by length, task scores and probes."""

from fire_lm.measures.length_sweep import (
    CHECKED,
    LengthSweep,
    Scored,
    check_scoring,
    score_checkpoint,
)
from fire_lm.measures.measurements import Known
from fire_lm.measures.probes import attention_scores, interpolated, learned_biases
from fire_lm.measures.readable_lengths import lengths_refused
from fire_lm.measures.scoring import compile_scoring, sequences_at_a_time

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
