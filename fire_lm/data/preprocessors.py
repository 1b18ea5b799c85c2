"""Documents to rows of tokens: seqio preprocessors over groups of documents.

seqio ships none for language modelling on a stream (they are in package `t5`). Groups rather than
single documents keep the cost per document small. A group is a dict:
    targets      int32, first [tokens] (every document with its end-of-document), later
                 [rows, length], padded with 0
    byte_counts  like targets; only for scoring
    lengths      int32 [documents], tokens in each document; gone once there are rows
    skipped      int32, empty or undecodable documents in this group
    documents    int32, the others
"""

from __future__ import annotations

from collections.abc import Mapping

from fire_lm.data import vocabularies
from fire_lm.data.quiet_tensorflow import seqio, tf

DOCUMENTS_PER_GROUP = 16

_PER_TOKEN = ("targets", "byte_counts")


class Tokenize:
    """[text] -> groups of tokens; skips and counts documents that are empty or not UTF-8."""

    def __init__(self, vocabulary: seqio.Vocabulary, byte_counts: bool):
        self._vocabulary = vocabulary
        self._byte_counts = byte_counts

    def __call__(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        dataset = dataset.map(lambda example: example["text"])
        dataset = dataset.batch(DOCUMENTS_PER_GROUP)
        return dataset.map(self._group, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def _group(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        found = tf.size(text)
        text = tf.boolean_mask(text, _is_text(text))
        group: dict[str, tf.RaggedTensor] = {}
        if self._byte_counts:
            tokenize = vocabularies.tokenizer_with_byte_counts(self._vocabulary)
            group["targets"], group["byte_counts"] = tokenize(text)
        else:
            group["targets"] = vocabularies.tokenizer(self._vocabulary)(text)
        # SentencePiece may leave nothing of a document, for instance of exotic white space.
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
            "skipped": found - documents,
            "documents": documents,
        }


def _is_text(text: tf.Tensor) -> tf.Tensor:
    """bool [documents]: valid UTF-8 (Python's strict rule; tested) and not blank."""
    repaired = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
    return tf.logical_and(repaired == text, tf.strings.strip(text) != "")


def concat(dataset: tf.data.Dataset, sequence_length: Mapping[str, int]) -> tf.data.Dataset:
    """Chops the stream of documents into full rows; what is left waits for the next group.

    Only the tail shorter than one row is lost, at the end of a finite read.
    """
    length = sequence_length["targets"]
    keys = [key for key in _PER_TOKEN if key in dataset.element_spec]

    def step(tail, group):
        stream = {key: tf.concat([tail[key], group[key]], axis=0) for key in keys}
        full = tf.size(stream["targets"]) // length * length
        rows = {key: tf.reshape(stream[key][:full], [-1, length]) for key in keys}
        tail = {key: stream[key][full:] for key in keys}
        return tail, {**rows, "skipped": group["skipped"], "documents": group["documents"]}

    return dataset.scan({key: tf.zeros([0], tf.int32) for key in keys}, step)


def cut(dataset: tf.data.Dataset, sequence_length: Mapping[str, int]) -> tf.data.Dataset:
    """Splits each document into rows of its own, the last one padded with 0; loses nothing."""
    length = sequence_length["targets"]
    keys = [key for key in _PER_TOKEN if key in dataset.element_spec]

    def split(group):
        rows_per_document = (group["lengths"] + length - 1) // length
        last_rows = tf.cumsum(rows_per_document) - 1
        tokens = tf.fill([tf.reduce_sum(rows_per_document)], length)
        tokens = tf.tensor_scatter_nd_update(
            tokens,
            tf.expand_dims(last_rows, 1),
            group["lengths"] - (rows_per_document - 1) * length,
        )
        rows = {
            key: tf.RaggedTensor.from_row_lengths(group[key], tokens).to_tensor(
                shape=[None, length]
            )
            for key in keys
        }
        return {**rows, "skipped": group["skipped"], "documents": group["documents"]}

    return dataset.map(split, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


CONSTRUCTIONS = {"concat": concat, "cut": cut}
