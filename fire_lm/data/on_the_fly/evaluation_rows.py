"""The examples in one split of registered tasks, read for evaluation in the source's order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fire_lm.data import tokens, vocabularies
from fire_lm.data.on_the_fly import registered
from fire_lm.data.on_the_fly.source import reading, with_options
from fire_lm.data.quiet_tensorflow import seqio, without_their_warnings
from fire_lm.data.task_examples import Example, TaskExamples, failure
from fire_lm.data.truncation import shortened
from fire_lm.errors import UserError

if TYPE_CHECKING:
    from fire_lm.data.kinds import TextToText

# The functions that score fire_lm's own tasks do not need these features. Inputs are not kept,
# because an input can be a book, which takes megabytes. Other tasks may need any of their features.
_NOT_NEEDED = ("inputs", "inputs_pretokenized", "targets")


def task_examples(
    data: TextToText, *, split: str, longest: int, count: int | None
) -> list[TaskExamples]:
    """Return the examples of each task; see `TextToText.task_examples`."""
    tasks = seqio.get_subtasks(registered.checked(data, split))
    return [_read(data, task, split, longest, count) for task in tasks]


def _read(
    data: TextToText, task: seqio.Task, split: str, longest: int, count: int | None
) -> TaskExamples:
    if not task.predict_metric_fns:
        raise UserError(
            f"the task {task.name} has no metric: register it with metric_fns, a list of functions "
            "of targets and predictions"
        )
    with without_their_warnings():
        rows = task.get_dataset(
            dict.fromkeys(task.output_features),
            split=split,
            shuffle=False,
            seed=0,  # some preprocessors draw: every process must read the same inputs
            num_epochs=1,
            trim_output_features=False,
            try_in_mem_cache=False,
            use_cached=data.use_cached,
        )
    end = int(vocabularies.load(data.vocabulary).eos_id)
    examples: list[Example] = []
    lost: dict[str, str] = {}
    ids: set[str] = set()
    with reading(data):
        taken = with_options(rows.take(-1 if count is None else count), symbolic=False)
        for number, row in enumerate(taken.as_numpy_iterator()):
            name = _text(row["id"]) if "id" in row else str(number)
            if name in ids:
                raise UserError(
                    f"two examples of {task.name} in the split {split!r} have the id {name}: "
                    "give each row a unique id, and list all reference answers in `answers`"
                )
            ids.add(name)
            try:
                examples.append(_example(data, task, row, name, end, longest))
            except _OfTask as error:
                lost[name] = str(error)
    if not ids:
        raise UserError(
            f"the split {split!r} of the task {task.name} is empty: choose another split"
        )
    if not examples:
        raise UserError(
            f"the postprocess_fn of {task.name} fails on every target of the split {split!r}; the "
            f"first error is {next(iter(lost.values()))}"
        )

    def prediction(text: str, fields: Mapping[str, Any]) -> Any:
        return task.postprocess_fn(text, example=fields, is_target=False)

    return TaskExamples(task.name, examples, prediction, task.predict_metric_fns, lost)


class _OfTask(Exception):
    """The error for an example on which the task's own code fails."""


def _example(
    data: TextToText, task: seqio.Task, row: dict[str, Any], name: str, end: int, longest: int
) -> Example:
    ids, target = (_without_end(row[feature], end) for feature in data.token_features)
    left_out = _NOT_NEEDED if data.is_ours else ()
    fields = {feature: value for feature, value in row.items() if feature not in left_out}
    written = fields.get("targets_pretokenized")
    text = tokens.decode(data, target) if written is None else _text(written)
    try:
        compared = task.postprocess_fn(text, example=fields, is_target=True)
    except Exception as error:  # the task's own code can raise anything
        raise _OfTask(failure(error)) from error
    return Example(
        id=name,
        tokens=shortened(ids, longest, data.truncation),
        input_length=len(ids),
        answers=_texts(fields.get("answers", ())) or (text,),
        choices=_texts(fields.get("choices", ())),
        target=compared,
        fields=fields,
    )


def _without_end(ids: np.ndarray, end: int) -> np.ndarray:
    ids = np.asarray(ids, np.int32)
    return ids[:-1] if ids.size and ids[-1] == end else ids


def _texts(values: Any) -> tuple[str, ...]:
    """Return the texts of a feature, which is a list or a single text."""
    single = isinstance(values, str | bytes)
    return tuple(map(_text, [values] if single else values))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
