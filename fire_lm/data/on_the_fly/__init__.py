"""Text that seqio reads, tokenises and arranges in rows during a run.

This module implements the functions of `fire_lm.data` for `TextData` and `SeqioTask`, and those
that apply to `TextToText`. Functions that need TensorFlow import it when they are called, which
takes 10 s.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from etils import epath

from fire_lm.data.batches import ScoringText
from fire_lm.data.hub_vocabulary import PREFIX
from fire_lm.data.spec import EMBEDDED_MANIFEST, ReadBySeqio, SeqioTask, TextBySeqio, TextToText
from fire_lm.errors import UserError
from fire_lm.storage import in_bucket, read_bytes

if TYPE_CHECKING:
    from fire_lm.data.on_the_fly.pipeline import SeqioIterator


def train_iterator(data: ReadBySeqio, **arguments: int) -> SeqioIterator:
    # TensorFlow would call Python code to tokenise, so the position could not be saved.
    if data.vocabulary.startswith(PREFIX):
        instead = (
            "use a task with a SentencePiece or byte vocabulary"
            if isinstance(data, TextToText)
            else "write blocks with it (`fire-lm corpus blocks`), and read them with "
            "--gin_file=configs/data/blocks.gin"
        )
        raise UserError(
            f"the vocabulary {data.vocabulary} cannot be used for training on the fly\n{instead}"
        )
    from fire_lm.data.on_the_fly import pipeline

    return pipeline.SeqioIterator(data, **arguments)


def scoring_text(data: TextBySeqio, *, length: int, num_sequences: int, split: str) -> ScoringText:
    from fire_lm.data.on_the_fly import pipeline

    return pipeline.scoring_text(data, length=length, num_sequences=num_sequences, split=split)


def vocabulary_name(data: ReadBySeqio) -> str:
    return data.vocabulary


def vocabulary_size(data: ReadBySeqio) -> int:
    if isinstance(data, TextToText):
        from fire_lm.data.on_the_fly import text_to_text

        return text_to_text.vocabulary_size(data)
    if isinstance(data, SeqioTask):  # its vocabulary may have extra ids
        from fire_lm.data.on_the_fly import registered

        return registered.vocabulary_size(data)
    from fire_lm.data import vocabularies

    return vocabularies.load(data.vocabulary).vocab_size


def label(data: ReadBySeqio) -> str:
    if isinstance(data, SeqioTask | TextToText):
        return data.name
    if (epath.Path(data.data_dir) / EMBEDDED_MANIFEST).exists():
        return "embedded"
    name = data.tfds_name.partition(":")[0]
    return "c4" if name == "c4/en" else name  # the paper's C4 is the English configuration


def quick_splits(data: TextBySeqio) -> list[str] | None:
    """Return the names of the splits in the local metadata, or None if they cannot be read."""
    if isinstance(data, SeqioTask):
        return None
    name, _, version = data.tfds_name.partition(":")
    if not version or in_bucket(data.data_dir):
        return None
    try:
        text = read_bytes(f"{data.data_dir}/{name}/{version}/dataset_info.json")
        return None if text is None else [one["name"] for one in json.loads(text)["splits"]]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def unknown_share(data: ReadBySeqio, split: str) -> float:
    """Return the share of unknown tokens in the first documents of a split.

    For a registered task, the share is computed from rows at the beginning of the split.
    """
    if isinstance(data, TextToText):
        from fire_lm.data.on_the_fly import text_to_text

        return text_to_text.unknown_share(data, split)
    if isinstance(data, SeqioTask):
        return scoring_text(data, length=64, num_sequences=64, split=split).unknown
    from fire_lm.data.on_the_fly import survey

    return survey.unknown_share(data, split)
