"""The measurements of a length sweep, each at one length under one protocol.

Shapes: R rows of text, T tokens.
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
from fire_lm.evaluation.text_choice import identity
from fire_lm.results import SweepRow


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A measurement at one length under one protocol.

    Attributes:
      place: The key of the result's row.
      laid: The windows over the rows of text; None if the text has no row of the length.
      text: The identity of the scored text.
      counts: The numbers of sequences, tokens and bytes.
      bins: The number of bins for losses by position; 0 if none are requested.
      has_positions: Whether the losses by position are known. The row is nevertheless computed by
        the same program.
    """

    place: tuple[Any, ...]
    laid: Windows | None
    text: str
    counts: tuple[int, int, int]
    bins: int = 0
    has_positions: bool = False

    @property
    def length(self) -> int:
        """The number of tokens in a sequence."""
        length: int = self.place[-1]
        return length

    def row(self, result: tuple[float, float, float, float]) -> SweepRow:
        """Return the row of a result: mean loss, error, perplexity and bits per byte."""
        fields: tuple[Any, ...] = (*self.place, *self.counts, *result)
        return SweepRow(*fields)


def measurements(
    text: ScoringText,
    where: tuple[str | int, ...],
    protocols: Sequence[str],
    lengths: Sequence[int],
    stride: int,
    position_bins: int,
) -> Iterator[Measurement]:
    """Yield all measurements of a text; `where` is the rows' key without protocol and length.

    Raises:
      UserError: A protocol scores nothing but padding.
    """
    there, name = text.targets.shape[1], identity(text)
    longest = max((length for length in lengths if length <= there), default=0)
    for protocol, length in itertools.product(protocols, lengths):
        place = (*where, named(protocol, stride), length)
        if length > there:
            yield Measurement(place, None, name, (0, 0, 0))
            continue
        laid = windows(protocol, length, there, stride)
        counts = count(text, laid)
        if not counts[1]:
            raise UserError(
                f"{place[-2]} scores no token of {place[4]} at length {length}: there is only "
                "padding there\n"
                "for rows without padding: --gin.CONSTRUCTION=concat, or other EVAL_LENGTHS"
            )
        by_position = (protocol, length) == ("full", longest) and position_bins
        bins = number_of_bins(length, position_bins) if by_position else 0
        yield Measurement(place, laid, name, counts, bins)


@dataclasses.dataclass(frozen=True)
class Known:
    """The finished rows.

    Attributes:
      rows: The rows by key.
      texts: The texts of the rows by key; empty strings for unrecorded texts.
      positions: The texts of the losses by position, likewise by key.
    """

    rows: Mapping[tuple[str | int, ...], SweepRow]
    texts: Mapping[tuple[str | int, ...], str]
    positions: Mapping[tuple[str | int, ...], str]


def missing(wanted: Iterable[Measurement], known: Known) -> Iterator[Measurement]:
    """Yield the measurements without a row or without losses by position.

    Raises:
      UserError: The existing rows have another text.
    """
    for measurement in wanted:
        check_same_text(measurement, known)
        if measurement.bins and (*measurement.place[:-2], measurement.length) in known.positions:
            measurement = dataclasses.replace(measurement, has_positions=True)
        if measurement.place not in known.rows or (
            measurement.bins and not measurement.has_positions
        ):
            yield measurement


def check_same_text(measurement: Measurement, known: Known) -> None:
    """Check that a run's rows of one data set, split, construction and protocol have one text.

    Their lengths, steps and variants are meant to be compared.

    Raises:
      UserError: An existing row has another text.
    """
    run, named_so = measurement.place[0], measurement.place[4:8]
    for key, found in known.texts.items():
        if (key[0], key[4:8]) == (run, named_so) and found not in ("", measurement.text):
            row = known.rows[key]
            there = f"length_sweep.csv has {run}@{row.step} at length {row.length}"
            raise UserError(_another_text(there, found, measurement))
    for key, found in known.positions.items():
        same_name = (key[0], key[4:7]) == (run, measurement.place[4:7])
        if measurement.bins and same_name and found not in ("", measurement.text):
            there = f"position_losses.csv has {run}@{key[3]} at length {key[7]}"
            raise UserError(_another_text(there, found, measurement))


def _another_text(there: str, found: str, measurement: Measurement) -> str:
    return (
        f"{there} over another text ({found[:8]}, now {measurement.text[:8]}): the two cannot be "
        "compared\n"
        "length_sweep.tokens and the data choose the text: use the same settings as before, or "
        "move length_sweep.csv, position_losses.csv and scored_text.csv of that run away"
    )


def unrecorded(where: tuple[str | int, ...], known: Known) -> int:
    """Return how many finished rows of a run and data set do not record their text.

    `where` is the rows' key up to the construction.
    """
    return sum(
        not found and (key[0], key[4:7]) == (where[0], where[4:7]) and known.rows[key].tokens > 0
        for key, found in known.texts.items()
    )


def count(text: ScoringText, laid: Windows) -> tuple[int, int, int]:
    """Return the scored (sequences, tokens, bytes), ignoring sequences without a scored token."""
    scored = laid.of(text.weights) * laid.scored(len(text.targets))
    places_T = laid.scored_places(text.targets.shape[1])
    tokens = int(scored_tokens(text, laid).sum())
    text_bytes = int(text.byte_counts[:, places_T].sum(dtype=np.int64))
    return int(scored.any(axis=1).sum()), tokens, text_bytes


def scored_tokens(text: ScoringText, laid: Windows) -> np.ndarray:
    """Return the number of scored tokens in each row, `[R]`."""
    places_T = laid.scored_places(text.targets.shape[1])
    return text.weights[:, places_T].sum(axis=1, dtype=np.int64)
