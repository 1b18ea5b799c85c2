"""Postprocessing functions for seqio, which prepare targets and predictions for the metrics.

Each function receives a decoded text, the example (whose strings may be bytes) and whether the text
is the target. The metrics compare predictions with the example's `answers`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Protocol

from fire_lm.tasks.metrics import InGroup

Example = Mapping[str, Any]

_DETERMINERS = frozenset(
    "a an few her his each every many much my our some that the their these this those which whose "
    "your".split()
)


class Postprocess(Protocol):
    def __call__(
        self, text: str, example: Example | None = None, is_target: bool = False
    ) -> Any: ...


def references(text: str, example: Example | None = None, is_target: bool = False) -> Any:
    """Return all references of a target, or a prediction without surrounding whitespace."""
    return list(_answers(example)) if is_target else _plain(text).strip()


def label(text: str, example: Example | None = None, is_target: bool = False) -> str:
    """Return the label of a target, or a prediction without surrounding whitespace.

    An unknown label is ''.
    """
    return next(iter(_answers(example)), "") if is_target else _plain(text).strip()


def label_in_group(text: str, example: Example | None = None, is_target: bool = False) -> Any:
    """Return the result of `label`, but pair a target's label with its group."""
    answer = label(text, example, is_target)
    return InGroup(_plain(_of(example)["group"]), answer) if is_target else answer


def similarity(text: str, example: Example | None = None, is_target: bool = False) -> float:
    """Return the text as a number or, as in T5, -1 if it is not a finite number.

    An unknown target is NaN.
    """
    written = label(text, example, is_target)
    if is_target and not written:
        return math.nan
    try:
        value = float(written)
    except ValueError:
        return -1.0
    return value if math.isfinite(value) else -1.0


def referent(text: str, example: Example | None = None, is_target: bool = False) -> str:
    """Return 'True' if a prediction matches the example's phrase, else 'False'.

    As in T5, the two match if, apart from determiners, all words of one text occur in the other,
    and either both texts contain an apostrophe or neither does. Words are separated by single
    spaces only. For a prediction without other words (which in T5 does not match), or an example
    without answers, return ''. The `answers` of an example are the phrase and the label; for a
    target, return the label.
    """
    answers = _answers(example)
    if is_target:
        return answers[1] if len(answers) > 1 else ""
    if not answers:  # an unlabelled row
        return ""
    predicted, expected = _without_determiners(_plain(text)), _without_determiners(answers[0])
    if predicted == {""}:
        return ""
    same_form = ("'" in "".join(predicted)) == ("'" in "".join(expected))
    return str(same_form and (predicted <= expected or expected <= predicted))


def _without_determiners(phrase: str) -> set[str]:
    words = phrase.strip().lower().split(" ")
    return set(" ".join(word for word in words if word not in _DETERMINERS).split(" "))


def last_number(text: str, example: Example | None = None, is_target: bool = False) -> str:
    """Return a target's label, or the last integer in a prediction, as LongEval does.

    Source: `test_lines_one_sample` of DachengLi1/LongChat, which compares `int` values, so leading
    zeros do not matter. A prediction without digits gives ''.
    """
    if is_target:
        return label(text, example, is_target)
    numbers = re.findall(r"\d+", _plain(text))
    return str(Decimal(numbers[-1])) if numbers else ""


def _answers(example: Example | None) -> list[str]:
    return [_plain(answer) for answer in _of(example)["answers"]]


def _of(example: Example | None) -> Example:
    if example is None:
        raise ValueError("postprocessing requires the example")
    return example


def _plain(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else str(text)
