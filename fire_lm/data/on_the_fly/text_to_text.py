"""Rows that each contain one example (an input and its target) of a registered Task or Mixture.

A row contains the input, the end-of-document token, the target, the same token again, and padding,
in the layout of seqio's `DecoderFeatureConverter`. Groups of rows have the format that
`preprocessors` describes, with an additional array:
    weights      int8, of the same shape as targets: 1 for the target and its end token (and for
                 the input with its end token if `train_on_inputs` is set), 0 elsewhere
In these groups, `skipped` is the number of examples whose target is empty or too long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fire_lm.data import vocabularies
from fire_lm.data.batches import share_unknown
from fire_lm.data.on_the_fly import registered, tasks
from fire_lm.data.on_the_fly.preprocessors import DOCUMENTS_PER_GROUP
from fire_lm.data.on_the_fly.source import reading, with_options
from fire_lm.data.quiet_tensorflow import seqio, tf, without_their_warnings
from fire_lm.data.rows import check_length
from fire_lm.data.truncation import ends_kept
from fire_lm.errors import UserError

if TYPE_CHECKING:
    from fire_lm.data.kinds import TextToText

files, documents_of = registered.files, registered.documents_of
# The number of examples in which unknown tokens are counted.
_SURVEYED = 64


def check(data: TextToText, *, length: int, split: str) -> int:
    """See `Reader.check`; a row must also have room for an input."""
    check_length(length)
    data.input_length(length)
    # The number of examples before a task's own preprocessors may be unknown.
    tasks_read = seqio.get_subtasks(registered.checked(data, split))
    counts = [int(task.num_input_examples(split) or 0) for task in tasks_read]
    return sum(counts) if all(counts) else 0


def unknown_share(data: TextToText, split: str) -> float:
    """Return the share of unknown tokens in the first examples of a split."""
    provider = registered.check_read(data, split)
    read = registered.examples(data, provider, {}, {"split": split, "shuffle": False})
    first = with_options(read.take(_SURVEYED), symbolic=False)
    tokens = [
        example[feature] for example in first.as_numpy_iterator() for feature in data.token_features
    ]
    ids = np.concatenate(tokens) if tokens else np.zeros(0, np.int32)
    return share_unknown(ids, vocabularies.unknown_id(data.vocabulary))


def check_rows(data: TextToText, *, length: int, shard: seqio.ShardInfo | None) -> None:
    """Check that each task whose rate in a Mixture is not 0 yields a row; see `Reader.check_rows`.

    A task without a target of a suitable length would be ignored or read endlessly.
    """
    provider, arguments = data.provider, tasks.reading("train", None, shard)
    for task in seqio.get_subtasks(provider):
        if isinstance(provider, seqio.Mixture) and not provider.get_rate(task):
            continue
        with reading(data), without_their_warnings():
            rows = with_options(_groups(data, task, length, arguments), symbolic=False)
            empty = not any(len(group["targets"]) for group in rows.as_numpy_iterator())
        if empty:
            part = "" if task is provider else f"the task {task.name} of "
            raise UserError(
                f"No example in the split 'train' of {part}{data.where} has a target "
                f"of 1 to {data.target_length - 1:,} tokens before its end token: raise "
                "TextToText.target_length, or check the data"
            )


def groups(data: TextToText, *, length: int, **arguments: Any) -> tf.data.Dataset:
    """Return groups of rows in the format that the docstring of this module describes."""
    with without_their_warnings():
        groups = _groups(data, data.provider, length, tasks.reading(**arguments))
        # A comment in `registered.groups` explains why other tasks cannot be symbolic.
        return with_options(groups, symbolic=data.is_ours)


def _groups(
    data: TextToText, provider: seqio.Task | seqio.Mixture, length: int, arguments: dict[str, Any]
) -> tf.data.Dataset:
    # Without a length, the preprocessors of the task do not truncate. Inputs are truncated below,
    # as `data.truncation` specifies. With 'head', a task of fire_lm tokenises only the beginning
    # that is kept. (The end of a text cannot be tokenised by itself, because SentencePiece chooses
    # pieces by scores that are summed in float32 from the beginning.)
    room = data.input_length(length)
    alike = data.is_ours and data.truncation == "head"
    examples = registered.examples(data, provider, {"inputs": room + 1} if alike else {}, arguments)
    end = int(vocabularies.load(data.vocabulary).eos_id)
    head, tail = ends_kept(room, data.truncation)

    @tf.autograph.experimental.do_not_convert  # no Python control flow; this builds faster
    def row(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        source, target = (_without_end(example[feature], end) for feature in data.token_features)
        fits = tf.logical_and(tf.size(target) > 0, tf.size(target) < data.target_length)
        shortened = tf.concat([source[:head], source[tf.size(source) - tail :]], axis=0)
        source = tf.cond(tf.size(source) > room, lambda: shortened, lambda: source)
        tokens = tf.concat([source, [end], target[: data.target_length - 1], [end]], axis=0)
        place = tf.range(length)
        first = 0 if data.train_on_inputs else tf.size(source) + 1
        scored = tf.logical_and(place >= first, place < tf.size(tokens))
        return {
            "targets": tf.ensure_shape(tf.pad(tokens, [[0, length - tf.size(tokens)]]), [length]),
            "weights": tf.cast(scored, tf.int8),
            "fits": fits,
        }

    @tf.autograph.experimental.do_not_convert
    def group(rows: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        fits = rows.pop("fits")
        kept = tf.reduce_sum(tf.cast(fits, tf.int32))
        return {
            **{name: tf.boolean_mask(array, fits) for name, array in rows.items()},
            "skipped": tf.size(fits) - kept,
            "documents": kept,
            "short": tf.constant(0),
        }

    rows = examples.map(row, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return rows.batch(DOCUMENTS_PER_GROUP).map(group)


def _without_end(tokens: tf.Tensor, end: int) -> tf.Tensor:
    """Return the tokens without the end token that some tasks append themselves."""
    tokens = tf.saturate_cast(tokens, tf.int32)  # a cast would wrap
    ended = tf.reduce_any(tokens[-1:] == end)
    return tokens[: tf.size(tokens) - tf.cast(ended, tf.int32)]
