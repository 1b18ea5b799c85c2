"""The examples of a task that an evaluation answers: selected by their length, and drawn."""

from __future__ import annotations

import collections
import dataclasses
import functools

import numpy as np

from fire_lm.data import TextToText
from fire_lm.data.task_examples import TaskExamples
from fire_lm.processes import say_once


@functools.lru_cache(maxsize=4)
def examples_of(data: TextToText, split: str, longest: int) -> list[TaskExamples]:
    """Return the examples of each task, cached for all checkpoints and settings."""
    return data.task_examples(split=split, longest=longest)


def selected(task: TaskExamples, below: int | None, count: int | None) -> TaskExamples:
    """Return the task with `count` examples, drawn from those with fewer than `below` tokens.

    If inputs are excluded because of their length, their number is reported.
    """
    if below is not None:
        total = len(task.examples)
        task = task.with_inputs_below(below)
        short = len(task.examples)
        say_once(
            f"{short} of {total} inputs of {task.name} have fewer than {below:,} tokens and are "
            f"selected; {total - short} are excluded"
        )
    return drawn(task, count)


def drawn(task: TaskExamples, count: int | None) -> TaskExamples:
    """Return the task with `count` examples, drawn with a fixed seed, in their original order.

    Groups of examples that are scored together are drawn as a whole until there are at least
    `count` examples. If `count` is None or at least the number of examples, all are kept.
    """
    if count is None or count >= len(task.examples):
        return task
    sizes = collections.Counter(example.group for example in task.examples)
    groups, picked, drawn_count = list(sizes), set[str](), 0
    for index in np.random.default_rng(0).permutation(len(groups)):
        if drawn_count >= count:
            break
        picked.add(groups[index])
        drawn_count += sizes[groups[index]]
    kept = [example for example in task.examples if example.group in picked]
    return dataclasses.replace(task, examples=kept)
