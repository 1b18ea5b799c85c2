"""Tables: fields of any length, and damage."""

import numpy as np
from etils import epath

from fire_lm.results import ScoredText, SweepRow, merge_table, read_table, scored_text


def test_a_line_may_have_the_losses_of_many_short_rows_of_text(tmp_path):
    """The default 2**21 tokens, scored at length 64, are 32,768 rows of text."""
    path = epath.Path(tmp_path) / "scored_text.csv"
    row = SweepRow("r", "fire", "", 1, "c4", "validation", "concat", "full", 64,
                   32768, 2**21, 2**21, 1.5, 0.1, 4.5, 2.2)  # fmt: skip
    line = scored_text(row, "a" * 16, np.full(32768, 64), 96 + np.arange(32768) / 3)
    assert len(line.nll_by_row) > 2**18
    merge_table(path, ScoredText, [line])
    assert read_table(path, ScoredText) == [line]
    assert merge_table(path, ScoredText, [line]) == [line]
