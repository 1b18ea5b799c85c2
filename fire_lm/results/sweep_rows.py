"""`length_sweep.csv`: one row per run, checkpoint, data and length. A finished row stays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from etils import epath

from fire_lm.results.tables import Keyed, merge_table, read_table, write_table


@dataclasses.dataclass(frozen=True)
class SweepRow(Keyed):
    """A result. The fields up to `length` are its key.

    Attributes:
      variant: change made at evaluation time only (such as yarn-4x), else empty.
      construction: how documents became sequences.
      protocol: which tokens of a sequence are scored; `full` is all of them in one pass.
      length: tokens in a sequence.
      sequences, tokens, bytes: scored; bytes are of the original text. All are 0, and the numbers
        nan, where the text has no row of the length.
      nll, nll_stderr: nats per token, the paper's log perplexity, and its standard error.
    """

    run: str
    encoding: str
    variant: str
    step: int
    dataset: str
    split: str
    construction: str
    protocol: str
    length: int
    sequences: int
    tokens: int
    bytes: int
    nll: float
    nll_stderr: float
    perplexity: float
    bits_per_byte: float


def read_rows(path: epath.Path) -> list[SweepRow]:
    """The rows of a file, none if there is no file; a last line cut short is left out."""
    return read_table(path, SweepRow)


def ranked_steps(
    rows: Iterable[SweepRow], text_of: Callable[[SweepRow], str] = lambda row: ""
) -> list[int]:
    """A run's evaluated steps, best first: by the loss at the longest length that any of them has;
    runs that do not have it (yet) are left out.

    Only plain results count, the model as it was trained, where there was text to score; of several
    data sets the first in the file, and of several texts that of the newest step.
    """
    plain = [row for row in rows if not row.variant and row.protocol == "full" and row.tokens]
    named = {(row.dataset, row.split, row.construction): None for row in plain}
    same = [r for r in plain if (r.dataset, r.split, r.construction) == next(iter(named))]
    newest = max(same, key=lambda row: row.step, default=None)
    same = [row for row in same if newest and text_of(row) == text_of(newest)]
    longest = max((row.length for row in same), default=0)
    losses = {row.step: row.nll for row in same if row.length == longest}
    return sorted(losses, key=lambda step: losses[step])


def merge_rows(path: epath.Path, rows: Iterable[SweepRow]) -> list[SweepRow]:
    """See `merge_table`."""
    return merge_table(path, SweepRow, rows)


def write_rows(path: epath.Path, rows: Iterable[SweepRow]) -> None:
    """Replace the file atomically."""
    write_table(path, SweepRow, rows)
