"""Truncation of inputs that do not fit into a row."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

Truncation = Literal["head", "tail", "middle"]
TRUNCATIONS: tuple[Truncation, ...] = get_args(Truncation)


def ends_kept(room: int, truncation: Truncation) -> tuple[int, int]:
    """Return the numbers of tokens that truncation keeps at an input's beginning and at its end."""
    tail = {"head": 0, "tail": room, "middle": room // 2}[truncation]
    return room - tail, tail


def shortened(tokens: np.ndarray, room: int, truncation: Truncation) -> np.ndarray:
    """Truncate the tokens of an input to at most `room` tokens; see `TextToText.truncation`.

    Truncating the result to a smaller number gives the same tokens as truncating the input to that
    number.
    """
    head, tail = ends_kept(room, truncation)
    size = len(tokens)
    return tokens if size <= room else np.concatenate([tokens[:head], tokens[size - tail :]])
