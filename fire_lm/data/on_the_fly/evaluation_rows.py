"""All examples of a split of registered tasks, read for evaluation in the order of the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fire_lm.data import tokens, vocabularies
from fire_lm.data.on_the_fly import registered, text_to_text
from fire_lm.data.on_the_fly.source import unreadable
from fire_lm.data.quiet_tensorflow import seqio, tf, without_their_warnings
from fire_lm.data.spec import TextToText, shortened
from fire_lm.data.task_examples import Example, TaskExamples
from fire_lm.errors import UserError

# Long features are not kept: the text of an input can be a book, which takes megabytes.
_LONG = ("inputs", "inputs_pretokenized", "targets")


def task_examples(data: TextToText, *, split: str, longest: int) -> list[TaskExamples]:
    """Return the examples of each task; see `fire_lm.data.task_examples_of`."""
    found = text_to_text.check_features(data)
    registered.check_read(data, found, split)
    for feature in text_to_text.FEATURES:
        registered.check_vocabulary(data, found.output_features[feature].vocabulary)
    return [_read(data, task, split, longest) for task in seqio.get_subtasks(found)]


def _read(data: TextToText, task: seqio.Task, split: str, longest: int) -> TaskExamples:
    if not task.predict_metric_fns:
        raise UserError(
            f"the task {task.name} has no metric: register it with metric_fns=[...] of functions "
            "of targets and predictions"
        )
    with without_their_warnings():
        rows = task.get_dataset(
            dict.fromkeys(task.output_features),
            split=split,
            shuffle=False,
            num_epochs=1,
            trim_output_features=False,
            try_in_mem_cache=False,
            use_cached=data.use_cached,
        )
    end = int(vocabularies.load(data.vocabulary).eos_id)
    examples: list[Example] = []
    ids: set[str] = set()
    try:
        for number, row in enumerate(rows.as_numpy_iterator()):
            example = _example(data, task, row, number, end, longest)
            if example.id in ids:
                raise UserError(
                    f"two examples of {task.name} in the split {split!r} have the id {example.id}: "
                    "give each row a unique id and all of its references in `answers`"
                )
            ids.add(example.id)
            examples.append(example)
    except tf.errors.OpError as error:
        raise unreadable(data, error) from error
    if not examples:
        raise UserError(f"the split {split!r} of the task {task.name} is empty")

    def prediction(text: str, fields: Mapping[str, Any]) -> Any:
        return task.postprocess_fn(text, example=fields, is_target=False)

    return TaskExamples(task.name, examples, prediction, task.predict_metric_fns)


def _example(
    data: TextToText, task: seqio.Task, row: dict[str, Any], number: int, end: int, longest: int
) -> Example:
    ids, target = (_without_end(row[name], end) for name in text_to_text.FEATURES)
    fields = {name: value for name, value in row.items() if name not in _LONG}
    written = fields.get("targets_pretokenized")
    text = tokens.decode(data, target) if written is None else _text(written)
    answers = _texts(fields.get("answers", ())) or (text,)
    return Example(
        id=_text(fields["id"]) if "id" in fields else str(number),
        tokens=shortened(ids, longest, data.truncation),
        input_length=len(ids),
        answers=answers,
        choices=_texts(fields.get("choices", ())),
        target=task.postprocess_fn(text, example=fields, is_target=True),
        fields=fields,
    )


def _without_end(ids: np.ndarray, end: int) -> np.ndarray:
    ids = np.asarray(ids, np.int32)
    return ids[:-1] if ids.size and ids[-1] == end else ids


def _texts(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(map(_text, values))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
