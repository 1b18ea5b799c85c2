"""Angles `position * frequency`, exact at every position, and the frequencies they are made of.

In float32 the product itself is off by up to 0.004 radians at position 131,072. Here the whole
turns are taken off in integers before anything is rounded: a frequency is held as 2^-32ths of a
turn, and integers of 32 bits multiply modulo 2^32, that is, modulo whole turns.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np


def pair_frequencies(width: int, base: float) -> np.ndarray:
    """`base^(-2k/width)`, radians per position of pair k of `width` dims, float64 `[width/2]`."""
    return np.float64(base) ** (-np.arange(0, width, 2) / width)


def angles(pos: jax.Array, frequency_K: np.ndarray) -> jax.Array:
    """`pos * frequency` modulo 2 pi, radians, float32 `[..., K]`.

    Args:
      pos: positions or distances, int32 or float32, up to 2^24 in magnitude; `[...]`.
      frequency_K: radians per position, float64 numpy `[K]`, so known when compiling.

    The error is below 1e-6 radians for frequencies up to 1. Integer positions give at most
    pi + 0.02 in magnitude; the fraction of a position adds its own angle to that.
    """
    turns_K = np.asarray(frequency_K, np.float64) / (2 * math.pi)
    steps_K = np.round(turns_K * 2**32)
    rest_K = (turns_K - steps_K / 2**32).astype(np.float32)  # at most 2^-33 turns a position
    whole = jnp.floor(pos).astype(jnp.int32)
    by_frequency = (None,) * pos.ndim + (slice(None),)
    step_K = jnp.asarray(steps_K.astype(np.int64).astype(np.int32))[by_frequency]
    reduced = (whole[..., None] * step_K).astype(jnp.float32) * np.float32(2**-32)
    turns = reduced + whole[..., None].astype(jnp.float32) * jnp.asarray(rest_K)[by_frequency]
    if jnp.issubdtype(pos.dtype, jnp.floating):
        fraction = (pos - jnp.floor(pos)).astype(jnp.float32)
        turns = turns + fraction[..., None] * jnp.asarray(turns_K.astype(np.float32))[by_frequency]
    return turns * np.float32(2 * math.pi)
