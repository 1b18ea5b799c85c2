"""Everything that computes a number for a report."""

from fire_lm.evaluation.claims import claimed, held
from fire_lm.evaluation.length_sweep import (
    Scored,
    check_reading,
    check_scoring,
    length_sweep,
    lengths_refused,
    say,
    say_once,
)
from fire_lm.evaluation.pieces import Known
from fire_lm.evaluation.probes import attention_scores, interpolated, learned_biases
from fire_lm.evaluation.scoring import compile_scoring, sequences_at_a_time

__all__ = [
    "Known",
    "Scored",
    "attention_scores",
    "claimed",
    "held",
    "check_reading",
    "check_scoring",
    "compile_scoring",
    "interpolated",
    "learned_biases",
    "length_sweep",
    "say",
    "say_once",
    "lengths_refused",
    "sequences_at_a_time",
]
