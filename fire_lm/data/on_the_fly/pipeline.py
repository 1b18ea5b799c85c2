"""Training batches with an exact and small saved position, and fixed text for scoring.

Rows are shuffled in blocks. Each block of `shuffle_buffer` rows, or a few more, is read and then
permuted by (seed, shard, block). While the rows of a block are returned, the next block is read at
the same pace. A saved position consists of the reader's position at the start of the block and the
number of rows returned since then. This takes a few kilobytes, whatever the row length or the size
of the buffer, whereas tf.data's own shuffle saves its whole buffer. Restoring a position reads the
block again, which takes as long as reading the first block of a new run.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from fire_lm.data import vocabularies
from fire_lm.data.batches import NoText, ScoringText, TrainIterator, share_unknown, text_weights
from fire_lm.data.identity import PREPROCESSING, vocabulary_fingerprint
from fire_lm.data.on_the_fly import content, preprocessors
from fire_lm.data.on_the_fly.kept_rows import chosen_rows, cropped
from fire_lm.data.on_the_fly.preprocessors import COUNTERS
from fire_lm.data.on_the_fly.source import nothing_to_read, reading, tuned
from fire_lm.data.quiet_tensorflow import seqio, tf
from fire_lm.data.spec import SCORING_SPREAD
from fire_lm.errors import UserError

if TYPE_CHECKING:
    from fire_lm.data.kinds.by_seqio import BySeqio, TextBySeqio


# What NumPy and zipfile raise for a saved position that is not intact.
_DAMAGE = (ValueError, KeyError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


class SeqioIterator(TrainIterator):
    """An endless iterator over one shard's batches, which depend only on the arguments.

    `fire_lm.data.train_iterator` describes the arguments and the batches.
    """

    def __init__(
        self,
        data: BySeqio,
        *,
        length: int,
        batch_size: int,
        seed: int,
        shard_index: int = 0,
        shard_count: int = 1,
    ):
        self._documents = data.reader.check(data, length=length, split="train")
        self._shard = seqio.ShardInfo(shard_index, shard_count) if shard_count > 1 else None
        self._documents_of_shard = data.reader.documents_of(data, self._shard, self._documents)
        self._data, self._length, self._batch_size = data, length, batch_size
        self._seed, self._shard_index, self._shard_count = seed, shard_index, shard_count
        data.reader.check_rows(data, length=length, shard=self._shard)
        self._fingerprint = vocabulary_fingerprint(data.vocabulary)
        self._text = content.text_digest(data, "train", self._shard)
        self._digests = data.digests()
        self._reader = self._open_reader()
        self._block = -1  # the number of the current block
        self._used = 0  # the number of rows of the current block that have been returned
        self._rows: dict[str, np.ndarray] = {}  # the current block as read, by feature
        self._order = np.zeros([0], np.int64)  # the order in which these rows are returned
        self._start: dict[str, bytes] = {}  # the reader's position before the current block
        self._next: list[dict[str, np.ndarray]] = []  # the part of the next block read so far
        self._next_rows = 0
        self._next_start: dict[str, bytes] = {}
        self._skipped = 0  # the number of documents skipped and not yet reported
        self._began = False
        # This callback receives the progress of the first block, which is read before the first
        # batch.
        self.on_rows: Callable[[int, int], None] = lambda done, total: None

    @property
    def description(self) -> str:
        return self._data.described(self._documents)

    def __next__(self) -> dict[str, np.ndarray]:
        self._begin()
        parts, missing = [], self._batch_size
        while missing:
            if self._used == len(self._order):
                self._advance()
            chosen = self._order[self._used : self._used + missing]
            self._used += len(chosen)
            missing -= len(chosen)
            parts.append({name: rows[chosen] for name, rows in self._rows.items()})
            self._read_ahead(self._used)
        self.skipped, self._skipped = self._skipped, 0
        batch = _joined(parts)
        return {"weights": text_weights(batch["targets"]), **batch}

    def get_state(self) -> bytes:
        self._begin()
        place = {"block": self._block, "used": self._used, "skipped": self._skipped}
        header = json.dumps({**self._identity(), **place})
        buffer = io.BytesIO()
        arrays = {name: np.frombuffer(value, np.uint8) for name, value in self._start.items()}
        arrays["header"] = np.array(header)
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    def set_state(self, state: bytes) -> None:
        try:
            with np.load(io.BytesIO(state), allow_pickle=False) as saved:
                header = json.loads(str(saved["header"]))
                start = {name: saved[name].tobytes() for name in saved if name != "header"}
        except _DAMAGE as error:
            raise UserError(
                "The saved data position is damaged, or does not belong to data read by seqio\n"
                "Resume with the data with which the run was started"
            ) from error
        for key, now in self._identity().items():
            before = header.get(key)
            if before != now and key == content.KEY:
                raise UserError(
                    f"the text of {self._data.where} has changed since the checkpoint was saved "
                    f"(digest {(before or 'none')[:8]}, now {self._text[:8] or 'none'})\n"
                    "restore its files, or train in a new run directory"
                )
            if before != now:
                raise UserError(
                    f"The data position was saved with {key} {before}, but the run now has {now}\n"
                    "Training can only resume with the same data settings, vocabulary, seed and "
                    "number of processes"
                )
        self._restore_reader(start)
        self._began, self._next, self._next_rows, self._next_start = True, [], 0, start
        self._block = header["block"] - 1
        self._advance(self.on_rows)
        self._used = header["used"]
        self._read_ahead(self._used)
        # All other skipped documents that were read again have already been reported.
        self._skipped = header["skipped"]

    def _identity(self) -> dict[str, object]:
        data = self._data
        return {
            "tfds_name": data.title,
            "number of documents": self._documents,
            "vocabulary": os.path.basename(data.vocabulary),
            "vocabulary SHA-256": self._fingerprint,
            "preprocessing": PREPROCESSING,
            "documents in a group": preprocessors.DOCUMENTS_PER_GROUP,
            "construction": data.saved_construction,
            "shuffle_buffer": data.shuffle_buffer,
            "length": self._length,
            "seed": self._seed,
            "shard_index": self._shard_index,
            "shard_count": self._shard_count,
            **self._digests,
            content.KEY: self._text,  # the last, because it depends on the shard
        }

    def _open_reader(self, as_tuned: bool = False):
        groups = self._data.reader.groups(
            self._data, length=self._length, split="train", seed=self._seed, shard=self._shard
        )
        return iter(tuned(groups) if as_tuned else groups)

    def _begin(self) -> None:
        if not self._began:
            self._began = True
            self._advance(self.on_rows)

    def _advance(self, on_rows: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Make the next block the current block."""
        self._read_ahead(self._data.shuffle_buffer, on_rows)
        self._block += 1
        self._start = self._next_start
        self._rows = _joined(self._next)
        random = np.random.default_rng([self._seed, self._shard_index, self._block])
        self._order = random.permutation(len(self._rows["targets"]))
        self._used = 0
        self._next, self._next_rows = [], 0
        self._next_start = self._save_reader()

    def _read_ahead(
        self, rows: int, on_rows: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        """Read ahead until the next block has `rows` rows or is complete."""
        fruitless = 0
        while self._next_rows < min(rows, self._data.shuffle_buffer):
            with reading(self._data):
                group = next(self._reader, None)
            if group is None:
                raise UserError(
                    f"No document of {self._data.where} is left for shard {self._shard_index} of "
                    f"{self._shard_count}: use fewer processes"
                )
            skipped, short = int(group["skipped"]), int(group["short"])
            self._skipped += skipped
            fruitless = 0 if int(group["documents"]) > short else fruitless + skipped + short
            if self._documents and fruitless > 2 * self._documents_of_shard:
                raise UserError(nothing_to_read(self._data, "train", self._length, short))
            self._next.append({name: group[name].numpy() for name in self._data.features})
            self._next_rows += len(self._next[-1]["targets"])
            on_rows(min(rows, self._next_rows), rows)

    def _save_reader(self) -> dict[str, bytes]:
        with _folder_in_memory() as folder:
            try:
                tf.train.Checkpoint(reader=self._reader).write(f"{folder}/reader")
            except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError) as error:
                raise UserError(
                    f"The position in {self._data.where} cannot be saved, so a run could not "
                    "resume: Python code generates the text\nread files instead of a generator, or "
                    "cache the task with `seqio_cache_tasks` and set "
                    f"--gin.{type(self._data).__name__}.use_cached=True"
                ) from error
            files = {}
            for name in sorted(tf.io.gfile.listdir(folder)):
                with tf.io.gfile.GFile(f"{folder}/{name}", "rb") as file:
                    files[name] = file.read()
            return files

    def _restore_reader(self, files: dict[str, bytes]) -> None:
        self._reader = self._open_reader()
        if not files:  # the position is the beginning of the data
            return
        try:
            self._read_position(files)
        except tf.errors.NotFoundError as error:
            # An earlier version saved the position, or a file is missing.
            self._reader = self._open_reader(as_tuned=True)
            try:
                self._read_position(files)
            except tf.errors.NotFoundError:
                raise error from None

    def _read_position(self, files: dict[str, bytes]) -> None:
        with _folder_in_memory() as folder:
            for name, content in files.items():
                with tf.io.gfile.GFile(f"{folder}/{name}", "wb") as file:
                    file.write(content)
            checkpoint = tf.train.Checkpoint(reader=self._reader)
            checkpoint.read(f"{folder}/reader").assert_consumed()


