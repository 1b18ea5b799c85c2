"""Result files: row schemas, CSV tables, and run logs."""

from fire_lm.results.own_rows import OwnRows, read_own
from fire_lm.results.scored_text import ScoredText, Texts, scored_text
from fire_lm.results.sweep_rows import SweepRow, ranked_steps
from fire_lm.results.tables import (
    Keyed,
    LengthAccuracy,
    PositionLoss,
    TaskScore,
    ValueByLength,
    merge_table,
    read_table,
    write_table,
)

__all__ = [
    "Keyed",
    "LengthAccuracy",
    "OwnRows",
    "PositionLoss",
    "ScoredText",
    "SweepRow",
    "TaskScore",
    "Texts",
    "ValueByLength",
    "merge_table",
    "ranked_steps",
    "read_own",
    "read_table",
    "scored_text",
    "write_table",
]
