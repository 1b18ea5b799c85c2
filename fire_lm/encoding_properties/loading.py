"""The encodings that a gin file configures or a module defines, at the size of the checks."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fire_lm.encoding_properties.of_hooks import LENGTH, SIZE
from fire_lm.errors import UserError, did_you_mean, first_line
from fire_lm.experiment import POSITIONS, load_experiment
from fire_lm.models import Decoder
from fire_lm.positions import PositionalEncoding, encodings

_RUN = "configs/runs/quickstart.gin"
_LAYERS = math.lcm(*range(1, 17))  # they are not built, and divided by the length of a schedule


def encodings_of(spec: str) -> dict[str, PositionalEncoding]:
    """Return the encodings to check, keyed by their names in messages.

    Args:
      spec: A gin file, a module (all encodings that it defines), or a class as MODULE.CLASS.

    Raises:
      UserError: The file or the module cannot be loaded or contains no encoding, an encoding cannot
        be constructed, or the package also has an encoding of the same name.
    """
    return _of_file(spec) if spec.endswith(".gin") else _of_module(spec)


def _of_file(file: str) -> dict[str, PositionalEncoding]:
    experiment = load_experiment([_RUN, file])
    label = experiment.label
    _check_label(file, label)
    size = dataclasses.replace(SIZE, num_layers=_LAYERS)
    changed: dict[str, Any] = {"size": size, "vocab_size": 32, "train_length": LENGTH}
    model: Decoder = experiment.model_with(**changed)
    encodings = list(dict.fromkeys(model.encodings))
    if len(encodings) == 1:
        return {label: encodings[0]}
    kinds = [type(encoding).__name__ for encoding in encodings]
    return {
        f"{label} ({kind}{f' {number}' * (kinds.count(kind) > 1)})": encoding
        for number, (kind, encoding) in enumerate(zip(kinds, encodings, strict=True), start=1)
    }


def _check_label(file: str, label: str) -> None:
    """Raise UserError if another file of the package uses the name that `file` gives in tables."""
    inside = Path(str(POSITIONS)) / f"{label}.gin"
    if inside.is_file() and not _is_same_file(file, inside):
        raise UserError(
            f"there are two encodings with the name {label}: {file} (outside the package) and "
            f"{inside} (inside)\nremove one if it is a copy, or set another ENCODING in {file}"
        )


def _is_same_file(file: str, inside: Path) -> bool:
    """Return whether the gin file `file` is `inside`, a file of the package."""
    if Path(file).exists():
        return Path(file).samefile(inside)
    return inside.as_posix().endswith(file)  # a file of the package, from any folder


def _of_module(spec: str) -> dict[str, PositionalEncoding]:
    module, name = _imported(spec)
    classes = _classes(module)
    if name:
        member = getattr(module, name, None)
        if member is None:
            hint = did_you_mean(name, classes)
            raise UserError(f"{module.__name__} has no class {name}{hint}")
        if not (inspect.isclass(member) and issubclass(member, PositionalEncoding)):
            raise UserError(
                f"{spec} is not a subclass of fire_lm.positions.PositionalEncoding: give the class "
                "of an encoding"
            )
        classes = {name: member}
    if not classes:
        raise UserError(
            f"{spec} defines no encoding: it needs a class derived from "
            "fire_lm.positions.PositionalEncoding"
        )
    for name, kind in classes.items():
        _check_once(name, kind)
    return {name: _constructed(kind) for name, kind in classes.items()}


def _imported(spec: str) -> tuple[ModuleType, str]:
    """Return the module and the name of the class in it, which is "" if `spec` is a module."""
    parent, _, name = spec.rpartition(".")
    try:
        return importlib.import_module(spec), ""
    except ModuleNotFoundError as error:
        # Either the last part is a class, or the module or one that it imports is missing.
        if not parent or error.name != spec:
            raise _not_imported(spec, error) from error
    except Exception as error:  # any error in the user's code
        raise _not_imported(spec, error) from error
    try:
        return importlib.import_module(parent), name
    except Exception as error:
        raise _not_imported(parent, error) from error


def _not_imported(module: str, error: Exception) -> UserError:
    return UserError(
        f"cannot import {module}: {first_line(error)}\n"
        "give MODULE, MODULE.CLASS or FILE.gin, with the folder of the package on PYTHONPATH"
    )


def _classes(module: ModuleType) -> Mapping[str, type[PositionalEncoding]]:
    """Return the public, concrete encodings that the module itself defines, by name."""
    return {
        name: member
        for name, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, PositionalEncoding)
        and member is not PositionalEncoding
        and member.__module__ == module.__name__
        and not inspect.isabstract(member)
        and not name.startswith("_")
    }


def _check_once(name: str, kind: type[PositionalEncoding]) -> None:
    """Raise UserError if the package has another encoding with the name of this class."""
    inside = encodings().get(name, kind)
    if inside is not kind:
        raise UserError(
            f"there are two encodings with the name {name}: {kind.__module__} (outside the "
            f"package) and {inside.__module__} (inside)\nremove one if it is a copy, or rename "
            "the class"
        )


def _constructed(kind: type[PositionalEncoding]) -> PositionalEncoding:
    try:
        return kind(
            num_heads=SIZE.num_heads,
            head_dim=SIZE.head_dim,
            train_length=LENGTH,
            hidden_size=SIZE.hidden_size,
        )
    except Exception as error:  # any error in the user's code
        raise UserError(
            f"cannot construct {kind.__module__}.{kind.__name__}: {first_line(error)}\n"
            "give its fields defaults, or a gin file that sets them"
        ) from error
