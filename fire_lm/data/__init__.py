"""What runs train on and sweeps score: the kinds of data, and the functions that read them.

`base` defines what a kind of data is, and `kinds` has those of fire_lm: `TextData`, `SeqioTask`,
`Blocks`, `MaskedText`, `TextToText` (examples of an input and its target) and `Synthetic` (the
exercises of a task). Importing this module is cheap, because TensorFlow, whose import takes 10 s,
is imported only by the functions that need it.
"""

from __future__ import annotations

from fire_lm.data.base import TextSource, Tokenized, TrainingSource
from fire_lm.data.batches import NoText, ScoringText, TrainIterator, cut
from fire_lm.data.beam_workers import BeamWorkers
from fire_lm.data.corpora.embedded import embedded_documents, write_corpus
from fire_lm.data.kinds import Blocks, MaskedText, Pairs, SeqioTask, Synthetic, TextData, TextToText
from fire_lm.data.spec import CONSTRUCTIONS
from fire_lm.errors import UserError

__all__ = [
    "BeamWorkers",
    "Blocks",
    "CONSTRUCTIONS",
    "MaskedText",
    "NoText",
    "Pairs",
    "ScoringText",
    "SeqioTask",
    "Synthetic",
    "TextData",
    "TextSource",
    "TextToText",
    "Tokenized",
    "TrainIterator",
    "TrainingSource",
    "cut",
    "embedded_documents",
    "only_data_set",
    "register_task",
    "scoring_text",
    "train_iterator",
    "unknown_warning",
    "write_corpus",
]
# Above this share of unknown tokens, a loss says little about the text.
UNKNOWN_SHARE = 0.01


def train_iterator(
    data: TrainingSource,
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
      length: The maximum number of tokens in a row, at least 2.
      batch_size: The number of rows in a batch of this shard.
      seed: A non-negative integer that determines the order of files and rows, or the exercises.
      shard_index: The index of the shard to read, from 0 to `shard_count` - 1. The disjoint
        shards divide the text or, for `Blocks` and `Synthetic`, every batch.
      shard_count: The number of shards, usually the number of processes.

    Returns:
      An iterator over dicts of numpy arrays [batch_size, T], where T is one of
      `data.row_lengths(length)`: `targets`, int32 (0 is padding); `weights`, int8, the weight of
      each target in the loss (0 for the input of a `TextToText`, unless `train_on_inputs` is
      set); and, if rows are packed, `segment_ids`, int32. `Synthetic` adds `inputs`, int32, which
      the model reads in place of `targets` shifted by one, and `tokens`, int32 [batch_size, 1],
      the number of tokens in each row before its padding. `get_state()` returns bytes, and
      `set_state(bytes)` resumes exactly at that position. If `shared_state` is true, the bytes
      are the same on all shards and can be used with any number of shards.

    Raises:
      UserError: An argument is invalid, the data set or the vocabulary is missing or unsuitable,
        or there is too little text for the number of shards.
      RunFailed: The text is damaged or cannot be read.
    """
    if batch_size < 1 or not 0 <= shard_index < shard_count:
        raise UserError(
            f"Cannot read shard {shard_index} of {shard_count} in batches of {batch_size}: the "
            f"shard index must be from 0 to {shard_count - 1}, and the batch size at least 1"
        )
    if seed < 0:
        raise UserError(f"The seed must be 0 or more, not {seed}")
    return data.train_iterator(
        length=length,
        batch_size=batch_size,
        seed=seed,
        shard_index=shard_index,
        shard_count=shard_count,
    )


def scoring_text(
    data: TextSource, *, length: int, num_sequences: int, split: str = "validation"
) -> ScoringText:
    """Return up to `num_sequences` unshuffled rows, spread evenly over the beginning of a split.

    The same arguments always give the same rows.

    Raises:
      NoText: The split does not contain enough text for a single row.
      UserError: See `train_iterator`.
    """
    if num_sequences < 1:
        raise UserError(f"The number of sequences to score must be positive, not {num_sequences}")
    return data.scoring_text(length=length, num_sequences=num_sequences, split=split)


def unknown_warning(share: float, split: str, data: TrainingSource) -> str:
    """Return a warning about unknown tokens, or "" if their share is at most `UNKNOWN_SHARE`."""
    if share <= UNKNOWN_SHARE:
        return ""
    return (
        f"warning: {share:.1%} of the {split} tokens of {data.title} are unknown to the vocabulary "
        f"{data.vocabulary_name()}: the loss does not reflect that text\n"
        "`fire-lm corpus vocab` trains a vocabulary that can represent all text"
    )


def only_data_set(data_dir: str, tfds_name: str | None) -> TextData:
    """Return the data set with the given name or, without a name, the only one in the directory.

    If no name is given and the directory contains no data set, the default name of `TextData` is
    used.

    Raises:
      UserError: No name is given, and the directory contains several data sets.
    """
    from fire_lm.data.on_the_fly import metadata

    names = [tfds_name] if tfds_name else metadata.data_sets(data_dir)
    if len(names) > 1:
        raise UserError(
            f"{data_dir} contains several data sets ({', '.join(names)}): set --tfds_name=NAME"
        )
    return TextData(data_dir, names[0]) if names else TextData(data_dir)


def register_task(name: str, data: TextData) -> str:
    """Register text with seqio as fire_lm:NAME, so that other code and `SeqioTask` can read it.

    Returns:
      The full name of the task.

    Raises:
      UserError: The data set or the vocabulary is missing or unsuitable, or the name is taken.
    """
    from fire_lm.data.on_the_fly import tasks

    return str(tasks.register(name, data).name)
