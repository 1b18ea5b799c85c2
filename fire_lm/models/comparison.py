"""Comparing two models: for resuming, for starting from another run, for sweeps."""

from __future__ import annotations

import dataclasses
from typing import Any

from fire_lm.errors import UserError
from fire_lm.models.decoder import Decoder
from fire_lm.positions import PositionalEncoding


def encoding_names(model: Decoder) -> str:
    """The classes of the encodings that take turns: "FIRE", or "RoPE, RoPE, NoPE"."""
    return ", ".join(type(encoding).__name__ for encoding in model.encodings)


def settings(model: Decoder) -> dict[str, Any]:
    """The settings that determine the numbers of a model, not how they are computed (remat)."""
    found: dict[str, Any] = {}
    for name, part in _parts(model).items():
        found[name] = type(part).__name__
        found |= {
            f"{name}.{field.name}": getattr(part, field.name) for field in dataclasses.fields(part)
        }
    return {
        **found,
        **dataclasses.asdict(model.size),
        "log_n": model.log_n,
        "vocab_size": model.vocab_size,
        "dtype": model.dtype.name,
        "share_position": model.share_position,
    }


def lengths(model: Decoder) -> dict[str, Any]:
    """The values derived from the training length by encodings and log n, as in `settings`."""
    return {
        f"{name}.{field}": getattr(part, field)
        for name, part in _parts(model).items()
        if isinstance(part, PositionalEncoding)
        for field in ("train_length", *part.length_fields)
    }


def changes(old: Decoder, new: Decoder) -> dict[str, tuple[Any, Any]]:
    """The settings that differ, each with its old and new value; None where there is none."""
    before, after = settings(old), settings(new)
    return {
        name: (before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    }


def variant(trained: Decoder, asked: Decoder) -> str:
    """The difference of `asked` from `trained` for tables, such as "yarn-4x"; empty for none.

    Raises:
      UserError: another model than the trained one, not only another use of its parameters.
    """
    allowed = {"log_n"} | {
        f"{name}.{field}"
        for name, part in _parts(trained).items()
        for field in part.evaluation_fields
    }
    changed = changes(trained, asked)
    refused = [
        f"{name} {old} -> {new}" for name, (old, new) in changed.items() if name not in allowed
    ]
    if refused:
        raise UserError(
            f"the model would not be as it was trained: {', '.join(refused)}\n"
            "leave out the --gin. binding or file that changes it; a sweep may change only "
            f"{', '.join(sorted(allowed))}"
        )
    return "+".join(_labels({name: new for name, (_, new) in changed.items()}, trained))


def _parts(model: Decoder) -> dict[str, Any]:
    """The pieces of a model that deal with positions, by what their settings are called."""
    if len(model.encodings) == 1:
        encodings: dict[str, Any] = {"position": model.encodings[0]}
    else:
        encodings = {f"position[{index}]": part for index, part in enumerate(model.encodings)}
    return {**encodings, "resampling": model.resampling}


def _labels(changed: dict[str, Any], trained: Decoder) -> list[str]:
    """Label each changed field, by turn unless it changed alike in all turns."""
    by_field: dict[str, dict[str, Any]] = {}
    for name, value in sorted(changed.items()):
        part, _, field = name.rpartition(".")
        by_field.setdefault(field, {})[part] = value
    labels = []
    for field, values in by_field.items():
        having = [n for n, part in _parts(trained).items() if field in part.evaluation_fields]
        if len(values) == max(1, len(having)) and len(set(values.values())) == 1:
            labels.append(_label(field, next(iter(values.values()))))
        else:
            labels += [f"{part}:{_label(field, value)}" for part, value in values.items()]
    return labels


def _label(field: str, value: Any) -> str:
    if value is True:
        return field
    if value is None or value is False:
        return f"no_{field}"
    return f"{field}-{value:g}" if isinstance(value, int | float) else str(value)
