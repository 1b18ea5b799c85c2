"""The token stream of a split's documents, which can be read at any position."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorstore as ts

from fire_lm.data import stores
from fire_lm.data.blocks import manifest as manifests
from fire_lm.data.blocks.manifest import Manifest
from fire_lm.data.identity import vocabulary_fingerprint
from fire_lm.errors import RunFailed, UserError

TOKENS, ENDS, BYTE_COUNTS = "tokens", "ends", "byte_counts"
# The element type of each array except the tokens, and whether the array is compressed. Tokens are
# not compressed, because compression would hardly reduce their size.
LAYOUT: dict[str, tuple[np.dtype, bool]] = {
    ENDS: (np.dtype(np.int64), True),
    BYTE_COUNTS: (np.dtype(np.uint32), True),
}


def part_path(path: str, split: str, index: int, count: int) -> str:
    return stores.join(path, split, f"{index:05d}-of-{count:05d}")


def open_set(path: str, vocabulary: str) -> Manifest:
    """Return the manifest of the blocks in `path`, after checking their vocabulary.

    An empty `vocabulary` accepts blocks that were made with any vocabulary.

    Raises:
      UserError: There are no blocks, or the blocks were made with another vocabulary.
      RunFailed: The manifest is damaged or unreadable.
    """
    manifest = manifests.read(path)
    if manifest is None:
        raise UserError(
            f"There are no complete blocks in {path}: {manifests.FILE_NAME}, which is written "
            "last, does not exist\nWrite the blocks, or resume writing, with "
            f"`fire-lm corpus blocks --data_dir=TEXT --output={path}`"
        )
    identity = manifest.identity
    if vocabulary and vocabulary_fingerprint(vocabulary) != identity.vocabulary_fingerprint:
        raise UserError(
            f"The blocks in {path} were made with the vocabulary {identity.vocabulary}, "
            f"not with {vocabulary} (its SHA-256 differs)\n"
            "Set VOCABULARY to the vocabulary of the blocks, or write the blocks again to another "
            "directory"
        )
    return manifest


def check_split(path: str, manifest: Manifest, split: str) -> None:
    if split not in manifest.splits:
        raise UserError(
            f"The blocks in {path} have no split {split!r}, "
            f"only {', '.join(sorted(manifest.splits))}"
        )


class Stream:
    """The concatenated tokens of all parts of a split, addressed by int64 positions 0..tokens-1."""

    def __init__(self, path: str, manifest: Manifest, split: str):
        check_split(path, manifest, split)
        self.path, self.split, self._dtype = path, split, manifest.identity.token_dtype
        self._parts = manifest.splits[split]
        self._edges = np.cumsum([0, *(part.tokens for part in self._parts)])
        self._open: dict[tuple[str, int], ts.TensorStore] = {}

    @property
    def tokens(self) -> int:
        return int(self._edges[-1])

    def document_ends(self) -> Iterator[np.ndarray]:
        """Yield the end positions, int64 [documents], of the documents in each non-empty part.

        Skipped documents are included; each ends where the previous document ends.
        """
        for index, part in enumerate(self._parts):
            if part.documents:
                array = self._array(ENDS, index)
                yield self._edges[index] + self._result(array.read())

    def read(self, starts: np.ndarray, stops: np.ndarray, length: int, array: str) -> np.ndarray:
        """Read the spans of an array from `starts` to `stops` as int32 [k, length], padded with 0.

        Args:
          starts, stops: Positions in the stream, int64 [k].
          length: The maximum size of a span.
          array: The name of the array, TOKENS or BYTE_COUNTS.

        Raises:
          RunFailed: The data is damaged or cannot be read.
        """
        rows = np.zeros([len(starts), length], np.int32)
        waiting = []
        parts = np.searchsorted(self._edges, starts, "right") - 1
        spans = zip(starts.tolist(), stops.tolist(), parts.tolist(), strict=True)
        for row, (start, stop, part) in enumerate(spans):
            at = start
            while at < stop:
                begin, end = int(self._edges[part]), int(self._edges[part + 1])
                until = min(stop, end)
                if until > at:
                    future = self._array(array, part)[at - begin : until - begin].read()
                    waiting.append((rows[row, at - start : until - start], future))
                at, part = until, part + 1
        for place, future in waiting:
            place[:] = self._result(future)
        return rows

    def _array(self, name: str, part: int) -> ts.TensorStore:
        if (name, part) not in self._open:
            dtype, compress = LAYOUT.get(name, (self._dtype, False))
            sizes = self._parts[part]
            size = sizes.documents if name == ENDS else sizes.tokens
            folder = part_path(self.path, self.split, part, len(self._parts))
            opening = stores.open_array(stores.join(folder, name), dtype, size, compress=compress)
            self._open[name, part] = opening
        return self._open[name, part]

    def _result(self, future: ts.Future) -> np.ndarray:
        try:
            return future.result()
        except (ValueError, OSError, TimeoutError) as error:
            raise RunFailed(
                f"Reading the blocks in {self.path} failed: {stores.brief(error)}\n"
                "If a file is missing or damaged, remove its folder and manifest.json, and run "
                "`fire-lm corpus blocks` again"
            ) from error
