"""The file `length_sweep.csv`, with one row per run, checkpoint, data set and length."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from etils import epath

from fire_lm.results.tables import Keyed, merge_table, read_table, write_table


@dataclasses.dataclass(frozen=True)
class SweepRow(Keyed):
    """The result of a run at one length. The fields up to `length` are its key.

    Attributes:
      run: The name of the run.
      encoding: The name of its positional encoding.
      variant: A change that applies only at evaluation (such as yarn-4x), or empty.
      step: The step of the checkpoint.
      dataset: The name of the data set.
      split: The split of the data set.
      construction: How documents became sequences.
      protocol: Which tokens of a sequence are scored; `full` means all of them in one pass.
      length: The number of tokens in a sequence.
      sequences: The number of scored sequences; 0, with nan as the results, if the text has no row
        of the length.
      tokens: The number of scored tokens.
      bytes: The number of bytes of the original text that were scored.
      nll: Nats per token, the paper's log perplexity.
      nll_stderr: The standard error of `nll`.
      perplexity: The exponential of `nll`.
      bits_per_byte: The loss in bits per byte of the original text.
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
    """Return the rows of a file, if it exists; an incomplete last line is skipped."""
    return read_table(path, SweepRow)


def ranked_steps(
    rows: Iterable[SweepRow], text_of: Callable[[SweepRow], str] = lambda row: ""
) -> list[int]:
    """Return a run's evaluated steps, best first.

    Steps are ranked by the loss at the longest length that any of them has; steps without a result
    at that length are omitted. Only results of the unchanged model on text that could be scored
    count. With several data sets, the first in the file is used, and with several texts that of the
    newest step.
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
    """Add rows to a file and return all of its rows; see `merge_table`."""
    return merge_table(path, SweepRow, rows)


def write_rows(path: epath.Path, rows: Iterable[SweepRow]) -> None:
    """Replace the file atomically."""
    write_table(path, SweepRow, rows)
