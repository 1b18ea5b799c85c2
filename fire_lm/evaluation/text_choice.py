"""The text of a length sweep, chosen once by the budget, never by the lengths.

The budget is read as rows of equal length, so that any set of lengths scores the same text: each
length lays its windows over the same rows (protocols.py). A row is a power of two, so lengths that
are powers of two, up to the row's, divide it. A hash of its token ids identifies the text.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import numpy as np

from fire_lm.data import Data, NoText, ScoringText, scoring_text
from fire_lm.errors import UserError

# Rows in a budget. A row of a joined stream (concat, packed) is as good as any other, so a few long
# ones leave room for long lengths; where a row is a document or a part of one, many are better.
_ROWS = {"concat": 32, "packed": 32, "cut": 128, "long_documents": 128}
# With fewer rows there is hardly an error to state, so shorter ones are read where they give more.
_FEWEST_ROWS, _SHORTEST_ROW = 8, 64


def row_length(tokens: int, construction: str) -> int:
    """Tokens in a row of text under a budget: a power of two."""
    return _power_of_two(max(2, tokens // _ROWS[construction]))


def check_reach(lengths: Sequence[int], tokens: int, data: Data) -> None:
    """Raises UserError if a length is longer than the rows in which the budget is read."""
    longest = max(lengths)
    for part in data.parts:
        if longest > (row := row_length(tokens, part.construction)):
            needed = _ROWS[part.construction] * _power_of_two(2 * longest - 1)
            raise UserError(
                f"evaluation length {longest} is longer than a row of text: a budget of {tokens:,} "
                f"tokens is read in rows of {row:,} ({part.construction})\n"
                f"set --gin.length_sweep.tokens={needed} or more (which is another text), or "
                "change EVAL_LENGTHS"
            )


def _power_of_two(number: int) -> int:
    """The largest up to `number`."""
    return 1 << (number.bit_length() - 1)


def choose_text(data: Data, tokens: int, split: str) -> ScoringText:
    """About `tokens` tokens of a data set. A text that is too short for rows of the budget's length
    gives shorter ones: the longest of which there are some, or the most tokens.

    Raises:
      UserError: there is no text.
    """
    length = row_length(tokens, data.construction)
    best: ScoringText | None = None
    while True:
        rows = max(1, tokens // length)
        found = read_scoring_text(data, length=length, num_sequences=rows, split=split)
        shorter = length // 2
        if isinstance(found, ScoringText):
            if len(found.targets) >= min(_FEWEST_ROWS, rows):
                return found
            amount = np.count_nonzero(found.weights)
            if best is None or amount > np.count_nonzero(best.weights):
                best = found
            if data.construction != "long_documents":
                # All text there is: only in rows as short as these could there be enough of them.
                shorter = min(shorter, int(amount) // _FEWEST_ROWS)
        if shorter < (_SHORTEST_ROW if best else 2):
            break
        length = _power_of_two(shorter)
    if best is None:
        assert isinstance(found, NoText)
        raise found
    return best


@functools.lru_cache(maxsize=16)
def read_scoring_text(
    data: Data, *, length: int, num_sequences: int, split: str
) -> ScoringText | NoText:
    """Once for all checkpoints, also that there is none."""
    try:
        return scoring_text(data, length=length, num_sequences=num_sequences, split=split)
    except NoText as error:
        return error


def identity(text: ScoringText) -> str:
    """A hash of a text: equal for the same token ids in the same rows and segments. Padding, which
    never counts, is part of the ids."""
    digest = hashlib.sha256(str(text.targets.shape).encode())
    for ids in (text.targets, text.segment_ids):
        if ids is not None:
            digest.update(np.ascontiguousarray(ids, dtype="<i4").tobytes())
    return digest.hexdigest()[:16]
