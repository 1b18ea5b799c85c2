"""The choice of text for a length sweep, which depends on the token budget but not on the lengths.

The text is read in rows of one length, and the windows of every evaluation length lie in these same
rows (protocols.py), so any set of lengths scores the same text. The length of a row is a power of
two, so that shorter powers of two divide it. A hash of the token ids identifies the text.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Sequence

import numpy as np

from fire_lm.data import NoText, ScoringText, TextSource, scoring_text, unknown_warning
from fire_lm.errors import UserError
from fire_lm.measures.readable_lengths import listed
from fire_lm.processes import say

# The number of rows into which a budget is divided. All rows of a joined stream (concat, packed)
# are equally representative, so a few long rows suffice, which allows long evaluation lengths. If
# rows are documents or parts of documents, more rows are needed.
_ROWS = {"concat": 32, "packed": 32, "cut": 128, "long_documents": 128}
# With fewer rows than `_FEWEST_ROWS`, a standard error is hardly meaningful, so shorter rows, of at
# least `_SHORTEST_ROW` tokens, are read if that yields more rows.
_FEWEST_ROWS, _SHORTEST_ROW = 8, 64
# The constructions whose rows contain padding, so that a budget needs more rows.
_PADDED = ("cut", "packed")


def row_length(tokens: int, construction: str) -> int:
    """Return the length of a row of text, a power of two, for a budget of `tokens` tokens."""
    return _power_of_two(max(2, tokens // _ROWS[construction]))


@dataclasses.dataclass(frozen=True)
class Settings:
    """What messages call the settings of a measure.

    Attributes:
      tokens: The parameter in gin that sets the budget.
      lengths: The macro or flag that sets the lengths.
    """

    tokens: str
    lengths: str


OF_SWEEP = Settings("length_sweep.tokens", "EVAL_LENGTHS")


def check_reach(
    lengths: Sequence[int], tokens: int, data: TextSource, settings: Settings = OF_SWEEP
) -> None:
    """Raise UserError if a length exceeds the length of the rows in which the text is read."""
    longest = max(lengths)
    for part in data.parts:
        if longest > (row := row_length(tokens, part.construction)):
            needed = _ROWS[part.construction] * _power_of_two(2 * longest - 1)
            raise UserError(
                f"evaluation length {longest} is longer than a row of text: a budget of {tokens:,} "
                f"tokens is read in rows of {row:,} ({part.construction})\n"
                f"set --gin.{settings.tokens}={needed} or more, which selects another text, or "
                f"lower {settings.lengths}"
            )


def _power_of_two(number: int) -> int:
    """Return the largest power of two up to `number`."""
    return 1 << (number.bit_length() - 1)


def read_text(
    data: TextSource,
    label: str,
    lengths: Sequence[int],
    tokens: int,
    split: str,
    settings: Settings = OF_SWEEP,
) -> ScoringText:
    """Return the text for a budget of `tokens` tokens, and report problems with the text.

    Such problems include lengths that exceed the rows, padding, and skipped documents.

    Raises:
      UserError: The split contains no text, or all lengths exceed the rows of the text.
    """
    text = choose_text(data, tokens, split)
    width = text.targets.shape[1]
    if longer := [length for length in lengths if length > width]:
        problem = f"the {split} split of {label} has too little text for {listed(longer)}"
        if len(longer) == len(lengths):
            raise UserError(
                f"{problem}: it yields rows of {width:,} tokens ({data.construction})\n"
                f"set {settings.lengths} to {width} or less"
            )
        say(f"{problem}: the results are left blank")
    places, scored = text.targets.size, np.count_nonzero(text.weights)
    if scored < tokens // width * width:
        say(
            f"the {split} split of {label} has only {scored:,} tokens, fewer than "
            f"{settings.tokens} = {tokens:,}"
        )
    if padding := places - scored:
        say(
            f"{padding:,} of the {places:,} positions in the rows of {label} are padding "
            f"({padding / places:.1%}), which is not scored"
        )
    if text.skipped:
        documents = "document" + "s" * (text.skipped > 1)
        say(f"skipped {text.skipped:,} empty or undecodable {documents} of {label}")
    if warning := unknown_warning(text.unknown, split, data):
        say(warning)
    return text


def choose_text(data: TextSource, tokens: int, split: str) -> ScoringText:
    """Return a text of about `tokens` tokens, not counting padding, from a data set.

    If the data cannot fill enough rows of `row_length`, shorter rows are used: the longest that
    yield enough rows or, failing that, the rows that yield the most tokens.

    Raises:
      UserError: The split contains no text.
    """
    length = row_length(tokens, data.construction)
    best: ScoringText | None = None
    while True:
        rows = max(1, tokens // length)
        candidate = read_scoring_text(data, length=length, num_sequences=rows, split=split)
        shorter = length // 2
        if isinstance(candidate, ScoringText):
            if len(candidate.targets) >= min(_FEWEST_ROWS, rows):
                return _with_budget(candidate, data, rows, split)
            amount = np.count_nonzero(candidate.weights)
            if best is None or amount > np.count_nonzero(best.weights):
                best = candidate
            if data.construction != "long_documents":
                # All text has been read, so only rows of at most this length could be numerous
                # enough.
                shorter = min(shorter, int(amount) // _FEWEST_ROWS)
        if shorter < (_SHORTEST_ROW if best else 2):
            break
        length = _power_of_two(shorter)
    if best is None:
        assert isinstance(candidate, NoText)
        raise candidate
    return best


def _with_budget(text: ScoringText, data: TextSource, rows: int, split: str) -> ScoringText:
    """Return a text with as many tokens as `rows` rows hold, or with all rows of the split.

    `text` is the result of asking for `rows` rows. Rows without padding are returned unchanged.
    """
    length = text.targets.shape[1]
    budget = rows * length
    while data.construction in _PADDED and len(text.targets) == rows:
        tokens = np.count_nonzero(text.weights)
        if tokens >= budget:
            break
        rows = math.ceil(1.05 * rows * budget / tokens)  # 5 % more usually saves another attempt
        candidate = read_scoring_text(data, length=length, num_sequences=rows, split=split)
        assert isinstance(candidate, ScoringText)  # there were rows of this length
        text = candidate
    return text


@functools.lru_cache(maxsize=16)
def read_scoring_text(
    data: TextSource, *, length: int, num_sequences: int, split: str
) -> ScoringText | NoText:
    """Return the text, or a NoText error if there is none, cached for all checkpoints."""
    try:
        return scoring_text(data, length=length, num_sequences=num_sequences, split=split)
    except NoText as error:
        return error


def text_hash(text: ScoringText) -> str:
    """Return a hash that is identical for texts with the same token ids, rows and segments.

    The token ids include padding, although padding is never scored.
    """
    digest = hashlib.sha256(str(text.targets.shape).encode())
    for ids in (text.targets, text.segment_ids):
        if ids is not None:
            digest.update(np.ascontiguousarray(ids, dtype="<i4").tobytes())
    return digest.hexdigest()[:16]
