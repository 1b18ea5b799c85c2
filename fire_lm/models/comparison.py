"""Comparisons of two models, for runs that resume or start from another run, and for sweeps."""

from __future__ import annotations

import dataclasses
from typing import Any

from fire_lm.errors import UserError
from fire_lm.models.decoder import Decoder
from fire_lm.models.mixers import Attention
from fire_lm.positions import PositionalEncoding

# The fields of Decoder that do not change what a model predicts (up to rounding), each with the
# reason. Every other field counts, also one that is added later.
NOT_IN_PREDICTIONS = {
    "remat": "recomputed values equal the saved ones",
    "scan_layers": "a loop over the layers computes what unrolled layers do",
    "attention": "all implementations compute the same function",
    "activation_sharding": "it places arrays on devices",
    "dropout": "it acts in training only",
    "attention_dropout": "it acts in training only",
    "parent": "a field of every Flax module",
    "name": "a field of every Flax module",
}


def encoding_names(model: Decoder) -> str:
    """Return the names of the alternating encodings, such as "RoPE, RoPE, NoPE".

    A mixer other than attention is named too, because its parameters differ in meaning.
    """
    return ", ".join(
        turn.encoding.title
        + ("" if type(turn.mixer) is Attention else f" in {type(turn.mixer).__name__}")
        for turn in model.turns
    )


def same_meaning(one: Decoder, other: Decoder) -> bool:
    """Return whether the parameters of the encodings of two models have the same meaning.

    Mixers that apply the encoding to queries, keys and logits may differ.
    """

    def meanings(model: Decoder) -> list[Any]:
        return [
            (
                {name: type(part) for name, part in _encodings_in(turn.encoding).items()},
                "encoding" in turn.mixer.options or type(turn.mixer),
            )
            for turn in model.turns
        ]

    return meanings(one) == meanings(other)


def _encodings_in(encoding: PositionalEncoding) -> dict[str, PositionalEncoding]:
    """Return an encoding and those in its fields, by their names."""
    parts = _parts_of("position", encoding).items()
    return {name: part for name, part in parts if isinstance(part, PositionalEncoding)}


def settings(model: Decoder) -> dict[str, Any]:
    """Return the settings that affect a model's predictions: all but `NOT_IN_PREDICTIONS`."""
    values: dict[str, Any] = {}
    for name, part in _parts(model).items():
        if name:
            values[name] = type(part).__name__
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if not _is_part(value):
                values[_setting(name, field.name)] = value
    values |= dataclasses.asdict(model.size)
    described = {"turns", "resampling", "size", *NOT_IN_PREDICTIONS}
    for field in dataclasses.fields(model):
        if field.name not in described:
            value = getattr(model, field.name)
            values[field.name] = value.name if field.name == "dtype" else value
    return values


def lengths(model: Decoder) -> dict[str, Any]:
    """Return training lengths and the fields that default to them, keyed as in `settings`."""
    return {
        f"{name}.{field}": getattr(part, field)
        for name, part in _parts(model).items()
        if isinstance(part, PositionalEncoding)
        for field in ("train_length", *part.length_fields)
    }


def at_longest_length(model: Decoder, train_length: int) -> Decoder:
    """Return the model for changes at evaluation, which are relative to the training length.

    A run that continues another run keeps the length of the first run, because encodings may have
    derived values from it. If no encoding has, as trained, `train_length` replaces this length if
    it is longer: 2310.13017 defines L as the longest length observed during training. The trained
    model is the same function at both lengths.
    """
    lengths_in_use = any(
        turn.log_n is not None
        or (
            encoding.interpolated() is None
            and (encoding.evaluation_fields or encoding.length_fields)
        )
        for turn in model.turns
        for encoding in _encodings_in(turn.encoding).values()
    )
    if lengths_in_use:
        return model
    return model.with_encodings(
        dataclasses.replace(encoding, train_length=max(train_length, encoding.train_length))
        for encoding in model.encodings
    )


def changes(old: Decoder, new: Decoder) -> dict[str, tuple[Any, Any]]:
    """Return each differing setting with its old and new values; a missing value is None."""
    before, after = settings(old), settings(new)
    return {
        name: (before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    }


def variant(trained: Decoder, changed_model: Decoder) -> str:
    """Return a label for the difference between `changed_model` and `trained`, such as "yarn-4x".

    The label is "" if the two models do not differ.

    Raises:
      UserError: `changed_model` is another model, not only another use of the same parameters.
    """
    allowed, also = (
        {
            _setting(name, field)
            for name, part in _parts(model).items()
            for field in part.evaluation_fields
        }
        for model in (trained, changed_model)
    )
    allowed &= also
    changed = changes(trained, changed_model)
    refused = [
        f"{name} {old} -> {new}" for name, (old, new) in changed.items() if name not in allowed
    ]
    if refused:
        raise UserError(
            f"the model would differ from the trained model: {', '.join(refused)}\n"
            "remove the --gin. binding or --gin_file that changes it; evaluation may change only "
            f"{', '.join(sorted(allowed))}"
        )
    if trained.share_position and _equal_to(trained) != _equal_to(changed_model):
        raise UserError(
            f"{', '.join(changed)} would change in some of the layers that share the parameters of "
            "one encoding: change it in all of them alike"
        )
    return "+".join(_labels({name: new for name, (_, new) in changed.items()}, trained))


def _equal_to(model: Decoder) -> list[int]:
    """Return, for each turn, the first turn with the same encoding, whose parameters it shares."""
    return [model.encodings.index(encoding) for encoding in model.encodings]


def _parts(model: Decoder) -> dict[str, Any]:
    """Return the parts of a model by their names in `settings`: its turns and what they consist of.

    The name of a turn is "" if there is only one. An encoding has the name of the parameter of
    `build_decoder` that describes it.
    """
    parts: dict[str, Any] = {}
    for index, turn in enumerate(model.turns):
        at = f"[{index}]" if len(model.turns) > 1 else ""
        parts[f"turn{at}" if at else ""] = turn
        for field in dataclasses.fields(turn):
            name = "position" if field.name == "encoding" else field.name
            parts |= _parts_of(name + at, getattr(turn, field.name))
    return parts | _parts_of("resampling", model.resampling)


def _parts_of(name: str, value: Any) -> dict[str, Any]:
    """Return a part and the parts in its fields, by their names; {} if `value` is not a part."""
    if not _is_part(value):
        return {}
    parts = {name: value}
    for field in dataclasses.fields(value):
        parts |= _parts_of(f"{name}.{field.name}", getattr(value, field.name))
    return parts


def _is_part(value: Any) -> bool:
    """Return whether a value declares which of its fields may change after training."""
    return hasattr(value, "evaluation_fields")


def _setting(part: str, field: str) -> str:
    return f"{part}.{field}" if part else field


def _labels(changed: dict[str, Any], trained: Decoder) -> list[str]:
    """Return a label for each changed field.

    If a field of several alternating encodings did not change in the same way in all of them, it
    has a separate label for each encoding in which it changed.
    """
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
