"""Tasks and mixtures that the user's own modules or fire_lm have registered with seqio.

The preprocessors of a task run unchanged. Each example of the chosen feature counts as a document,
and ends with an end-of-document token only if these preprocessors append one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fire_lm.data import vocabularies
from fire_lm.data.identity import vocabulary_fingerprint
from fire_lm.data.on_the_fly import tasks
from fire_lm.data.on_the_fly.preprocessors import CONSTRUCT, DOCUMENTS_PER_GROUP
from fire_lm.data.on_the_fly.source import files_of, with_options
from fire_lm.data.quiet_tensorflow import seqio, tf, without_their_warnings
from fire_lm.data.rows import check_arrangement
from fire_lm.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from fire_lm.data.kinds import SeqioTask
    from fire_lm.data.kinds.by_seqio import Registered

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's symbol for a space


def check(data: SeqioTask, *, length: int, split: str) -> int:
    """See `Reader.check`; the number of examples is unknown."""
    check_arrangement(data, length)
    checked(data, split)
    return 0


def checked(data: Registered, split: str) -> seqio.Task | seqio.Mixture:
    """Return the Task or Mixture, after checking its features, their vocabularies and the split.

    Raises:
      UserError: One of them is missing or unsuitable.
    """
    provider = check_read(data, split)
    for feature in data.token_features:
        _check_vocabulary(data, provider.output_features[feature].vocabulary)
    return provider


def check_read(data: Registered, split: str) -> seqio.Task | seqio.Mixture:
    """Return the Task or Mixture, after checking its features, the split and a required cache.

    Raises:
      UserError: One of them is missing or unsuitable.
    """
    provider = _check_features(data)
    # The Mixture itself would list each split that any of its tasks has.
    splits = set.intersection(*(set(task.splits) for task in seqio.get_subtasks(provider)))
    if split not in splits:
        others = f"only {', '.join(sorted(splits))}" if splits else "and its tasks share no split"
        raise UserError(f"{data.where} has no split {split!r}, {others}")
    if data.use_cached:
        _check_cached(data, provider)
    return provider


def _check_features(data: Registered) -> seqio.Task | seqio.Mixture:
    """Return the Task or Mixture, after checking that its features can become rows."""
    features = data.provider.output_features
    for name in data.token_features:
        if name not in features:
            names = ", ".join(sorted(features))
            raise UserError(
                f"{data.where} has no feature {name!r}, only {names}{data.feature_hint}"
            )
        if features[name].rank != 1:
            raise UserError(
                f"the feature {name} of {data.where} is not a list of tokens: its rank must be 1"
            )
    others = sorted(set(features) - set(data.token_features))
    if others and not data.ignores_features:
        (name,) = data.token_features
        raise UserError(
            f"language modelling reads only {name} of {data.where} and would ignore "
            f"{', '.join(others)}\nregister a task that puts the complete example into {name}"
        )
    return data.provider


def _check_cached(data: Registered, provider: seqio.Task | seqio.Mixture) -> None:
    if data.cache_dirs:
        seqio.add_global_cache_dirs(list(data.cache_dirs))
    for task in seqio.get_subtasks(provider):
        if not task.cache_dir:
            raise UserError(
                f"the task {task.name} is not cached: run `seqio_cache_tasks`, and pass its "
                f"--output_cache_dir in --gin.{type(data).__name__}.cache_dirs"
            )


def named(name: str) -> seqio.Task | seqio.Mixture:
    """Return the Task or Mixture that is registered under a name.

    Raises:
      UserError: No Task or Mixture has this name.
    """
    names = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
    if name not in names:
        hint = did_you_mean(name, names)
        raise UserError(
            f"seqio has no Task or Mixture {name}{hint}\n"
            "import the module that registers it: --import=MODULE"
        )
    return seqio.get_mixture_or_task(name)


def files(data: Registered, split: str) -> list[list[str]]:
    """Return the files of each task; see `Reader.files`."""
    parts = seqio.get_subtasks(data.provider)
    if data.use_cached:
        return [
            [
                f"{task.cache_dir}/{name}"
                for name in sorted(tf.io.gfile.listdir(task.cache_dir))
                if name.startswith(f"{split}.tfrecord")
            ]
            for task in parts
        ]
    return [files_of(task.source, split) for task in parts]


def check_rows(data: SeqioTask, *, length: int, shard: seqio.ShardInfo | None) -> None:
    """See `Reader.check_rows`; several epochs of a short text may form a row of `concat`."""
    tasks.has_row(data, length, shard)


def documents_of(data: Registered, shard: seqio.ShardInfo | None, documents: int) -> int:
    """See `Reader.documents_of`; which shard reads an example is unknown."""
    return documents


def _check_vocabulary(data: Registered, vocabulary: seqio.Vocabulary) -> None:
    """Raise UserError unless the vocabulary is identical to the one in the run's configuration.

    Generation and export use the vocabulary in the configuration.
    """
    if isinstance(vocabulary, seqio.ByteVocabulary):
        name = "bytes"
    elif isinstance(vocabulary, seqio.SentencePieceVocabulary):
        name = str(vocabulary.sentencepiece_model_file)
    else:
        raise UserError(
            f"the vocabulary of {data.where} is a {type(vocabulary).__name__}: only seqio's "
            "SentencePieceVocabulary and ByteVocabulary are supported"
        )
    vocabularies.load(data.vocabulary)
    if vocabulary_fingerprint(name) != vocabulary_fingerprint(data.vocabulary):
        raise UserError(
            f"the vocabulary of {data.where} is {name}, not {data.vocabulary}: "
            f"set --gin.VOCABULARY={name}"
        )


def vocabulary_size(data: Registered) -> int:
    """Return the number of ids that the vocabularies can emit, including extra ids and padding."""
    features = _check_features(data).output_features
    return max(int(features[name].vocabulary.vocab_size) for name in data.token_features)


def examples(
    data: Registered,
    provider: seqio.Task | seqio.Mixture,
    lengths: Mapping[str, int],
    reading: dict[str, Any],
) -> tf.data.Dataset:
    """Return the examples that the task's own preprocessors produce.

    Some preprocessors truncate or concatenate examples to the lengths in `lengths`, which maps
    features to numbers of tokens. Other features have no maximum length. `provider` is the Task or
    Mixture of `data`, or a Task in that Mixture.
    """
    # pipeline.py shuffles the rows with a small state, so a single task need not shuffle its
    # examples. The tasks of a mixture still do.
    own = {"shuffle_buffer_size": 1} if isinstance(provider, seqio.Task) else {}
    every: dict[str, int | None] = {**dict.fromkeys(provider.output_features), **lengths}
    return provider.get_dataset(every, use_cached=data.use_cached, **own, **reading)


def groups(
    data: SeqioTask, *, length: int, byte_counts: bool = False, **reading: Any
) -> tf.data.Dataset:
    """Return groups of rows; see `Reader.groups`."""
    with without_their_warnings():
        documents = _documents(data, length, byte_counts, tasks.reading(**reading))
        rows = CONSTRUCT[data.construction](documents, {"targets": length})
        # seqio's file sources interleave files in parallel, and TensorFlow 2.21 can crash
        # (SIGSEGV) if such an iterator records its position symbolically at every element.
        return with_options(rows, symbolic=False)


def _documents(
    data: SeqioTask, length: int, byte_counts: bool, reading: dict[str, Any]
) -> tf.data.Dataset:
    """Return groups of whole documents in the format that `preprocessors` describes."""
    counts = tf.constant(_bytes_of_ids(data.vocabulary)) if byte_counts else None

    def group(tokens: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        number = tokens.nrows(out_type=tf.int32)
        tokens = tf.ragged.boolean_mask(tokens, tokens.row_lengths() > 0)
        kept = tokens.nrows(out_type=tf.int32)
        flat = tf.saturate_cast(tokens.flat_values, tf.int32)  # a cast would wrap
        rows = {
            "targets": flat,
            "lengths": tf.cast(tokens.row_lengths(), tf.int32),
            "skipped": number - kept,
            "documents": kept,
            "short": tf.constant(0),
        }
        if counts is not None:  # extra ids, which follow the model's own ids, represent no text
            inside = flat < tf.size(counts)
            rows["byte_counts"] = tf.where(inside, tf.gather(counts, tf.where(inside, flat, 0)), 0)
        return rows

    read = examples(data, data.provider, {data.feature: length}, reading)
    documents = read.map(lambda example: example[data.feature])
    return documents.ragged_batch(DOCUMENTS_PER_GROUP).map(group)


@functools.lru_cache(maxsize=4)
def _bytes_of_ids(vocabulary: str) -> np.ndarray:
    """Return the number of bytes of normalised text that each id represents, int32 [ids]."""
    if vocabulary == "bytes":
        return np.array([0] * 3 + [1] * 256, np.int32)
    model = vocabularies.load(vocabulary).tokenizer
    counts = []
    for token in range(model.GetPieceSize()):
        piece = model.IdToPiece(token).replace(_SPACE, " ")
        is_text = not (model.IsControl(token) or model.IsUnknown(token))
        counts.append(1 if model.IsByte(token) else len(piece.encode()) * is_text)
    return np.array(counts, np.int32)
