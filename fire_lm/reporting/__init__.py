"""Result files, and the tables and pictures drawn from them."""

from fire_lm.reporting.sweep_rows import (
    SweepRow,
    merge_rows,
    ranked_steps,
    read_rows,
    write_rows,
)

__all__ = ["SweepRow", "merge_rows", "ranked_steps", "read_rows", "write_rows"]
