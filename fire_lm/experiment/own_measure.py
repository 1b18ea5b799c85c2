"""The class of a measure that --measure=MODULE.CLASS names, usually outside the package."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, cast, get_type_hints

from fire_lm.config.configurables import imported
from fire_lm.errors import UserError, did_you_mean
from fire_lm.measures.base import Measure
from fire_lm.measures.length_accuracy import AccuracyByLength
from fire_lm.measures.length_sweep import LengthSweep
from fire_lm.measures.masked_accuracy import MaskedAccuracy
from fire_lm.measures.task_scores import TextEvaluation

# The first columns of every table of a measure.
_FIRST = ["run", "encoding", "variant", "step"]

_OURS: dict[str, type[Measure]] = {
    kind.name: kind for kind in (AccuracyByLength, LengthSweep, MaskedAccuracy, TextEvaluation)
}


def split_measure(spec: str | None) -> tuple[str, str]:
    """Split MODULE.CLASS into the module and the class, which are "" without a `spec`."""
    module, _, name = (spec or "").rpartition(".")
    return module, name


def measure_class(spec: str) -> type[Measure]:
    """Return the class that `spec` names.

    Raises:
      UserError: The module cannot be imported, or the class does not exist or is not a measure.
    """
    module, name = split_measure(spec)
    if not module:
        raise UserError(f"--measure is {spec}: it must be MODULE.CLASS, as in my_package.MyMeasure")
    classes = imported({module: "--measure"}, {})
    if name not in classes:
        raise UserError(
            f"--measure={spec}: {module} has no dataclass {name}{did_you_mean(name, classes)}"
        )
    if problem := _problem(classes[name]):
        raise UserError(f"--measure={spec} {problem}: see docs/add_a_measure.md")
    return cast(type[Measure], classes[name])


def with_lengths(measure: Any, lengths: Sequence[int] | None) -> Measure:
    """Return a measure with the values of --lengths, if they are given.

    Raises:
      UserError: The measure has no lengths.
    """
    if not lengths:
        return cast(Measure, measure)
    if not hasattr(measure, "lengths"):
        name = type(measure).__name__
        raise UserError(f"--lengths has no effect, because {name} has no lengths: omit it")
    return cast(Measure, dataclasses.replace(measure, lengths=tuple(lengths)))


def _problem(kind: Any) -> str:
    """Return why a class is not a measure, as the end of a message, or "" if it is one."""
    if not issubclass(kind, Measure):
        return "is not a subclass of fire_lm.measures.Measure"
    name = getattr(kind, "name", None)
    if not isinstance(name, str):
        return "has no `name` for its table"
    if not re.fullmatch("[A-Za-z0-9_-]+", name):
        return f"has the name {name!r}: it must consist of letters from A to Z, digits, _ and -"
    if _OURS.get(name, kind) is not kind:
        return f"has the name of a measure of fire_lm, {name}: it must have another"
    row = getattr(kind, "Row", None)
    columns = [field.name for field in dataclasses.fields(row)] if row is not None else []
    if columns[:4] != _FIRST:
        return f"has no `Row` that begins with {', '.join(_FIRST)}"
    types = get_type_hints(row)
    other = [name for name in columns if types[name] not in (str, int, float)]
    return f"has a `Row` whose {other[0]} is none of str, int and float" if other else ""
