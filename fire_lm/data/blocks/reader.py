"""Training batches and scoring text from blocks, read by row number and without TensorFlow.

Sample s of a run is row perm(seed, s // R)(s % R) of the R rows, and batch t of B rows contains the
samples from t B up to, but not including, (t + 1) B. A batch therefore depends only on (seed, t),
and each process reads only its own rows of the batch. The position in the data is a single number
with the same meaning for any number of processes.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from fire_lm.data.batches import (
    Batch,
    CountingIterator,
    NoText,
    ScoringText,
    share_unknown,
    text_weights,
)
from fire_lm.data.blocks.permutation import permuted
from fire_lm.data.blocks.stream import BYTE_COUNTS, TOKENS, Stream, open_set
from fire_lm.data.rows import ROWS, Rows, check_arrangement
from fire_lm.data.spec import SCORING_SPREAD
from fire_lm.errors import UserError

if TYPE_CHECKING:
    from fire_lm.data.kinds import Blocks

BATCHES_AHEAD = 4
_BATCHES_PLANNED = 64


class BlockIterator(CountingIterator):
    """An endless iterator over batches, which a thread prefetches; see `fire_lm.data`.

    `number` counts the samples that all processes together have returned.
    """

    of, counted = "blocks", "samples"

    def __init__(
        self,
        data: Blocks,
        *,
        length: int,
        batch_size: int,
        seed: int,
        shard_index: int = 0,
        shard_count: int = 1,
    ):
        manifest = open_set(data.path, data.vocabulary)
        self._stream = Stream(data.path, manifest, "train")
        self._rows = table_of_rows(data, self._stream, length)
        self._batch_size, self._global_size = batch_size, batch_size * shard_count
        if self._rows.count < self._global_size:
            raise UserError(
                f"The train split of the blocks in {data.path} has {self._rows.count:,} rows of "
                f"{length} tokens ({data.construction}), fewer than one batch of "
                f"{self._global_size} rows\n"
                "Provide more text, or reduce BATCH_SIZE or TRAIN_LENGTH"
            )
        self._length, self._seed = length, seed
        self._mine = shard_index * batch_size + np.arange(batch_size)  # this shard's rows
        super().__init__(
            {
                "blocks": manifest.fingerprint("train"),
                "construction": data.construction,
                "length": length,
                "seed": seed,
            }
        )
        self._planned: dict[int, np.ndarray] = {}  # used only by the reader's thread
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="blocks")
        self._ahead: collections.deque[Future[Batch]] = collections.deque()

    @property
    def description(self) -> str:
        rows = self._rows
        memory = f"{rows.memory / 2**20:,.0f} MiB"
        return f"{rows.count:,} rows in blocks (the table of rows takes {memory})"

    def __next__(self) -> Batch:
        while len(self._ahead) < BATCHES_AHEAD:
            first = self.number + len(self._ahead) * self._global_size
            self._ahead.append(self._reader.submit(self.batch, first))
        try:
            batch = self._ahead[0].result()
        except BaseException:
            self._drop_ahead()  # the next call then reads this batch again
            raise
        self._ahead.popleft()
        self.number += self._global_size
        return batch

    def is_after(self, batches: int) -> bool:
        return self.number == batches * self._global_size

    def set_state(self, state: bytes) -> None:
        super().set_state(state)
        self._drop_ahead()

    def _drop_ahead(self) -> None:
        while self._ahead:
            self._ahead.pop().cancel()

    def batch(self, number: int) -> Batch:
        """Read this process's rows of the batch that starts with this sample."""
        if number not in self._planned:
            self._planned = self._plan(number)
        rows = self._planned[number]
        starts, stops = self._rows.spans(rows)
        targets = self._stream.read(starts, stops, self._length, TOKENS)
        batch = {"targets": targets, "weights": text_weights(targets)}
        if self._rows.segmented:
            batch["segment_ids"] = segment_ids(self._rows, starts, stops, self._length)
        return batch

    def _plan(self, first: int) -> dict[int, np.ndarray]:
        """Return the row numbers of this batch and later ones, keyed by each batch's first sample.

        Many batches are planned at once, because the cost of a permutation in NumPy hardly depends
        on the number of permuted values.
        """
        firsts = first + np.arange(_BATCHES_PLANNED) * self._global_size
        epochs, within = np.divmod(firsts[:, None] + self._mine, self._rows.count)
        rows = np.empty_like(within)
        for epoch in np.unique(epochs):
            of_epoch = epochs == epoch
            rows[of_epoch] = permuted(within[of_epoch], self._rows.count, self._seed, int(epoch))
        return dict(zip(firsts.tolist(), rows, strict=True))


def table_of_rows(data: Blocks, stream: Stream, length: int) -> Rows:
    """Return the rows of `length` tokens into which the construction arranges the stream.

    Raises:
      UserError: The length or the construction is invalid.
      NoText: The stream does not contain a single row.
    """
    check_arrangement(data, length)
    rows = ROWS[data.construction](length, stream.tokens, _ends_of_written(stream))
    if not rows.count:
        raise NoText(
            f"The {stream.split} split of the blocks in {stream.path} has no row of {length} "
            f"tokens ({data.construction}): choose a shorter length"
        )
    return rows


def _ends_of_written(stream: Stream) -> Iterator[np.ndarray]:
    """Yield the end positions of the documents in each part, leaving out skipped documents.

    A part that contains only skipped documents is omitted.
    """
    begin = 0
    for ends in stream.document_ends():
        written = ends[np.diff(ends, prepend=begin) > 0]
        begin = ends[-1]
        if len(written):
            yield written


def segment_ids(rows: Rows, starts: np.ndarray, stops: np.ndarray, length: int) -> np.ndarray:
    """Return segment ids, int32 [k, length]: 1, 2, ... for each row's documents, 0 for padding."""
    ids = np.zeros([len(starts), length], np.int32)
    for row, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        ids[row, rows.segment_starts(start, stop)] = 1
        ids[row] = 1 + np.cumsum(ids[row])
        ids[row, stop - start :] = 0
    return ids


def scoring_text(data: Blocks, *, length: int, num_sequences: int, split: str) -> ScoringText:
    """Return text to score; see `fire_lm.data.scoring_text`.

    If the split was written as a single part, the rows are identical to those of the seqio
    pipeline, because complete groups of documents are counted until there are enough rows to choose
    from.
    """
    manifest = open_set(data.path, data.vocabulary)
    stream = Stream(data.path, manifest, split)
    table = table_of_rows(data, stream, length)
    ends, group = (
        np.concatenate(list(stream.document_ends())),
        manifest.identity.documents_per_group,
    )
    last_of_group = np.minimum(np.arange(group, len(ends) + group, group), len(ends)) - 1
    complete = [*table.complete_at(ends[last_of_group]), table.count]
    enough = int(np.searchsorted(complete, num_sequences * SCORING_SPREAD))
    read = int(complete[min(enough, len(complete) - 1)])
    documents = ends[: last_of_group[min(enough, len(last_of_group) - 1)] + 1]
    kept = min(read, num_sequences)
    starts, stops = table.spans(np.arange(kept) * read // kept)
    segmented = table.segmented
    targets = stream.read(starts, stops, length, TOKENS)
    return ScoringText(
        targets=targets,
        byte_counts=stream.read(starts, stops, length, BYTE_COUNTS),
        skipped=int(np.sum(np.diff(documents, prepend=0) == 0)),
        unknown=share_unknown(targets, manifest.identity.unknown_id),
        segment_ids=segment_ids(table, starts, stops, length) if segmented else None,
    )
