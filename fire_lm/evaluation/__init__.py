"""Everything that computes a number for a report."""

from fire_lm.evaluation.claims import claimed
from fire_lm.evaluation.length_sweep import (
    Scored,
    check_budget,
    check_lengths,
    length_sweep,
    lengths_refused,
    lengths_taken,
    say,
    say_once,
)
from fire_lm.evaluation.pieces import Known
from fire_lm.evaluation.probes import attention_scores, interpolated, learned_biases
from fire_lm.evaluation.scoring import compile_scoring, sequences_at_a_time
from fire_lm.evaluation.text_choice import check_reach

__all__ = [
    "Known",
    "Scored",
    "attention_scores",
    "claimed",
    "check_budget",
    "check_lengths",
    "check_reach",
    "compile_scoring",
    "interpolated",
    "learned_biases",
    "length_sweep",
    "say",
    "say_once",
    "lengths_refused",
    "lengths_taken",
    "sequences_at_a_time",
]
