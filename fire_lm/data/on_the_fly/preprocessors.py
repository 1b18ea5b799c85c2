"""Seqio preprocessors that turn groups of documents into rows of tokens.

seqio includes no preprocessors for language modelling on a stream of text; such preprocessors are
in the package `t5`. Processing groups instead of single documents reduces the cost per document. A
group is a dict:
    targets      int32; at first [tokens], where each document includes its end-of-document token;
                 later [rows, length], padded with 0
    byte_counts  of the same shape as targets; present only for scoring
    segment_ids  int32 [rows, length]: 1, 2, 3, ... in each row, 0 for padding; present only if
                 packed
    lengths      int32 [documents], the number of tokens in each document; absent once there are
                 rows
    skipped      int32, the number of empty, undecodable or huge documents in the group
    documents    int32, the number of other documents
    short        int32, the number of `documents` that the construction omits by definition

The constructions are TensorFlow operations, although `data.rows` has them in NumPy for blocks: an
iterator that calls Python has no state that can be saved unless it is saved symbolically, which
crashes with the file sources of registered tasks (`registered.groups`). A resume must be exact.
"""

from __future__ import annotations

from collections.abc import Mapping

from fire_lm.data import vocabularies
from fire_lm.data.quiet_tensorflow import seqio, tf
from fire_lm.data.spec import LONGEST_DOCUMENT

DOCUMENTS_PER_GROUP = 16

COUNTERS = ("skipped", "documents", "short")
_PER_TOKEN = ("targets", "byte_counts")


