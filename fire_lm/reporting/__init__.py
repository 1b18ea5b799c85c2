"""Result files, and the tables and pictures drawn from them."""

from fire_lm.reporting.sweep_rows import SweepRow, ranked_steps, read_rows, write_rows

__all__ = ["SweepRow", "ranked_steps", "read_rows", "write_rows"]
