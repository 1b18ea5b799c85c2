"""Everything that computes a number for a report."""

from fire_lm.evaluation.length_sweep import length_sweep
from fire_lm.evaluation.sweep_rows import SweepRow, read_rows, write_rows

__all__ = ["SweepRow", "length_sweep", "read_rows", "write_rows"]
