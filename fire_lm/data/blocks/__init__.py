"""Text that is tokenised once, after which any number of hosts can read any row or batch.

`fire-lm corpus blocks` writes a set of blocks, which can be read at every length and with every
construction. Only `writer.py` imports TensorFlow; reading needs only NumPy and TensorStore.
This module implements the functions of `fire_lm.data` for `Blocks`.
"""

from __future__ import annotations

from fire_lm.data.blocks import manifest as manifests
from fire_lm.data.blocks.reader import BlockIterator, scoring_text
from fire_lm.data.blocks.stream import check_split, open_set
from fire_lm.data.spec import Blocks

__all__ = ["BlockIterator", "scoring_text"]


def train_iterator(data: Blocks, **arguments: int) -> BlockIterator:
    return BlockIterator(data, **arguments)


def vocabulary_name(data: Blocks) -> str:
    """Return `data.vocabulary` or, if it is empty, the vocabulary's name in the manifest."""
    return data.vocabulary or open_set(data.path, "").identity.vocabulary


def vocabulary_size(data: Blocks) -> int:
    return open_set(data.path, data.vocabulary).identity.vocabulary_size


def label(data: Blocks) -> str:
    return open_set(data.path, data.vocabulary).identity.label


def quick_splits(data: Blocks) -> list[str] | None:
    found = None if "://" in data.path else manifests.read(data.path)
    return sorted(found.splits) if found else None


def unknown_share(data: Blocks, split: str) -> float:
    """Return the exact share of unknown tokens in a split, as counted when it was written."""
    manifest = open_set(data.path, data.vocabulary)
    check_split(data.path, manifest, split)
    return manifest.unknown_share(split)
