"""The lengths that a model can read, and messages about the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import jax

from fire_lm.data import TextSource
from fire_lm.errors import UserError
from fire_lm.models import Decoder, keeps_positions
from fire_lm.processes import say_once


def readable_lengths(
    model: Decoder, tokens: Mapping[int, int], run: str, refused: Mapping[int, str] | None = None
) -> tuple[int, ...]:
    """Return the lengths that the model can read, and report the other lengths, with reasons.

    A sweep scores the same text whether or not the model can read all lengths.

    Args:
      model: The model.
      tokens: The number of tokens that the model reads at each length.
      run: The name of the run in messages.
      refused: Lengths that are impossible for another reason, each mapped to the reason.

    Raises:
      UserError: None of the lengths is possible.
    """
    unread = lengths_refused(model, sorted(set(tokens.values())))
    too_long = {length: unread[count] for length, count in tokens.items() if count in unread}
    why = {**(refused or {}), **too_long}
    readable = tuple(length for length in tokens if length not in why)
    if not readable:
        length, reason = next(iter(why.items()))
        raise UserError(
            f"{run} at length {length}: {reason}\n"
            "alternatively, lower EVAL_LENGTHS or exclude this run"
        )
    by_reason: dict[str, list[int]] = {}
    for length, reason in why.items():
        first = next(iter(too_long.values())) if length in too_long else reason
        by_reason.setdefault(first.partition("\n")[0], []).append(length)
    for reason, lengths in by_reason.items():
        say_once(f"{run} is not scored at {listed(lengths)}: {reason}")
    return readable


def check_positions(model: Decoder, data: TextSource, longest: int, run: str) -> None:
    """Raise UserError if documents of packed rows would get the first positions of their row.

    `longest` is the largest number of tokens in a row, and `run` the name of the run in messages.
    """
    if data.packed and not keeps_positions(model, longest):
        raise UserError(
            f"{run}: in packed rows, documents cannot have positions that depend on the length of "
            "the input: add --gin_file=configs/resampling/plain.gin, or set another CONSTRUCTION"
        )


def check_rows(model: Decoder, data: TextSource, longest: int, run: str) -> None:
    """Raise UserError if the predictions for a document would depend on the length of its row.

    The arguments are those of `check_positions`.
    """
    check_positions(model, data, longest, run)
    stretched = [e.title for e in model.encodings if e.stretches and longest > e.train_length]
    if stretched and data.construction in ("packed", "cut"):
        raise UserError(
            f"{run}: {stretched[0]} follows the length of the input, but rows of {longest} tokens "
            f"contain shorter documents with CONSTRUCTION={data.construction}, which would be "
            "stretched too: set CONSTRUCTION=long_documents or concat, or a fixed factor"
        )


def listed(lengths: Iterable[int]) -> str:
    """Return lengths as text for a message, such as "length 512" or "lengths 512, 1024"."""
    words = list(map(str, lengths))
    return f"length{'s' * (len(words) > 1)} {', '.join(words)}"


def lengths_refused(model: Decoder, lengths: Sequence[int]) -> dict[int, str]:
    """Return the lengths that the model cannot read, each mapped to the reason.

    For example, a learned encoding has no vectors beyond its last position. No forward pass is
    computed.
    """
    refused = {}
    for length in lengths:
        try:
            for encoding in model.encodings:
                encoding.check_length(length, length)
            jax.eval_shape(lambda: model.resampling.evaluation_positions(length))  # noqa: B023
        except UserError as error:
            refused[length] = str(error)
    return refused