@contextlib.contextmanager
def _folder_in_memory() -> Iterator[str]:
    """Yield a temporary folder in memory.

    TensorFlow can save a reader's position only to files, and a full disk must not interrupt
    reading.
    """
    folder = f"ram://fire_lm_reader_{uuid.uuid4().hex}"
    tf.io.gfile.makedirs(folder)
    try:
        yield folder
    finally:
        tf.io.gfile.rmtree(folder)


def _joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def scoring_text(data: TextBySeqio, *, length: int, num_sequences: int, split: str) -> ScoringText:
    """Return text to score; see `fire_lm.data.scoring_text`."""
    if data.parts != (data,):
        raise UserError(
            f"A mixture ({data.title}) cannot be scored as a whole\n"
            "Score each of its data sets separately"
        )
    data.reader.check(data, length=length, split=split)
    groups = data.reader.groups(data, length=length, split=split, seed=None, byte_counts=True)
    names = (*data.features, "byte_counts")
    kept: list[dict[str, np.ndarray]] = []
    counts = dict.fromkeys(COUNTERS, 0)
    rows = 0
    with reading(data):
        for group in groups.as_numpy_iterator():
            kept.append(cropped({name: group[name] for name in names}))
            counts = {name: count + int(group[name]) for name, count in counts.items()}
            rows += len(group["targets"])
            if rows >= num_sequences * SCORING_SPREAD:
                break
    if not rows:
        if counts["documents"] == counts["short"]:
            kind = NoText if counts["short"] else UserError
            raise kind(nothing_to_read(data, split, length, counts["short"]))
        raise NoText(
            f"The split {split!r} of {data.where} has less text than one "
            f"row of {length} tokens: choose a shorter length"
        )
    chosen = np.arange(min(rows, num_sequences)) * rows // min(rows, num_sequences)
    arrays = chosen_rows(kept, chosen, length)
    return ScoringText(
        **arrays,
        skipped=counts["skipped"],
        unknown=share_unknown(arrays["targets"], vocabularies.unknown_id(data.vocabulary)),
    )
