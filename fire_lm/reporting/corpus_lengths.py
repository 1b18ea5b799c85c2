"""A table and a figure of the document lengths in a data set.

The caller computes the lengths: the number of tokens of each document, by split.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
from etils import epath


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
    counts = {split: np.histogram(found, edges)[0] for split, found in tokens.items()}
    names = [f"{low:,} to {high - 1:,}" for low, high in zip(edges, edges[1:], strict=False)]
    lines = [f"{'tokens in a document':>24}" + "".join(f"{split:>14}" for split in counts)]
    for number, name in enumerate(names):
        cells = "".join(f"{found[number]:>14,}" for found in counts.values())
        lines.append(f"{name:>24}{cells}")
    return "\n".join(lines)


def length_figure(tokens: Mapping[str, np.ndarray], title: str, path: epath.Path) -> None:
    """Write a PNG of the distribution of document lengths in each split."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    edges = _edges(tokens)
    drawing, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for split, found in tokens.items():
        share = np.histogram(found, edges)[0] / max(1, len(found))
        axes.stairs(share, edges, label=f"{split} ({len(found):,} documents)", fill=True, alpha=0.5)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("tokens in a document")
    axes.set_ylabel("share of the documents")
    axes.set_title(title, fontsize="small")
    axes.legend()
    image = io.BytesIO()
    drawing.savefig(image, format="png", dpi=150)
    pyplot.close(drawing)
    path.write_bytes(image.getvalue())
