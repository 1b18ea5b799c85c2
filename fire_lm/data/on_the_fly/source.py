"""A seqio data source for TFDS data sets that raises an error if documents are missing."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fire_lm.data.quiet_tensorflow import seqio, tf, tfds, without_their_warnings
from fire_lm.data.spec import DataSet
from fire_lm.errors import RunFailed, reason

if TYPE_CHECKING:
    from fire_lm.data.kinds.by_seqio import BySeqio

T = TypeVar("T")
# The number of files that are read concurrently. The number is small, so that the order of the
# files, which depends on the seed, determines which documents a short run sees. Within a file, most
# data sets already have their documents in hash order.
_FILES_AT_ONCE = 4
_READABLE = ("gs", "s3", "")  # the schemes of paths
# Matches the operation name that TensorFlow adds to messages, which does not explain the error.
_OPERATION = re.compile(r"\{\{.*?\}\} ?| ?\[Op:.*")


class Source(seqio.TfdsDataSource):
    """A data source that raises an error if files contain fewer documents than the metadata states.

    TFRecord's checksums do not detect a file that was emptied or truncated between two records, and
    TFDS counts the documents only if a single host reads all files.
    """

    def __init__(self, data: DataSet, *splits: str):
        super().__init__(
            data.tfds_name, tfds_data_dir=data.data_dir, splits=list(splits), read_only=True
        )

    def get_dataset(
        self,
        split: str | None = None,
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused: Any,
    ) -> tf.data.Dataset:
        with without_their_warnings():
            dataset = self.tfds_dataset.builder.as_dataset(
                split=split, shuffle_files=shuffle, read_config=_read_config(seed, shard_info)
            )
        if shard_info is None:
            return dataset
        documents = sum(of_shard(self.documents_by_file(split), shard_info))
        return dataset.apply(tf.data.experimental.assert_cardinality(documents))

    def documents_by_file(self, split: str | None) -> list[int]:
        return [file.take for file in self.tfds_dataset.files(split)]


def documents_of(data: DataSet, split: str, shard: seqio.ShardInfo | None) -> int:
    """Return the maximum number of documents that one shard reads in an epoch."""
    with without_their_warnings():
        files = Source(data, split).documents_by_file(split)
    if shard is not None and len(files) < shard.num_shards:
        return -(-sum(files) // shard.num_shards)
    return sum(of_shard(files, shard))


def of_shard(files: Sequence[T], shard: seqio.ShardInfo | None) -> Sequence[T]:
    """Return the values of the files from which a shard reads.

    If there are fewer files than shards, seqio divides the documents instead of the files.
    """
    if shard is None or len(files) < shard.num_shards:
        return files
    return files[shard.index :: shard.num_shards]


def _read_config(seed: int | None, shard_info: seqio.ShardInfo | None) -> tfds.ReadConfig:
    """Return the ReadConfig, which TfdsDataSource itself accepts only as a global setting."""
    shard = None
    if shard_info is not None:
        shard = tf.distribute.InputContext(
            num_input_pipelines=shard_info.num_shards, input_pipeline_id=shard_info.index
        )
    return tfds.ReadConfig(
        input_context=shard,
        shuffle_seed=seed,
        skip_prefetch=True,
        try_autocache=False,
        interleave_cycle_length=_FILES_AT_ONCE,
        interleave_block_length=1,
        enable_ordering_guard=False,  # data sets that are marked as ordered are shuffled too
        # With parallel interleaving, a restored iterator sometimes hangs in its destructor
        # (TensorFlow 2.21). Sequential reading is fast enough, because decoding runs in parallel.
        num_parallel_calls_for_interleave_files=None,
    )


def files_of(source: seqio.DataSource, split: str) -> list[str]:
    """Return the files of a split; Python functions that generate text have none."""
    if not isinstance(source, seqio.TfdsDataSource | seqio.FileDataSource):
        return []
    files = [str(file) for file in source.list_shards(split)]
    return [file for file in files if file.rpartition("://")[0] in _READABLE]


def nothing_to_read(data: BySeqio, split: str, length: int, short: int) -> str:
    """Return the message for a split without a row of `length` tokens.

    `short` is the number of documents that are too short for a row.
    """
    where = f"the split {split!r} of {data.where}"
    if short:
        return (
            f"No document in {where} has at least {length:,} tokens, the length of a row\n"
            "Choose a shorter length, or a construction other than 'long_documents'"
        )
    return f"No readable text in {where}: every document is empty, huge or not UTF-8"


@contextlib.contextmanager
def reading(data: BySeqio | DataSet) -> Iterator[None]:
    """Convert TensorFlow's errors within the block to RunFailed."""
    try:
        yield
    except tf.errors.OpError as error:
        why = _OPERATION.sub("", reason(error))
        raise RunFailed(f"Reading {data.where} failed: {why}") from error


def with_options(groups: tf.data.Dataset, symbolic: bool = True) -> tf.data.Dataset:
    """Make a data set deterministic and choose how its iterators save their position.

    If `symbolic`, they save the small state from which their buffered elements can be produced
    again, instead of the elements themselves.
    """
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_symbolic_checkpoint = symbolic
    options.autotune.ram_budget = 2**29  # bytes; limits the amount of prefetched data
    # The thread that tunes a pipeline sleeps for twice as long as before each time, up to a minute,
    # and whoever deletes an iterator waits for it.
    options.autotune.enabled = False
    with without_their_warnings():  # TensorFlow reports every option that changes
        return groups.with_options(options)


def tuned(groups: tf.data.Dataset) -> tf.data.Dataset:
    """Return a data set whose iterators read positions that earlier versions saved.

    Tuning adds and replaces steps of a pipeline, whose names are part of a position.
    """
    options = tf.data.Options()
    options.autotune.enabled = True
    with without_their_warnings():
        return groups.with_options(options)
