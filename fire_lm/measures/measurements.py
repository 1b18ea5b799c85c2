"""Measurements of a length sweep, one for each protocol and length.

Shape suffixes: R = rows of text, T = tokens.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fire_lm.data import ScoringText
from fire_lm.errors import UserError
from fire_lm.measures.position_losses import number_of_bins
from fire_lm.measures.protocols import Windows, named, windows
from fire_lm.measures.text_choice import text_hash
from fire_lm.results import SweepRow


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A measurement at one length under one protocol.

    Attributes:
      key: The key of the row of results.
      laid: The windows into the rows of text, or None if the length exceeds these rows.
      text: A hash of the scored text.
      counts: The numbers of sequences, tokens and bytes.
      bins: The number of bins for the losses by position, or 0 if these losses are not requested.
      has_positions: Whether the losses by position already exist. Even then, a missing row is
        computed with bins, so that the program is the same.
    """

    key: tuple[Any, ...]
    laid: Windows | None
    text: str
    counts: tuple[int, int, int]
    bins: int = 0
    has_positions: bool = False

    @property
    def length(self) -> int:
        """The number of tokens in a sequence."""
        length: int = self.key[-1]
        return length

    @property
    def positions_key(self) -> tuple[Any, ...]:
        """The key of the losses by position, which do not name the protocol."""
        return *self.key[:-2], self.length

    def row(self, result: tuple[float, float, float, float]) -> SweepRow:
        """Return the row of results.

        Args:
          result: The mean loss in nats, its standard error, the perplexity and the bits per byte.
        """
        fields: tuple[Any, ...] = (*self.key, *self.counts, *result)
        return SweepRow(*fields)


@dataclasses.dataclass(frozen=True)
class Known:
    """The existing results of a run, with the texts on which they were measured.

    Attributes:
      rows: The rows, by key.
      texts: A hash of each row's text, by key; "" if it is not recorded.
      positions: A hash of the text of the losses by position, by key; "" if it is not recorded.
        These keys do not contain the protocol.
    """

    rows: Mapping[tuple[str | int, ...], SweepRow]
    texts: Mapping[tuple[str | int, ...], str]
    positions: Mapping[tuple[str | int, ...], str]


def missing(
    text: ScoringText,
    first_columns: tuple[Any, ...],
    protocols: Sequence[str],
    lengths: Sequence[int],
    stride: int,
    position_bins: int,
    known: Known,
) -> list[Measurement]:
    """Return the measurements of a text that lack a row or requested losses by position.

    `first_columns` is the key of the rows without the protocol and the length.

    Raises:
      UserError: A protocol would score only padding, or an existing row was measured on another
        text.
    """
    longest_row, name = text.targets.shape[1], text_hash(text)
    longest = max((length for length in lengths if length <= longest_row), default=0)
    measurements = []
    for protocol, length in itertools.product(protocols, lengths):
        key, bins = (*first_columns, named(protocol, stride), length), 0
        laid = windows(protocol, length, longest_row, stride) if length <= longest_row else None
        counts = count(text, laid) if laid else (0, 0, 0)
        if laid and not counts[1]:
            raise UserError(
                f"protocol {key[-2]} at length {length} would score only padding in {key[4]}\n"
                "use rows without padding (--gin.CONSTRUCTION=concat), or change EVAL_LENGTHS"
            )
        if (protocol, length) == ("full", longest) and position_bins:
            bins = number_of_bins(length, position_bins)
        measurement = Measurement(key, laid, name, counts, bins)
        check_same_text(measurement, known)
        has_positions = bool(bins) and measurement.positions_key in known.positions
        if key not in known.rows or (bins and not has_positions):
            measurements.append(dataclasses.replace(measurement, has_positions=has_positions))
    return measurements


def check_same_text(measurement: Measurement, known: Known) -> None:
    """Check that comparable existing rows were measured on the same text.

    Comparable rows have the same run, data set, split, construction and protocol as the
    measurement. Their lengths, steps and variants may differ.

    Raises:
      UserError: An existing row was measured on another text.
    """
    records = [("length_sweep.csv", known.texts, measurement.key[4:8])]
    if measurement.bins:
        records.append(("position_losses.csv", known.positions, measurement.key[4:7]))
    for file, texts, name in records:
        for key, text in texts.items():
            same_name = (key[0], key[4 : 4 + len(name)]) == (measurement.key[0], name)
            if same_name and text not in ("", measurement.text):
                raise UserError(
                    f"{file} has {key[0]}@{key[3]} at length {key[-1]}, scored on another text "
                    f"({text[:8]}, now {measurement.text[:8]}): the results cannot be compared\n"
                    "use the same data and length_sweep.tokens as before, because these determine "
                    "the text, or move length_sweep.csv, position_losses.csv and scored_text.csv "
                    "of that run away"
                )


def count(text: ScoringText, laid: Windows) -> tuple[int, int, int]:
    """Return the numbers of scored sequences, tokens and bytes.

    Sequences without a scored token are not counted.
    """
    scored = laid.of(text.weights) * laid.scored(len(text.targets))
    places_T = laid.scored_places(text.targets.shape[1])
    tokens = int(scored_tokens(text, laid).sum())
    text_bytes = int(text.byte_counts[:, places_T].sum(dtype=np.int64))
    return int(scored.any(axis=1).sum()), tokens, text_bytes


def scored_tokens(text: ScoringText, laid: Windows) -> np.ndarray:
    """Return the number of scored tokens in each row of text, `[R]`."""
    places_T = laid.scored_places(text.targets.shape[1])
    return text.weights[:, places_T].sum(axis=1, dtype=np.int64)
