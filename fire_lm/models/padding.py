"""The lengths to which inputs are padded, and the positions of the padding.

A separate program is compiled for each length, so inputs are padded on the right to one of a few
lengths. No token attends to the padding.
"""

from __future__ import annotations

import numpy as np

from fire_lm.errors import UserError
from fire_lm.models.decoder import Decoder
from fire_lm.positions.resampling import Resampling


def padded_length(tokens: int, smallest: int) -> int:
    """Return the least of `smallest` x 1, 1.5, 2, 3, 4, 6, ... that is at least `tokens`.

    Beyond `smallest`, which must be a power of two, at most a third of the result is padding.
    """
    length = smallest
    while length < tokens:
        power = length & (length - 1) == 0
        length = length * 3 // 2 if power else length * 4 // 3
    return length


def readable_length(model: Decoder, tokens: int, padded: int) -> int:
    """Return `padded` or, if the model cannot read as many tokens, `tokens`.

    For example, a learned table may cover an input but not its padding.
    """
    return padded if _reads(model, padded, padded) else tokens


def padded_positions(model: Decoder, tokens: int, padded: int) -> np.ndarray:
    """Return the first `padded` positions of an evaluation input of `tokens` tokens and padding.

    The padding continues the positions 0, 1, 2, ..., because kernels that look up a bias by
    distance rely on consecutive positions. If the model has no further positions, or its positions
    are resampled, the last position is repeated.
    """
    if model.resampling == Resampling() and _reads(model, padded, tokens):
        return np.arange(padded, dtype=np.int32)
    pos_T = np.asarray(model.resampling.evaluation_positions(tokens))[0, :padded]
    return np.pad(pos_T, (0, padded - pos_T.size), mode="edge")


def depends_on_length(model: Decoder, longest: int) -> bool:
    """Return whether padding changes the predictions for an input of up to `longest` tokens.

    This is the case if an encoding or the positions depend on the length of the input.
    """
    return any(encoding.uses_context_length for encoding in model.encodings) or not keeps_positions(
        model, longest
    )


def keeps_positions(model: Decoder, length: int) -> bool:
    """Return whether an input of `length` tokens continues the positions of a shorter input.

    A few tokens may lie at the same positions by chance. Where the rule has enough positions, at
    least 64 tokens are compared.
    """
    if model.resampling == Resampling():  # 0, 1, 2, ...; computing them compiles for each length
        return True
    positions = model.resampling.evaluation_positions
    length = max(length, min(64, model.resampling.largest(1)))
    half = (length + 1) // 2
    return bool(np.array_equal(positions(length)[0, :half], positions(half)[0]))


def _reads(model: Decoder, length: int, context_length: int) -> bool:
    try:
        for encoding in model.encodings:
            encoding.check_length(length, context_length)
    except UserError:
        return False
    return True
