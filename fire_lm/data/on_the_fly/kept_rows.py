"""Rows that are kept in memory, without most of their padding, until some of them are chosen.

Several rows are read for each row that is scored, and most documents are far shorter than a row of
`cut`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def cropped(group: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a group of rows without the last columns if these contain only padding."""
    length = group["targets"].shape[1]
    filled = int(np.max(np.flatnonzero(group["targets"].any(axis=0)), initial=-1)) + 1
    if filled == length:
        return group
    return {name: array[:, :filled].copy() for name, array in group.items()}


def chosen_rows(
    groups: Sequence[Mapping[str, np.ndarray]], chosen: np.ndarray, length: int
) -> dict[str, np.ndarray]:
    """Return the rows with the increasing numbers `chosen`, padded to `length` tokens."""
    rows = {name: np.zeros([len(chosen), length], array.dtype) for name, array in groups[0].items()}
    first = 0
    for group in groups:
        last = first + len(group["targets"])
        start, stop = np.searchsorted(chosen, [first, last])
        for name, array in group.items():
            rows[name][start:stop, : array.shape[1]] = array[chosen[start:stop] - first]
        first = last
    return rows
