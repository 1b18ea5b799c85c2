"""Result files, and the tables and pictures drawn from them."""

from fire_lm.reporting.result_files import PositionLoss, merge_table, read_table, write_table
from fire_lm.reporting.sweep_rows import (
    SweepRow,
    merge_rows,
    ranked_steps,
    read_rows,
    write_rows,
)

__all__ = [
    "PositionLoss",
    "SweepRow",
    "merge_rows",
    "merge_table",
    "ranked_steps",
    "read_rows",
    "read_table",
    "write_rows",
    "write_table",
]
