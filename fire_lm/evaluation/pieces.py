"""What a length sweep scores, piece by piece, how much text each is, and which are missing.

Shapes: R rows of the longest length, T tokens.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fire_lm.data import ScoringText
from fire_lm.errors import UserError
from fire_lm.evaluation.position_losses import number_of_bins
from fire_lm.evaluation.protocols import Windows, named, windows
from fire_lm.reporting import SweepRow


@dataclasses.dataclass(frozen=True)
class Piece:
    """What is scored at one length under one protocol.

    Attributes:
      place: the key of its row.
      laid: over the rows of text; None where the text has no row of the length.
      counts: sequences, tokens and bytes.
      bins: of the losses by position; 0 where none are wanted.
      has_positions: whether these are known. Its row is computed by the same program all the same.
    """

    place: tuple[Any, ...]
    laid: Windows | None
    counts: tuple[int, int, int]
    bins: int = 0
    has_positions: bool = False

    @property
    def length(self) -> int:
        length: int = self.place[-1]
        return length

    def row(self, result: tuple[float, float, float, float]) -> SweepRow:
        """Of its mean loss, error, perplexity and bits per byte."""
        fields: tuple[Any, ...] = (*self.place, *self.counts, *result)
        return SweepRow(*fields)


def pieces(
    text: ScoringText,
    where: tuple[str | int, ...],
    protocols: Sequence[str],
    lengths: Sequence[int],
    stride: int,
    position_bins: int,
) -> Iterator[Piece]:
    """All of a text. `where` is the rows' key without protocol and length.

    Raises:
      UserError: a protocol scores nothing but padding.
    """
    there = text.targets.shape[1]
    longest = max((length for length in lengths if length <= there), default=0)
    for protocol, length in itertools.product(protocols, lengths):
        place = (*where, named(protocol, stride), length)
        if length > there:
            yield Piece(place, None, (0, 0, 0))
            continue
        laid = windows(protocol, length, there, stride)
        counts = count(text, laid)
        if not counts[1]:
            raise UserError(
                f"{place[-2]} scores no token of {place[4]} at length {length}: there is only "
                "padding there\n"
                "rows without it: --gin.CONSTRUCTION=concat, or other EVAL_LENGTHS"
            )
        by_position = (protocol, length) == ("full", longest) and position_bins
        bins = number_of_bins(length, position_bins) if by_position else 0
        yield Piece(place, laid, counts, bins)


def missing(
    wanted: Iterable[Piece],
    known: Mapping[tuple[str | int, ...], SweepRow],
    finished_positions: Mapping[tuple[str | int, ...], int],
) -> Iterator[Piece]:
    """What has no row yet, or lacks its losses by position.

    Raises:
      UserError: what there is is of another text.
    """
    for piece in wanted:
        positions = (*piece.place[:-2], piece.length)
        if piece.bins and positions in finished_positions:
            if (found := finished_positions[positions]) != piece.counts[1]:
                raise UserError(
                    f"position_losses.csv has {piece.place[0]}@{piece.place[3]} at length "
                    f"{piece.length} over another text: {found} tokens, now {piece.counts[1]}\n"
                    "move that file away, or ask for the text that it has"
                )
            piece = dataclasses.replace(piece, has_positions=True)
        for row in known.values():
            if row.key[:-1] == piece.place[:-1]:
                check_same_text(row, piece)
        if piece.place not in known or (piece.bins and not piece.has_positions):
            yield piece


def count(text: ScoringText, laid: Windows) -> tuple[int, int, int]:
    """(sequences, tokens, bytes) scored; sequences of which nothing is scored do not count."""
    scored = laid.of(text.targets != 0) & laid.scored(len(text.targets))
    places_T = laid.scored_places(text.targets.shape[1])
    tokens = int(scored_tokens(text, laid).sum())
    text_bytes = int(text.byte_counts[:, places_T].sum(dtype=np.int64))
    return int(scored.any(axis=1).sum()), tokens, text_bytes


def scored_tokens(text: ScoringText, laid: Windows) -> np.ndarray:
    """How many tokens of each row are scored, `[R]`."""
    places_T = laid.scored_places(text.targets.shape[1])
    return (text.targets[:, places_T] != 0).sum(axis=1)


def check_same_text(row: SweepRow, piece: Piece) -> None:
    """A finished row is kept, but never beside rows of another text under the same name: every
    length of a protocol scores the same tokens."""
    there, now = (row.tokens, row.bytes), piece.counts[1:]
    if row.tokens and now[0] and there != now:
        raise UserError(
            f"length_sweep.csv has {row.run}@{row.step} at length {row.length} over another text: "
            f"{row.tokens} tokens, {row.bytes} bytes, now {now[0]} and {now[1]}\n"
            "the longest of EVAL_LENGTHS and length_sweep.tokens choose it: keep both, "
            "or move that file away"
        )
