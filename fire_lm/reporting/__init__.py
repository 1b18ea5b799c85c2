"""Result files, and the tables and pictures drawn from them."""

from fire_lm.reporting.own_rows import OwnRows, read_own
from fire_lm.reporting.result_files import PositionLoss, merge_table, read_table, write_table
from fire_lm.reporting.scored_text import ScoredText, Texts, read_texts, scored_text
from fire_lm.reporting.sweep_rows import (
    SweepRow,
    merge_rows,
    ranked_steps,
    read_rows,
    write_rows,
)

__all__ = [
    "OwnRows",
    "PositionLoss",
    "ScoredText",
    "SweepRow",
    "Texts",
    "merge_rows",
    "merge_table",
    "ranked_steps",
    "read_own",
    "read_rows",
    "read_table",
    "read_texts",
    "scored_text",
    "write_rows",
    "write_table",
]
