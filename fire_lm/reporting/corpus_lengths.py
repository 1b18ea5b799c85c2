"""A table and a figure of the document lengths in a data set.

The caller computes the lengths: the number of tokens of each document, by split.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from etils import epath

from fire_lm.console import columns
from fire_lm.reporting import charts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _edges(tokens: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return powers of two that cover the range from the shortest to the longest document."""
    lengths = np.concatenate([*tokens.values()])
    if not lengths.size:
        return np.array([1, 2])
    first, last = np.log2(lengths.min()), np.log2(lengths.max())
    return 2 ** np.arange(int(first), int(last) + 2)


def length_table(tokens: Mapping[str, np.ndarray]) -> str:
    """Return a table of document counts by number of tokens, with one column per split."""
    edges = _edges(tokens)
    counts = [np.histogram(lengths, edges)[0] for lengths in tokens.values()]
    rows = [
        [f"{low:,} to {high - 1:,}", *(f"{count:,}" for count in of_bin)]
        for low, high, *of_bin in zip(edges, edges[1:], *counts, strict=False)
    ]
    return "\n".join(columns([["tokens in a document", *tokens], *rows], words=0))


def length_figure(tokens: Mapping[str, np.ndarray], title: str, path: epath.Path) -> None:
    """Write a PNG of the distribution of document lengths in each split."""
    edges = _edges(tokens)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for split, lengths in tokens.items():
            share = np.histogram(lengths, edges)[0] / max(1, len(lengths))
            label = f"{split} ({len(lengths):,} documents)"
            axes.stairs(share, edges, label=label, fill=True, alpha=0.5)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("tokens in a document")
        axes.set_ylabel("share of the documents")
        axes.set_title(title, fontsize="small")
        axes.legend()

    path.write_bytes(charts.png(draw, 7, 4))
