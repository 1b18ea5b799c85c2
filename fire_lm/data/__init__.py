"""Text for training and scoring: on the fly through seqio, or from blocks that were tokenised once.

`TextData` and `Blocks` say which; the functions here take either, and for training also
`TextToText`, examples of an input and its target, and `Synthetic`, the exercises of a task. The
only package that imports TensorFlow, and only once `TextData` needs it (10 s): importing this
module is light, and `Blocks` is read without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

from fire_lm.data import blocks, exercises, on_the_fly, suites
from fire_lm.data.beam_workers import BeamWorkers
from fire_lm.data.blocks.manifest import Manifest
from fire_lm.data.corpora.embedded import CorpusSummary, write_embedded_corpus
from fire_lm.data.spec import (
    CONSTRUCTIONS,
    Blocks,
    Data,
    NoText,
    ScoringText,
    SeqioTask,
    Synthetic,
    TextData,
    TextToText,
    Tokenized,
    TrainingData,
    TrainIterator,
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
    "ScoringText",
    "SeqioTask",
    "Synthetic",
    "TextData",
    "TextToText",
    "Tokenized",
    "TrainIterator",
    "TrainingData",
    "dataset_label",
    "quick_splits",
    "register_task",
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
# Above this share of unknown tokens a loss says little about the text.
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
    """Endless training batches of one shard; the same arguments give the same batches.

    Args:
        data: which text.
        length: tokens in a row, at least 2.
        batch_size: rows in a batch of this shard.
        seed: 0 or more; decides the order of files and rows.
        shard_index: which of `shard_count` disjoint parts of the text (of blocks: of every batch)
            to read.
        shard_count: usually the number of processes.

    Returns:
        An iterator over dicts of numpy arrays [batch_size, length]: `targets`, int32 (0 is
        padding); `weights`, int8: what each target counts in the loss, of `TextToText` 0 for
        inputs; and, where rows are packed, `segment_ids`, int32. Of `Synthetic` also `inputs`,
        int32: what is read, which is else `targets` shifted by one; and `tokens`, int32
        [batch_size, 1]: those of a row before its padding. `get_state()` gives bytes, and
        `set_state(bytes)` resumes exactly there; with `shared_state` they are the same on all
        shards, and serve any number of shards.

    Raises:
        UserError: data set or vocabulary missing or unfit, or less text than shards.
        RunFailed: the text is damaged, or cannot be read.
    """
    if batch_size < 1 or not 0 <= shard_index < shard_count:
        raise UserError(
            f"Cannot read shard {shard_index} of {shard_count} in batches of {batch_size}."
        )
    if seed < 0:
        raise UserError(f"The seed is 0 or more, not {seed}.")
    return _reader(data).train_iterator(
        data,
        length=length,
        batch_size=batch_size,
        seed=seed,
        shard_index=shard_index,
        shard_count=shard_count,
    )


def scoring_text(
    data: Data, *, length: int, num_sequences: int, split: str = "validation"
) -> ScoringText:
    """Fixed, unshuffled text: up to `num_sequences` rows, evenly from the beginning of a split.

    Raises:
        NoText: the split does not fill one row. UserError: as `train_iterator`.
    """
    return _reader(data).scoring_text(data, length=length, num_sequences=num_sequences, split=split)


def task_examples_of(data: TextToText, *, split: str, longest: int) -> list[TaskExamples]:
    """The examples of a task, or of each task of a mixture, in the order of their source.

    Args:
        longest: tokens of an input that are kept, without its end.

    Raises:
        UserError: the task, its split or its vocabulary cannot be read, it has no metric or no
            example, or two examples have one id. RunFailed: its data is damaged.
    """
    from fire_lm.data.on_the_fly import evaluation_rows

    _register(data)
    return evaluation_rows.task_examples(data, split=split, longest=longest)


def vocabulary_name(data: TrainingData) -> str:
    """The name of the vocabulary in messages."""
    return _reader(data).vocabulary_name(data)


def vocabulary_size(data: TrainingData) -> int:
    """Ids that the vocabulary can emit, padding included.

    Raises:
        UserError: vocabulary file missing or unfit.
    """
    return _reader(data).vocabulary_size(data)


def unknown_share(data: TrainingData, split: str) -> float:
    """Share of the tokens that the vocabulary does not know; of `TextData`'s first documents only.

    Raises:
        UserError: as `train_iterator`.
    """
    return _reader(data).unknown_share(data, split)


def unknown_warning(share: float, split: str, data: TrainingData) -> str:
    """A warning about unknown tokens; empty if there are few."""
    if share <= UNKNOWN_SHARE:
        return ""
    return (
        f"warning: {share:.1%} of the {split} tokens of {data.title} are unknown to the vocabulary "
        f"{vocabulary_name(data)}: the loss leaves out what they say\n"
        "`fire-lm corpus vocab` trains a vocabulary that knows all text"
    )


def dataset_label(data: Data | TextToText) -> str:
    """The name of the text in results: 'embedded' for our corpus, else the TFDS name ('c4')."""
    return _reader(data).label(data)


def quick_splits(data: Data) -> list[str] | None:
    """The splits that there are; None where that is not quickly told, or needs TensorFlow."""
    return _reader(data).quick_splits(data)


def _reader(data: TrainingData) -> ModuleType:
    """The package that reads it: each has the functions above, for its own kind."""
    if isinstance(data, Synthetic):
        return exercises
    if isinstance(data, TextToText):
        _register(data)
    return blocks if isinstance(data, Blocks) else on_the_fly


def _register(data: TextToText) -> None:
    """Register the tasks of its folder, if it has one.

    Raises:
        UserError: its own is not among them.
    """
    if data.data_dir and data.name not in suites.register(data.data_dir, data.vocabulary):
        suites.task_or_mixture(data.name, data.data_dir, data.vocabulary)  # says what is missing


def register_task(name: str, data: TextData) -> str:
    """Register text with seqio as fire_lm:NAME, for other code and for `SeqioTask`.

    Returns:
        Its full name.

    Raises:
        UserError: data set or vocabulary missing or unfit, or the name is taken.
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
    """Tokenise a data set once, into blocks; see `fire_lm.data.blocks.writer.write_blocks`.

    Args:
        workers: of Beam, which write the parts; else they are written here, one by one.
    """
    from fire_lm.data.blocks import writer

    run_parts = None
    if workers is not None:
        from fire_lm.data.blocks import beam

        run_parts = beam.parts_runner(workers)
    return writer.write_blocks(
        data, output, splits=splits, parts=parts, progress=progress, run_parts=run_parts
    )
