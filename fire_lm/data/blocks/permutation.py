"""A pseudo-random order of n rows that is computed instead of stored.

A Feistel network permutes the 2k-bit numbers. To permute 0..n-1, any result of n or more is passed
through the network again until it is below n ("cycle walking"; Black and Rogaway, Ciphers with
Arbitrary Finite Domains, 2002). The position of any row can thus be computed without those of its
predecessors and in constant memory, whether there are 10 rows or 10^11.
"""

from __future__ import annotations

import numpy as np

_ROUNDS = 8  # with only a few bits per half, fewer rounds cannot produce some orders


def permuted(index: np.ndarray, count: int, seed: int, epoch: int) -> np.ndarray:
    """Map `index` through the permutation of `count` items that `seed` and `epoch` select.

    Args:
      index: The items to map, int64 [k], each in 0..count-1.
      count: The number of items, at least 1 and below 2^62.
      seed: A non-negative integer.
      epoch: A non-negative integer. Every pair of a seed and an epoch selects a permutation.

    Returns:
      The permuted items, int64 [k], each in 0..count-1.
    """
    half = max(1, (count - 1).bit_length() + 1 >> 1)
    keys = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64)
    limit = np.uint64(count)
    permuted_index = _feistel(index.astype(np.uint64), half, keys)
    outside = np.flatnonzero(permuted_index >= limit)
    while outside.size:
        permuted_index[outside] = _feistel(permuted_index[outside], half, keys)
        outside = outside[permuted_index[outside] >= limit]
    return permuted_index.astype(np.int64)


def _feistel(values: np.ndarray, half: int, keys: np.ndarray) -> np.ndarray:
    """Apply a bijection of 0..4^half-1 to `values`.

    Each round is invertible, whatever `_mixed` computes.
    """
    bits, mask = np.uint64(half), np.uint64(2**half - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return left << bits | right


def _mixed(values: np.ndarray) -> np.ndarray:
    """Apply the finalizer of splitmix64: every output bit depends on every input bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
