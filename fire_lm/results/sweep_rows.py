"""The file `length_sweep.csv`, which has a row for each result of a checkpoint at one length."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable

from fire_lm.results.tables import Keyed


@dataclasses.dataclass(frozen=True)
class SweepKey(Keyed):
    """The key of a result of a run at one length.

    Attributes:
      dataset: The name of the data set.
      split: The split of the data set.
      construction: The method by which documents become sequences.
      protocol: The rule that selects the scored tokens; `full` scores all tokens in one pass.
      length: The number of tokens in a sequence.
    """

    dataset: str
    split: str
    construction: str
    protocol: str
    length: int


@dataclasses.dataclass(frozen=True)
class SweepRow(SweepKey):
    """The result of a run at one length.

    Attributes:
      sequences: The number of scored sequences. If the text has no row of this length, the number
        is 0 and the results are NaN.
      tokens: The number of scored tokens.
      bytes: The number of bytes of the original text that were scored.
      nll: The mean loss in nats per token, which the paper calls log perplexity.
      nll_stderr: The standard error of `nll`.
      perplexity: The exponential of `nll`.
      bits_per_byte: The loss in bits per byte of the original text.
    """

    sequences: int
    tokens: int
    bytes: int
    nll: float
    nll_stderr: float
    perplexity: float
    bits_per_byte: float


def ranked_steps(
    rows: Iterable[SweepRow], text_of: Callable[[SweepRow], str] = lambda row: ""
) -> list[int]:
    """Return a run's evaluated steps, starting with the best.

    The steps are ranked by their losses at the longest length at which more than half of them were
    scored or, if there is none, at the longest length. Steps without a result at that length are
    omitted. Only results of the unchanged model under the protocol `full` are used. If there are
    several data sets, only the first in the file is used whose steps are more than half as many as
    those of any other; if there are several texts, only the text of the newest step is used.
    """
    plain = [row for row in rows if not row.variant and row.protocol == "full" and row.tokens]
    by_data: dict[tuple[str, str, str], list[SweepRow]] = {}
    for row in plain:
        by_data.setdefault((row.dataset, row.split, row.construction), []).append(row)
    counts = [len({row.step for row in rows}) for rows in by_data.values()]
    often = (
        rows
        for rows, count in zip(by_data.values(), counts, strict=True)
        if 2 * count > max(counts)
    )
    same = next(often, [])
    newest = max(same, key=lambda row: row.step, default=None)
    same = [row for row in same if newest and text_of(row) == text_of(newest)]
    steps = {row.step for row in same}
    scored = collections.Counter(row.length for row in same)
    longest = max(scored, key=lambda length: (2 * scored[length] > len(steps), length), default=0)
    losses = {row.step: row.nll for row in same if row.length == longest}
    return sorted(losses, key=lambda step: losses[step])
