"""A baseline for reading speed: the shortest seqio pipeline that yields the same kind of batches.

`fire-lm bench data` compares fire_lm's pipeline with this one. The baseline applies seqio's own
steps to one document at a time, joins and splits the tokens, and shuffles the rows with tf.data. It
does not detect undecodable documents, counts nothing, and cannot save its position compactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from fire_lm.data import vocabularies
from fire_lm.data.quiet_tensorflow import seqio, tf, without_their_warnings

if TYPE_CHECKING:
    from fire_lm.data.kinds import TextData

_DOCUMENTS_JOINED = 16


def plain_batches(data: TextData, *, length: int, batch_size: int, seed: int) -> Iterator[dict]:
    """Yield batches {"targets": int32 [batch_size, length]} of the train split endlessly.

    This function reads the whole split on a single host.
    """
    vocabulary = vocabularies.load(data.vocabulary)
    feature = seqio.Feature(vocabulary, add_eos=True)
    task = seqio.Task(
        "plain",
        source=seqio.TfdsDataSource(data.tfds_name, tfds_data_dir=data.data_dir, splits=["train"]),
        preprocessors=[
            _targets,
            seqio.preprocessors.tokenize,
            seqio.preprocessors.append_eos,
            _join,
        ],
        output_features={"targets": feature},
        shuffle_buffer_size=data.shuffle_buffer,
    )
    with without_their_warnings():
        rows = task.get_dataset(
            {"targets": length}, shuffle=True, seed=seed, num_epochs=None, try_in_mem_cache=False
        )
    batches = rows.batch(batch_size, drop_remainder=True).prefetch(2)
    untuned = tf.data.Options()
    untuned.autotune.enabled = False  # as in `source.with_options`
    batches = batches.with_options(untuned)
    for batch in batches.as_numpy_iterator():
        yield {"targets": np.asarray(batch["targets"])}


def _targets(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.map(
        lambda example: {"targets": example["text"]}, num_parallel_calls=tf.data.AUTOTUNE
    )


def _join(dataset: tf.data.Dataset, sequence_length: Mapping[str, int]) -> tf.data.Dataset:
    """Join groups of documents, split each group into rows, and drop its tail as T5 does."""
    length = sequence_length["targets"]

    def rows(tokens: tf.RaggedTensor) -> tf.Tensor:
        stream = tokens.flat_values
        return tf.reshape(stream[: tf.size(stream) // length * length], [-1, length])

    joined = dataset.map(lambda example: example["targets"]).ragged_batch(_DOCUMENTS_JOINED)
    chopped = joined.map(rows, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
    return chopped.map(lambda row: {"targets": row})
