"""The seqio task that turns TFDS text into tokens and rows, and the checks that precede it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fire_lm.data import vocabularies
from fire_lm.data.on_the_fly import preprocessors, source
from fire_lm.data.on_the_fly.metadata import check_data_set, splits
from fire_lm.data.on_the_fly.source import Source, nothing_to_read, with_options
from fire_lm.data.quiet_tensorflow import seqio, tf, without_their_warnings
from fire_lm.data.rows import check_arrangement
from fire_lm.errors import UserError

if TYPE_CHECKING:
    from fire_lm.data.kinds import TextData
    from fire_lm.data.kinds.by_seqio import BySeqio

Preprocessor = Callable[..., tf.data.Dataset]


def check(data: TextData, *, length: int, split: str) -> int:
    """See `Reader.check`; the number of documents is summed over the parts of a mixture."""
    check_arrangement(data, length)
    vocabularies.load(data.vocabulary)
    return sum(check_data_set(part, split) for part in data.parts)


def check_rows(data: TextData, *, length: int, shard: seqio.ShardInfo | None) -> None:
    """See `Reader.check_rows`; without a mixture, reading itself notices that there is no row."""
    index, count = (shard.index, shard.num_shards) if shard else (0, 1)
    for part in data.parts if data.mixture else ():
        if not has_row(part, length, shard):
            raise UserError(
                f"shard {index} of {count} of {part.where} contains too little text for one row of "
                f"{length} tokens: remove this data set from the mixture"
            )


def documents_of(data: TextData, shard: seqio.ShardInfo | None, documents: int) -> int:
    """See `Reader.documents_of`."""
    return sum(source.documents_of(part, "train", shard) for part in data.parts)


def files(data: TextData, split: str) -> list[list[str]]:
    """See `Reader.files`."""
    return [source.files_of(Source(part, split), split) for part in data.parts]


def has_row(data: BySeqio, length: int, shard: seqio.ShardInfo | None) -> bool:
    """Return whether one epoch of a shard yields a row; reading stops at the first one.

    Raises:
      UserError: No number of epochs yields a row, because no document can be part of one.
      RunFailed: A file is damaged.
    """
    counts = dict.fromkeys(preprocessors.COUNTERS, 0)
    with source.reading(data):
        read = data.reader.groups(data, length=length, split="train", seed=None, shard=shard)
        for group in read.as_numpy_iterator():
            counts = {name: count + int(group[name]) for name, count in counts.items()}
            if len(group["targets"]):
                return True
    if counts["documents"] == counts["short"]:
        raise UserError(nothing_to_read(data, "train", length, counts["short"]))
    return False


def groups(
    data: TextData,
    *,
    length: int,
    split: str,
    seed: int | None,
    shard: seqio.ShardInfo | None = None,
    byte_counts: bool = False,
) -> tf.data.Dataset:
    """Return groups of rows; see `Reader.groups`."""
    with without_their_warnings():
        construct = preprocessors.CONSTRUCT[data.construction]
        if not data.mixture:
            task = _task(data, split, construct, byte_counts=byte_counts, rank=2)
            rows = task.get_dataset({"targets": length}, **reading(split, seed, shard))
            return with_options(rows)
        rows = _mixture(data, split, construct).get_dataset(
            {"targets": length},
            passthrough_features=preprocessors.COUNTERS,
            **reading(split, seed, shard),
        )
        rows = rows.batch(preprocessors.DOCUMENTS_PER_GROUP).map(
            lambda group: group | {key: tf.reduce_sum(group[key]) for key in preprocessors.COUNTERS}
        )
    return with_options(rows)


def documents(
    data: TextData, *, split: str, shard: seqio.ShardInfo | None = None
) -> tf.data.Dataset:
    """Return groups of whole documents with byte counts.

    Each document is read once, in the order that is used for scoring.
    """
    with without_their_warnings():
        task = _task(data, split, byte_counts=True, rank=1)
        return with_options(task.get_dataset({"targets": None}, **reading(split, None, shard)))


def document_groups(
    data: TextData, split: str, features: tuple[str, ...] = ("text",)
) -> Iterator[tuple[list[bytes], int]]:
    """Yield groups of a split's texts in file order, each with the number of skipped documents.

    Training also skips these documents. Each of an example's `features` counts as a document.

    Raises:
      UserError: See `check`.
      RunFailed: A file is damaged.
    """
    check_data_set(data, split, features)
    with without_their_warnings():
        texts = (
            Source(data, split)
            .get_dataset(split, shuffle=False)
            .map(lambda example: tf.stack([example[name] for name in features]))
        )

    def with_fitness(texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        flat = tf.reshape(texts, [-1])
        return flat, preprocessors.is_text(flat)

    grouped = texts.batch(preprocessors.DOCUMENTS_PER_GROUP).map(with_fitness)
    readable = with_options(grouped, symbolic=False)
    with source.reading(data):
        for group, fit in readable.as_numpy_iterator():
            yield group[fit].tolist(), int((~fit).sum())


def _task(
    data: TextData,
    split: str,
    *construct: Preprocessor,
    byte_counts: bool,
    rank: int,
    in_mixture: str = "",
) -> seqio.Task:
    """Return a seqio task whose examples are groups of rows, groups of documents, or single rows.

    The rank is 2 for groups of rows, and 1 for groups of whole documents and for the single rows of
    a mixture. The task is not registered, so tasks for two data directories never collide.
    """
    vocabulary = vocabularies.load(data.vocabulary)
    return seqio.Task(
        f"fire_lm_text{in_mixture}",
        source=Source(data, split),
        preprocessors=[preprocessors.Tokenize(vocabulary, byte_counts), *construct],
        output_features=dict.fromkeys(
            data.features if construct else ("targets",), seqio.Feature(vocabulary, rank=rank)
        ),
        shuffle_buffer_size=1,  # pipeline.py shuffles the rows, with a small state
    )


def _mixture(data: TextData, split: str, construct: Preprocessor) -> seqio.Mixture:
    """Return a mixture that draws rows at random from the data sets, at the configured rates."""
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


def reading(split: str, seed: int | None, shard: seqio.ShardInfo | None = None) -> dict[str, Any]:
    """Return the arguments with which seqio reads a split; see `Reader.groups`."""
    return {
        "split": split,
        "shuffle": seed is not None,
        "seed": seed,
        "shard_info": shard,
        "num_epochs": 1 if seed is None else None,
        "trim_output_features": False,
        "try_in_mem_cache": False,  # a cache would make the saved position large
    }


def register(name: str, data: TextData) -> seqio.Task:
    """Register `data` as the seqio task fire_lm:NAME.

    The name contains a colon because task names in seqio cannot contain a slash. Each example is a
    document with its end-of-document token. Other code can read the task by name, add it to
    mixtures, or cache it.

    Raises:
      UserError: The vocabulary is missing, or the name is taken.
    """
    full = f"fire_lm:{name}"
    if full in seqio.TaskRegistry.names():
        raise UserError(f"seqio already has a task {full}: choose another name")
    vocabulary = vocabularies.load(data.vocabulary)

    def examples(groups: tf.data.Dataset) -> tf.data.Dataset:
        def documents(group: dict[str, tf.Tensor]) -> tf.data.Dataset:
            ragged = tf.RaggedTensor.from_row_lengths(group["targets"], group["lengths"])
            return tf.data.Dataset.from_tensor_slices({"targets": ragged})

        tokens = groups.flat_map(documents)
        return tokens.map(lambda example: {"targets": tf.reshape(example["targets"], [-1])})

    return seqio.TaskRegistry.add(
        full,
        source=Source(data, *splits(data)),
        preprocessors=[preprocessors.Tokenize(vocabulary, byte_counts=False), examples],
        output_features={"targets": seqio.Feature(vocabulary)},
    )
