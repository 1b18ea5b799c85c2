"""Text for training and scoring, through seqio and TensorFlow Datasets.

The only package that imports TensorFlow, and only once a function here needs it (10 s): importing
this module is light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fire_lm.data.corpus import CorpusSummary, dataset_label, write_embedded_corpus
from fire_lm.data.text import CONSTRUCTIONS, ScoringText, TextData, unknown_warning

if TYPE_CHECKING:
    from fire_lm.data.pipeline import TrainIterator

__all__ = [
    "CONSTRUCTIONS",
    "CorpusSummary",
    "ScoringText",
    "TextData",
    "dataset_label",
    "scoring_text",
    "train_iterator",
    "unknown_share",
    "unknown_warning",
    "vocabulary_size",
    "write_embedded_corpus",
]


def train_iterator(
    data: TextData,
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
        seed: decides the order of files and rows.
        shard_index: which of `shard_count` disjoint parts of the text to read.
        shard_count: usually the number of processes.

    Returns:
        An iterator over dicts of numpy arrays: those of `data.features`, `targets` (0 is padding)
        and where rows are packed `segment_ids`, int32 [batch_size, length]; and `skipped`, int32
        scalar: the empty, undecodable or huge documents passed over since the last batch.
        `get_state()` gives bytes, `set_state(bytes)` continues exactly.

    Raises:
        UserError: data set or vocabulary missing or unfit, or less text than shards.
    """
    from fire_lm.data import pipeline

    return pipeline.TrainIterator(
        data,
        length=length,
        batch_size=batch_size,
        seed=seed,
        shard_index=shard_index,
        shard_count=shard_count,
    )


def scoring_text(
    data: TextData, *, length: int, num_sequences: int, split: str = "validation"
) -> ScoringText:
    """Fixed, unshuffled text: up to `num_sequences` rows, evenly from the beginning of a split.

    Raises:
        UserError: as `train_iterator`; also if the split does not fill one row.
    """
    from fire_lm.data import pipeline

    return pipeline.scoring_text(data, length=length, num_sequences=num_sequences, split=split)


def vocabulary_size(data: TextData) -> int:
    """Ids that the vocabulary can emit, padding included.

    Raises:
        UserError: vocabulary file missing or unfit.
    """
    from fire_lm.data import vocabularies

    return vocabularies.load(data.vocabulary).vocab_size


def unknown_share(data: TextData, split: str) -> float:
    """Share of the tokens of the split's first documents that the vocabulary does not know.

    Raises:
        UserError: as `train_iterator`.
    """
    from fire_lm.data import survey

    return survey.unknown_share(data, split)