class Tokenize:
    """A preprocessor that turns texts into groups of tokens.

    Documents that are empty, huge or not UTF-8 are skipped and counted.
    """

    def __init__(self, vocabulary: seqio.Vocabulary, byte_counts: bool):
        self._vocabulary = vocabulary
        self._byte_counts = byte_counts

    def __call__(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        dataset = dataset.map(lambda example: example["text"])
        dataset = dataset.batch(DOCUMENTS_PER_GROUP)
        return dataset.map(self._group, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def _group(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        documents_read = tf.size(text)
        text = tf.boolean_mask(text, is_text(text))
        group: dict[str, tf.RaggedTensor] = {}
        if self._byte_counts:
            tokenize = vocabularies.tokenizer_with_byte_counts(self._vocabulary)
            group["targets"], group["byte_counts"] = tokenize(text)
        else:
            group["targets"] = vocabularies.tokenizer(self._vocabulary)(text)
        # SentencePiece may return no tokens for a document, for example for unusual white space.
        kept = group["targets"].row_lengths() > 0
        group = {key: tf.ragged.boolean_mask(value, kept) for key, value in group.items()}
        documents = group["targets"].nrows(out_type=tf.int32)
        ends = {"targets": self._vocabulary.eos_id, "byte_counts": 0}
        group = {
            key: tf.concat([value, tf.fill([documents, 1], ends[key])], axis=1)
            for key, value in group.items()
        }
        return {
            **{key: value.flat_values for key, value in group.items()},
            "lengths": tf.cast(group["targets"].row_lengths(), tf.int32),
            "skipped": documents_read - documents,
            "documents": documents,
            "short": tf.constant(0),
        }


def is_text(text: tf.Tensor) -> tf.Tensor:
    """Return whether each document is valid UTF-8, not blank and not huge, as bool [documents].

    A test verifies that a document counts as valid UTF-8 if and only if Python's strict decoder
    accepts it.
    """
    fits = tf.strings.length(text) <= LONGEST_DOCUMENT
    text = tf.where(fits, text, "")
    repaired = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
    return tf.logical_and(repaired == text, tf.strings.strip(text) != "")


def concat(dataset: tf.data.Dataset, sequence_length: Mapping[str, int]) -> tf.data.Dataset:
    """Split the stream of documents into full rows and carry the remainder over to the next group.

    At the end of a finite read, a tail shorter than one row is dropped. No other token is lost.
    """
    length = sequence_length["targets"]
    keys = _per_token(dataset)

    def step(tail, group):
        stream = {key: tf.concat([tail[key], group[key]], axis=0) for key in keys}
        full = tf.size(stream["targets"]) // length * length
        rows = {key: tf.reshape(stream[key][:full], [-1, length]) for key in keys}
        tail = {key: stream[key][full:] for key in keys}
        return tail, {**rows, **_counters(group)}

    return dataset.scan({key: tf.zeros([0], tf.int32) for key in keys}, step)


def cut(dataset: tf.data.Dataset, sequence_length: Mapping[str, int]) -> tf.data.Dataset:
    """Split each document into its own rows and pad the last row with 0; no token is lost."""
    length = sequence_length["targets"]
    keys = _per_token(dataset)

    def split(group):
        parts = _parts(group["lengths"], length)
        rows = {key: _padded(group[key], parts, length) for key in keys}
        return {**rows, **_counters(group)}

    return dataset.map(split, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def packed(dataset: tf.data.Dataset, sequence_length: Mapping[str, int]) -> tf.data.Dataset:
    """Split documents into parts as `cut` does, and pack the parts into rows; no token is lost.

    The packing is next-fit: a part is appended to the open row if it fits. Otherwise, the open row
    is padded and closed, and the part begins a new row. `segment_ids` distinguishes the parts of a
    row.
    """
    length = sequence_length["targets"]
    keys = _per_token(dataset)
    nothing = {key: tf.zeros([0], tf.int32) for key in (*keys, "lengths")}
    # An additional, empty group closes the row that is open at the end of a finite read.
    end = {**nothing, **{key: tf.constant(0) for key in COUNTERS}, "last": tf.constant(True)}
    groups = dataset.map(lambda group: {**group, "last": tf.constant(False)})

    def step(open_row, group):
        stream = {key: tf.concat([open_row[key], group[key]], axis=0) for key in keys}
        new = _parts(group["lengths"], length)
        parts = tf.concat([open_row["lengths"], new], axis=0)
        filled = tf.scan(  # the number of tokens in each part's row up to the end of the part
            lambda filled, part: tf.where(filled + part > length, part, filled + part),
            parts,
            initializer=0,
        )
        row = tf.cumsum(tf.cast(filled == parts, tf.int32)) - 1  # equality marks the start of a row
        # Except at the end, the last row stays open, and its parts are carried over to the next
        # group.
        closed = tf.where(
            group["last"], tf.size(parts), tf.reduce_sum(tf.cast(row < row[-1:], tf.int32))
        )
        tokens = tf.reduce_sum(parts[:closed])
        rows_of_parts = tf.RaggedTensor.from_value_rowids(parts[:closed], row[:closed])
        in_row = tf.ragged.range(rows_of_parts.row_lengths()).flat_values
        segments = tf.repeat(tf.cast(in_row, tf.int32) + 1, parts[:closed])
        filled_rows = tf.reduce_sum(rows_of_parts, axis=1)
        rows = {key: _padded(stream[key][:tokens], filled_rows, length) for key in keys}
        rows["segment_ids"] = _padded(segments, filled_rows, length)
        open_row = {key: stream[key][tokens:] for key in keys} | {"lengths": parts[closed:]}
        return open_row, {**rows, **_counters(group)}

    return groups.concatenate(tf.data.Dataset.from_tensors(end)).scan(nothing, step)


def long_documents(dataset: tf.data.Dataset, sequence_length: Mapping[str, int]) -> tf.data.Dataset:
    """Take the first `length` tokens of each document that has at least `length` tokens.

    Shorter documents are omitted and counted.
    """
    length = sequence_length["targets"]
    keys = _per_token(dataset)

    def select(group):
        long = group["lengths"] >= length
        rows = {
            key: tf.ragged.boolean_mask(
                tf.RaggedTensor.from_row_lengths(group[key], group["lengths"]), long
            )[:, :length].to_tensor(shape=[None, length])
            for key in keys
        }
        short = tf.reduce_sum(tf.cast(~long, tf.int32))
        return {**rows, **_counters(group), "short": short}

    return dataset.map(select, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def single_rows(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Split groups into single rows, so that a mixture draws rows and not groups.

    A group's counts are attached to its first row or, if the group has no rows, to the next row.
    """
    counts = {key: tf.constant(0) for key in COUNTERS}

    def step(pending, group):
        total = {key: pending[key] + group[key] for key in COUNTERS}
        rows = tf.shape(group["targets"])[0]
        first = tf.one_hot(0, rows, dtype=tf.int32)  # empty if there is no row
        kept = tf.cast(rows == 0, tf.int32)
        with_rows = {key: value for key, value in group.items() if key not in COUNTERS}
        return (
            {key: kept * total[key] for key in COUNTERS},
            {**with_rows, **{key: first * total[key] for key in COUNTERS}},
        )

    return dataset.scan(counts, step).unbatch()


def _per_token(dataset: tf.data.Dataset) -> list[str]:
    return [key for key in _PER_TOKEN if key in dataset.element_spec]


def _counters(group: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {key: group[key] for key in COUNTERS}


def _parts(lengths: tf.Tensor, length: int) -> tf.Tensor:
    """Return the sizes of the parts, of at most `length` tokens, into which documents are split."""
    count = (lengths + length - 1) // length
    parts = tf.fill([tf.reduce_sum(count)], length)
    last = tf.expand_dims(tf.cumsum(count) - 1, 1)
    return tf.tensor_scatter_nd_update(parts, last, lengths - (count - 1) * length)


def _padded(values: tf.Tensor, row_lengths: tf.Tensor, length: int) -> tf.Tensor:
    """Split `values` into consecutive rows of `row_lengths` tokens and pad to `[rows, length]`."""
    return tf.RaggedTensor.from_row_lengths(values, row_lengths).to_tensor(shape=[None, length])


CONSTRUCT = {"concat": concat, "cut": cut, "packed": packed, "long_documents": long_documents}
