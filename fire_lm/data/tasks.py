"""The seqio task behind every read: TFDS text -> tokens -> rows, and the checks before it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from fire_lm.data import preprocessors, vocabularies
from fire_lm.data.quiet_tensorflow import seqio, tf, tfds, without_their_warnings
from fire_lm.data.text import TextData
from fire_lm.errors import UserError

Preprocessor = Callable[..., tf.data.Dataset]

# Files read at once. Few, so that the seed's order of the files decides which documents a short
# run sees; documents within a file are in hash order already.
_FILES_AT_ONCE = 4


def check(data: TextData, *, length: int, split: str) -> int:
    """Checks that the text can be read.

    Returns:
        Documents in the split; 0 if the data set does not say.

    Raises:
        UserError: with what is wrong and how to mend it.
    """
    if length < 2:
        raise UserError(f"A row has at least 2 tokens; the length asked for is {length}.")
    if data.construction not in preprocessors.CONSTRUCTIONS:
        raise UserError(f"TextData.construction is 'concat' or 'cut', not {data.construction!r}.")
    if data.shuffle_buffer < 1:
        raise UserError(f"TextData.shuffle_buffer is at least 1, not {data.shuffle_buffer}.")
    vocabularies.load(data.vocabulary)
    info = dataset_info(data)
    if split not in info.splits:
        raise UserError(
            f"{data.tfds_name} in {data.data_dir} has no split {split!r}, "
            f"only {', '.join(sorted(info.splits))}."
        )
    if "text" not in info.features:
        raise UserError(f"{data.tfds_name} in {data.data_dir} has no feature 'text'.")
    return info.splits[split].num_examples


def dataset_info(data: TextData) -> tfds.core.DatasetInfo:
    missing = (
        f"No data set {data.tfds_name} in the directory {data.data_dir}\n"
        f"`fire-lm corpus --data_dir={data.data_dir}` writes the embedded text there."
    )
    try:
        with without_their_warnings():
            info = tfds.builder(data.tfds_name, data_dir=data.data_dir).info
    except tfds.core.registered.DatasetNotFoundError as error:
        raise UserError(missing) from error
    except (ValueError, KeyError, AssertionError, tf.errors.OpError, OSError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise UserError(f"{missing}\n({first_line})") from error
    if not info.splits:
        raise UserError(missing)
    return info


def dataset(
    data: TextData,
    *,
    length: int,
    split: str,
    seed: int | None,
    shard: seqio.ShardInfo | None = None,
    byte_counts: bool = False,
) -> tf.data.Dataset:
    """Groups of rows (see preprocessors). With a seed: files shuffled, endless. Without: once."""
    construct = preprocessors.CONSTRUCTIONS[data.construction]
    task = _task(data, split, construct, byte_counts=byte_counts, rank=2)
    return _read(task, split=split, length=length, seed=seed, shard=shard)


def documents(
    data: TextData, *, split: str, shard: seqio.ShardInfo | None = None
) -> tf.data.Dataset:
    """Groups of whole documents with their byte counts, once, in the order of a read to score."""
    task = _task(data, split, byte_counts=True, rank=1)
    return _read(task, split=split, length=None, seed=None, shard=shard)


def _task(
    data: TextData, split: str, *construct: Preprocessor, byte_counts: bool, rank: int
) -> seqio.Task:
    vocabulary = vocabularies.load(data.vocabulary)
    return seqio.Task(  # not registered: two data directories in one process never collide
        "fire_lm_text",
        source=seqio.TfdsDataSource(
            data.tfds_name, tfds_data_dir=data.data_dir, splits=[split], read_only=True
        ),
        preprocessors=[preprocessors.Tokenize(vocabulary, byte_counts), *construct],
        output_features={"targets": seqio.Feature(vocabulary, rank=rank)},
        shuffle_buffer_size=1,  # rows are shuffled in pipeline.py, whose state stays small
    )


def _read(
    task: seqio.Task,
    *,
    split: str,
    length: int | None,
    seed: int | None,
    shard: seqio.ShardInfo | None,
) -> tf.data.Dataset:
    with _read_config(), without_their_warnings():
        groups = task.get_dataset(
            {"targets": length},
            split=split,
            shuffle=seed is not None,
            seed=seed,
            shard_info=shard,
            num_epochs=1 if seed is None else None,
            trim_output_features=False,
            try_in_mem_cache=False,  # a cache would make the saved position large
        )
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_symbolic_checkpoint = True
    options.autotune.ram_budget = 2**29  # bytes; bounds what is read ahead
    return groups.with_options(options)


@contextlib.contextmanager
def _read_config() -> Iterator[None]:
    """TfdsDataSource takes no ReadConfig, only a global override."""
    before = seqio.utils._TFDS_DATA_READ_CONFIG_OVERRIDE
    config = tfds.ReadConfig(
        try_autocache=False,
        interleave_cycle_length=_FILES_AT_ONCE,
        interleave_block_length=1,
        # In parallel, an iterator that was restored hangs in its destructor every few times
        # (TensorFlow 2.21). One file after the other is fast enough: decoding runs in parallel.
        num_parallel_calls_for_interleave_files=None,
    )
    seqio.set_tfds_read_config_override(config)
    try:
        yield
    finally:
        seqio.set_tfds_read_config_override(before)
