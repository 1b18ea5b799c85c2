"""The lengths that a model can read, and messages about the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax

from fire_lm.errors import UserError
from fire_lm.models import Decoder
from fire_lm.processes import say


def lengths_taken(model: Decoder, lengths: Sequence[int], run: str) -> tuple[int, ...]:
    """Return the lengths that the model can read, and report the other lengths.

    A sweep scores the same text whether or not the model can read all lengths.

    Raises:
      UserError: The model can read none of the lengths.
    """
    refused = lengths_refused(model, lengths)
    if len(refused) == len(lengths):
        raise UserError(
            f"{run} at length {lengths[0]}: {refused[lengths[0]]}\n"
            "alternatively, lower EVAL_LENGTHS or exclude this run from the sweep"
        )
    if refused:
        why = next(iter(refused.values())).partition("\n")[0]
        say(f"{run} is not scored at {listed(refused)}: {why}")
    return tuple(length for length in lengths if length not in refused)


def listed(lengths: Iterable[int]) -> str:
    """Return lengths as text for a message, such as "length 512" or "lengths 512, 1024"."""
    found = list(map(str, lengths))
    return f"length{'s' * (len(found) > 1)} {', '.join(found)}"


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
