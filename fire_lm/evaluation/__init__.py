"""Everything that computes a number for a report."""

from fire_lm.evaluation.length_sweep import length_sweep

__all__ = ["length_sweep"]
