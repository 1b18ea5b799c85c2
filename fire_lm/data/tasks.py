"""The seqio task behind every read: TFDS text -> tokens -> rows, and the checks before it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

from etils import epath

from fire_lm.data import preprocessors, vocabularies
from fire_lm.data.quiet_tensorflow import seqio, tf, tfds, without_their_warnings
from fire_lm.data.text import CONSTRUCTIONS, TextData
from fire_lm.errors import RunFailed, UserError

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
    if data.construction not in CONSTRUCTIONS:
        raise UserError(
            f"TextData.construction is {data.construction!r}: "
            f"it must be one of {', '.join(CONSTRUCTIONS)}."
        )
    if data.shuffle_buffer < 1:
        raise UserError(f"TextData.shuffle_buffer is at least 1, not {data.shuffle_buffer}.")
    vocabularies.load(data.vocabulary)
    _check_mixture(data)
    return sum(_check_data_set(part, split) for part in data.parts)


def _check_mixture(data: TextData) -> None:
    for name, rate in data.mixture:
        if not (rate > 0 and math.isfinite(rate)):
            raise UserError(f"TextData.mixture: the rate of {name} is {rate}, not above 0.")
        if [other for other, _ in data.mixture].count(name) > 1:
            raise UserError(f"TextData.mixture names {name} twice: give it one rate.")


def _check_data_set(data: TextData, split: str) -> int:
    info = dataset_info(data)
    if split not in info.splits:
        raise UserError(
            f"{data.tfds_name} in {data.data_dir} has no split {split!r}, "
            f"only {', '.join(sorted(info.splits))}."
        )
    if "text" not in info.features:
        raise UserError(
            f"{data.tfds_name} in {data.data_dir} has no feature 'text', "
            f"only {', '.join(sorted(info.features))}."
        )
    return info.splits[split].num_examples


def splits(data: TextData) -> list[str]:
    """The splits of a data set, the training split first."""
    return sorted(dataset_info(data).splits, key=lambda split: (split != "train", split))


def data_sets(data_dir: str) -> list[str]:
    """TFDS names of what a data directory holds."""
    try:
        top = epath.Path(data_dir)
        found = [*top.glob("*/*/dataset_info.json"), *top.glob("*/*/*/dataset_info.json")]
    except (OSError, tf.errors.OpError):
        return []
    except KeyError as error:  # etils knows no such places
        raise UserError(f"{data_dir} is neither a local folder nor gs://") from error
    places = (path.parent.relative_to(top) for path in found)
    return sorted(f"{place.parent.as_posix()}:{place.name}" for place in places)


def only_data_set(data_dir: str, tfds_name: str | None) -> TextData:
    """The data set of that name, or without one the only one in the directory.

    Raises:
        UserError: there are several.
    """
    held = [tfds_name] if tfds_name else data_sets(data_dir)
    if len(held) > 1:
        raise UserError(f"{data_dir} holds {', '.join(held)}: say --tfds_name=NAME")
    return TextData(data_dir, held[0]) if held else TextData(data_dir)


def dataset_info(data: TextData) -> tfds.core.DatasetInfo:
    held = ", ".join(data_sets(data.data_dir))
    missing = f"No data set {data.tfds_name} in the directory {data.data_dir}\n" + (
        f"It holds {held}: say --tfds_name=NAME "
        "(pretrain and sweep: --gin.TextData.tfds_name=NAME)."
        if held
        else f"`fire-lm corpus --data_dir={data.data_dir}` writes the embedded text there."
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
    with _read_config(), without_their_warnings():
        construct = preprocessors.CONSTRUCTIONS[data.construction]
        if not data.mixture:
            task = _task(data, split, construct, byte_counts=byte_counts, rank=2)
            rows = task.get_dataset({"targets": length}, **_reading(split, seed, shard))
            return _with_options(rows)
        rows = _mixture(data, split, construct).get_dataset(
            {"targets": length},
            passthrough_features=preprocessors.COUNTERS,
            **_reading(split, seed, shard),
        )
        rows = rows.batch(preprocessors.DOCUMENTS_PER_GROUP).map(_with_sums)
    return _with_options(rows)


def documents(
    data: TextData, *, split: str, shard: seqio.ShardInfo | None = None
) -> tf.data.Dataset:
    """Groups of whole documents with their byte counts, once, in the order of a read to score."""
    with _read_config(), without_their_warnings():
        task = _task(data, split, byte_counts=True, rank=1)
        return _with_options(task.get_dataset({"targets": None}, **_reading(split, None, shard)))


def document_groups(data: TextData, split: str) -> Iterator[tuple[list[bytes], int]]:
    """The texts of a split in the order of its files, some at a time, with the number of those
    left out, which training skips too.

    Raises:
        UserError: as `check`. RunFailed: a damaged file.
    """
    _check_data_set(data, split)
    source = seqio.TfdsDataSource(
        data.tfds_name, tfds_data_dir=data.data_dir, splits=[split], read_only=True
    )
    with _read_config(), without_their_warnings():
        texts = source.get_dataset(split, shuffle=False).map(lambda example: example["text"])
    readable = texts.batch(preprocessors.DOCUMENTS_PER_GROUP).map(
        lambda text: (text, preprocessors.is_text(text))
    )
    try:
        for group, fit in readable.as_numpy_iterator():
            yield group[fit].tolist(), int((~fit).sum())
    except tf.errors.OpError as error:
        raise unreadable(data, error) from error


def unreadable(data: TextData, error: tf.errors.OpError) -> RunFailed:
    return RunFailed(
        f"Reading {data.title} in {data.data_dir} failed: {error.message.splitlines()[0]}"
    )


def _task(
    data: TextData,
    split: str,
    *construct: Preprocessor,
    byte_counts: bool,
    rank: int,
    in_mixture: str = "",
) -> seqio.Task:
    """Of groups (rank 2; whole documents, rank 1) or, in a mixture, where names must differ, rows.

    Not registered: two data directories in one process never collide.
    """
    vocabulary = vocabularies.load(data.vocabulary)
    return seqio.Task(
        f"fire_lm_text{in_mixture}",
        source=seqio.TfdsDataSource(
            data.tfds_name, tfds_data_dir=data.data_dir, splits=[split], read_only=True
        ),
        preprocessors=[preprocessors.Tokenize(vocabulary, byte_counts), *construct],
        output_features=dict.fromkeys(
            data.features if construct else ("targets",), seqio.Feature(vocabulary, rank=rank)
        ),
        shuffle_buffer_size=1,  # rows are shuffled in pipeline.py, whose state stays small
    )


def _mixture(data: TextData, split: str, construct: Preprocessor) -> seqio.Mixture:
    """Rows of the data sets at their rates; drawn by the seed, for as long as one is endless."""
    return seqio.Mixture(
        "fire_lm_mixture",
        [
            (
                _task(
                    part,
                    split,
                    construct,
                    preprocessors.single_rows,
                    byte_counts=False,
                    rank=1,
                    in_mixture=f"_{number}",
                ),
                float(rate),
            )
            for number, (part, (_, rate)) in enumerate(zip(data.parts, data.mixture, strict=True))
        ],
    )


def _with_sums(group: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return group | {key: tf.reduce_sum(group[key]) for key in preprocessors.COUNTERS}


def _reading(split: str, seed: int | None, shard: seqio.ShardInfo | None) -> dict[str, Any]:
    return {
        "split": split,
        "shuffle": seed is not None,
        "seed": seed,
        "shard_info": shard,
        "num_epochs": 1 if seed is None else None,
        "trim_output_features": False,
        "try_in_mem_cache": False,  # a cache would make the saved position large
    }


def _with_options(groups: tf.data.Dataset) -> tf.data.Dataset:
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
