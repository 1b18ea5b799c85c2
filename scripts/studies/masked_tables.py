"""The table of docs/masked.md, from docs/evidence/masked.

A run is named by its grid: `rope-seed0-resampling-beta-log-n-training`.
"""

from __future__ import annotations

from command import EVIDENCE
from etils import epath

from fire_lm.measures.masked_accuracy import MaskedAccuracyRow
from fire_lm.reporting.page import Table
from fire_lm.results.tables import read_table

_LOG_N = "-log-n-training"
_POSITIONS = {
    "": "0, 1, 2, ...",
    "-resampling-random-2048": "random below 2,048",
    "-resampling-exponential": "equal mean, exponential",
    "-resampling-beta": "equal mean, beta",
}


def accuracies() -> dict[tuple[str, int], MaskedAccuracyRow]:
    """Return the accuracies of RoPE by run and length."""
    path = epath.Path(EVIDENCE / "masked" / "masked_accuracy.csv")
    rows = read_table(path, MaskedAccuracyRow)
    return {(row.run, row.length): row for row in rows if row.quantity == "accuracy"}


def by_length() -> str:
    """Return the accuracies with their standard errors over the text."""
    of_runs, rows = accuracies(), []
    lengths = sorted({length for _, length in of_runs})
    for positions, name in _POSITIONS.items():
        for log_n in ("", _LOG_N):
            run = f"rope-seed0{positions}{log_n}"
            measured = [of_runs[run, length] for length in lengths]
            cells = [f"{row.value:.1f} ± {row.stderr:.1f}" for row in measured]
            rows.append([name, "log n" if log_n else "", *cells])
    best = {
        (max(range(len(rows)), key=lambda row: float(rows[row][column].split()[0])), column)
        for column in range(2, 2 + len(lengths))
    }
    return Table("", ["positions", "", *map(str, lengths)], rows, frozenset(best)).markdown()
