"""Result files, and the tables and pictures drawn from them."""

from fire_lm.reporting.sweep_rows import SweepRow, read_rows, write_rows

__all__ = ["SweepRow", "read_rows", "write_rows"]
