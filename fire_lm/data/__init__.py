"""Text for training and scoring, read on the fly through seqio or from previously written blocks.

The functions of this module take some or all of these descriptions of data: `TextData`,
`SeqioTask`, `Blocks`, `TextToText` (examples of an input and its target) and `Synthetic` (the
exercises of a task). Importing this module is cheap, because TensorFlow, whose import takes 10 s,
is imported only by the functions that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

from fire_lm.data import blocks, exercises, on_the_fly, suites
from fire_lm.data.batches import NoText, ScoringText, TrainIterator
from fire_lm.data.beam_workers import BeamWorkers
from fire_lm.data.blocks.manifest import Manifest
from fire_lm.data.blocks.manifest import read as read_manifest
from fire_lm.data.corpora.embedded import CorpusSummary, write_embedded_corpus
from fire_lm.data.identity import vocabulary_fingerprint
from fire_lm.data.spec import (
    CONSTRUCTIONS,
    Blocks,
    Data,
    Pairs,
    SeqioTask,
    Synthetic,
    TextData,
    TextToText,
    Tokenized,
    TrainingData,
)
from fire_lm.data.task_examples import TaskExamples
from fire_lm.errors import UserError

__all__ = [
    "BeamWorkers",
    "Blocks",
    "CONSTRUCTIONS",
    "CorpusSummary",
    "Data",
    "NoText",
    "Pairs",
    "ScoringText",
    "SeqioTask",
    "Synthetic",
    "TextData",
    "TextToText",
    "Tokenized",
    "TrainIterator",
    "TrainingData",
    "dataset_label",
    "identity_of_vocabulary",
    "quick_splits",
    "register_task",
    "row_lengths",
    "scoring_text",
    "task_examples_of",
    "train_iterator",
    "unknown_share",
    "unknown_warning",
    "vocabulary_name",
    "vocabulary_size",
    "write_blocks",
    "write_embedded_corpus",
]
# Above this share of unknown tokens, a loss says little about the text.
UNKNOWN_SHARE = 0.01


def train_iterator(
    data: TrainingData,
    *,
    length: int,
    batch_size: int,
    seed: int,
    shard_index: int = 0,
    shard_count: int = 1,
) -> TrainIterator:
    """Return an endless iterator over the training batches of one shard.

    The same arguments always give the same batches.

    Args:
        data: The text to read.
        length: The maximum number of tokens in a row, at least 2.
        batch_size: The number of rows in a batch of this shard.
        seed: A non-negative integer that determines the order of files and rows, or the exercises.
        shard_index: The index of the shard to read, from 0 to `shard_count` - 1. The disjoint
            shards divide the text or, for `Blocks` and `Synthetic`, every batch.
        shard_count: The number of shards, usually the number of processes.

    Returns:
        An iterator over dicts of numpy arrays [batch_size, T], where T is one of `row_lengths`:
        `targets`, int32 (0 is padding); `weights`, int8, the weight of each target in the loss (0
        for the input of a `TextToText`, unless `train_on_inputs` is set); and, if rows are packed,
        `segment_ids`, int32. `Synthetic` adds `inputs`, int32, which the model reads in place of
        `targets` shifted by one, and `tokens`, int32 [batch_size, 1], the number of tokens in each
        row before its padding. `get_state()` returns bytes, and `set_state(bytes)` resumes exactly
        at that position. If `shared_state` is true, the bytes are the same on all shards and can be
        used with any number of shards.

    Raises:
        UserError: An argument is invalid, the data set or the vocabulary is missing or unsuitable,
            or there is too little text for the number of shards.
        RunFailed: The text is damaged or cannot be read.
    """
    if batch_size < 1 or not 0 <= shard_index < shard_count:
        raise UserError(
            f"Cannot read shard {shard_index} of {shard_count} in batches of {batch_size}: the "
            f"shard index must be from 0 to {shard_count - 1}, and the batch size at least 1."
        )
    if seed < 0:
        raise UserError(f"The seed must be 0 or more, not {seed}.")
    return _reader(data).train_iterator(
        data,
        length=length,
        batch_size=batch_size,
        seed=seed,
        shard_index=shard_index,
        shard_count=shard_count,
    )


def row_lengths(data: TrainingData, length: int) -> tuple[int, ...]:
    """Return the numbers of tokens that the rows of a training batch can have, in increasing order.

    Rows of text have `length` tokens. `Synthetic` also has shorter rows, so that batches of short
    exercises take less time.
    """
    return exercises.row_lengths(data, length) if isinstance(data, Synthetic) else (length,)


def scoring_text(
    data: Data, *, length: int, num_sequences: int, split: str = "validation"
) -> ScoringText:
    """Return up to `num_sequences` unshuffled rows, spread evenly over the beginning of a split.

    The same arguments always give the same rows.

    Raises:
        NoText: The split does not contain enough text for a single row.
        UserError: See `train_iterator`.
    """
    return _reader(data).scoring_text(data, length=length, num_sequences=num_sequences, split=split)


def task_examples_of(
    data: TextToText, *, split: str, longest: int, count: int | None = None
) -> list[TaskExamples]:
    """Return the examples of a task, or of each task in a mixture, in the order of the source.

    Args:
        data: The task or mixture.
        split: The name of the split.
        longest: The maximum number of input tokens to keep, not counting the end token.
        count: The number of examples to read from the beginning of each task; None reads all.

    Raises:
        UserError: A task, its split or its vocabulary cannot be read, the task has no metric or no
            examples, or two examples have the same id.
        RunFailed: The data is damaged.
    """
    from fire_lm.data.on_the_fly import evaluation_rows

    _register(data)
    return evaluation_rows.task_examples(data, split=split, longest=longest, count=count)


def vocabulary_name(data: TrainingData) -> str:
    """Return the name of the vocabulary for use in messages."""
    return _reader(data).vocabulary_name(data)


def identity_of_vocabulary(data: Data | TextToText) -> str | None:
    """Return the SHA-256 of the vocabulary, 'bytes', or None if blocks that do not exist state it.

    Raises:
        UserError: The vocabulary file is missing.
        RunFailed: The vocabulary or the manifest of the blocks cannot be read.
    """
    if data.vocabulary or not isinstance(data, Blocks):
        return vocabulary_fingerprint(data.vocabulary)
    found = read_manifest(data.path)
    return found.identity.vocabulary_fingerprint if found else None


def vocabulary_size(data: TrainingData) -> int:
    """Return the number of ids that the vocabulary can produce, including padding.

    Raises:
        UserError: The vocabulary file is missing or unsuitable.
    """
    return _reader(data).vocabulary_size(data)


def unknown_share(data: TrainingData, split: str) -> float:
    """Return the share of unknown tokens in a split.

    The share is exact for `Blocks` and 0 for `Synthetic`. For other data, only the tokens at the
    beginning of the split are counted.

    Raises:
        UserError: See `train_iterator`.
    """
    return _reader(data).unknown_share(data, split)


def unknown_warning(share: float, split: str, data: TrainingData) -> str:
    """Return a warning about unknown tokens, or "" if their share is at most `UNKNOWN_SHARE`."""
    if share <= UNKNOWN_SHARE:
        return ""
    return (
        f"warning: {share:.1%} of the {split} tokens of {data.title} are unknown to the vocabulary "
        f"{vocabulary_name(data)}: the loss does not reflect that text\n"
        "`fire-lm corpus vocab` trains a vocabulary that can represent all text"
    )


def dataset_label(data: Data | TextToText) -> str:
    """Return the name of the text in results, such as 'embedded', 'c4' or a task's name.

    The name of a TFDS data set includes its config, as in 'c4/realnewslike', except for English C4.
    """
    return _reader(data).label(data)


def quick_splits(data: Data) -> list[str] | None:
    """Return the names of the splits, or None if they cannot be read quickly without TensorFlow."""
    return _reader(data).quick_splits(data)


def _reader(data: TrainingData) -> ModuleType:
    """Return the module that reads this kind of data.

    Each such module implements the functions above that apply to its kind of data.
    """
    if isinstance(data, Synthetic):
        return exercises
    if isinstance(data, TextToText):
        _register(data)
    return blocks if isinstance(data, Blocks) else on_the_fly


def _register(data: TextToText) -> None:
    """Register the tasks in `data.data_dir` with seqio if fire_lm defines the task of `data`.

    Raises:
        UserError: The folder does not contain the task.
    """
    if data.is_ours and data.name not in suites.register(data.data_dir, data.vocabulary):
        # This call raises an error that states what is missing.
        suites.task_or_mixture(data.name, data.data_dir, data.vocabulary)


def register_task(name: str, data: TextData) -> str:
    """Register text with seqio as fire_lm:NAME, so that other code and `SeqioTask` can read it.

    Returns:
        The full name of the task.

    Raises:
        UserError: The data set or the vocabulary is missing or unsuitable, or the name is taken.
    """
    from fire_lm.data.on_the_fly import tasks

    return str(tasks.register(name, data).name)


def write_blocks(
    data: TextData,
    output: str,
    *,
    splits: Sequence[str] = (),
    parts: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    workers: BeamWorkers | None = None,
) -> Manifest:
    """Tokenise a data set into blocks; see `fire_lm.data.blocks.writer.write_blocks`.

    If `workers` is given, these Beam workers write the parts. Otherwise, this process writes the
    parts one by one.
    """
    from fire_lm.data.blocks import writer

    run_parts = None
    if workers is not None:
        from fire_lm.data.blocks import beam

        run_parts = beam.parts_runner(workers)
    return writer.write_blocks(
        data, output, splits=splits, parts=parts, progress=progress, run_parts=run_parts
    )
