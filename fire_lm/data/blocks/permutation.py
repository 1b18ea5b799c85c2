"""A pseudo-random order of n rows that is computed, not stored.

A Feistel network permutes the numbers of 2k bits; results at or above n are sent through it again
until they fall below n ("cycle walking", Black and Rogaway, Ciphers with Arbitrary Finite Domains,
2002), which permutes 0..n-1. So the position of any row is computed without its predecessors, in
constant memory, for 10 rows as for 10^11.
"""

from __future__ import annotations

import numpy as np

_ROUNDS = 8  # with few bits per half, fewer rounds cannot produce some orders


def permuted(index: np.ndarray, count: int, seed: int, epoch: int) -> np.ndarray:
    """Map `index` by the permutation of `count` items that (seed, epoch) selects.

    Args:
        index: The items, int64 [k], each in 0..count-1.
        count: The number of items, at least 1 and below 2^62.
        seed: 0 or more.
        epoch: 0 or more; each (seed, epoch) selects a different permutation.

    Returns:
        The permuted items, int64 [k], each in 0..count-1.
    """
    half = max(1, (count - 1).bit_length() + 1 >> 1)
    keys = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64)
    limit = np.uint64(count)
    found = _feistel(index.astype(np.uint64), half, keys)
    outside = np.flatnonzero(found >= limit)
    while outside.size:
        found[outside] = _feistel(found[outside], half, keys)
        outside = outside[found[outside] >= limit]
    return found.astype(np.int64)


def _feistel(values: np.ndarray, half: int, keys: np.ndarray) -> np.ndarray:
    """Apply a bijection of 0..4^half-1; each round is invertible, whatever `_mixed` computes."""
    bits, mask = np.uint64(half), np.uint64(2**half - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return left << bits | right


def _mixed(values: np.ndarray) -> np.ndarray:
    """Mix uint64 values so that every bit depends on every bit (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
