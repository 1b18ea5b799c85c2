"""The validation of what all benchmarks take."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fire_lm.errors import UserError, nearest

# The arguments of `bench attention` that have no effect with some of its other arguments, and their
# defaults. The parser's own defaults are None, which shows what was given.
_ENCODINGS = "nope,fire,fire_s,fire_g,fire_appendix_e,alibi,t5,kerple_log,sandwich,rope"
ATTENTION: dict[str, Any] = {
    "lengths": [2048],
    "encodings": _ENCODINGS.split(","),
    "implementations": ["blockwise"],
    "memory": [8192, 16384],
    "rounds": 3,
    "peer": None,
}


def completed(
    arguments: argparse.Namespace, used: Sequence[str], flag: str = ""
) -> argparse.Namespace:
    """Return the arguments of `bench attention` without repetitions, and with all defaults.

    Raises:
      UserError: An argument that is not `used` was given, which has no effect with `flag`.
    """
    given = {name for name in ATTENTION if getattr(arguments, name) is not None}
    for name in ATTENTION:
        if name in given and name not in used:
            raise UserError(f"--{name} has no effect with {flag}: omit it")
    defaults = {name: default for name, default in ATTENTION.items() if name not in given}
    values = {**vars(arguments), **defaults}
    lists = {name: list(dict.fromkeys(v)) for name, v in values.items() if isinstance(v, list)}
    return argparse.Namespace(**{**values, **lists})


def check(arguments: argparse.Namespace, **known: Sequence[str]) -> None:
    """Check `--lengths`, `--json`, and each list of names whose `known` names are given."""
    for flag, names in known.items():
        for name in getattr(arguments, flag):
            if name not in names:
                near = nearest(name, names)
                hint = f": did you mean {near}?" if near else ""
                listed = f"known names: {', '.join(names)}"
                raise UserError(f"--{flag}: unknown name '{name}'{hint}\n{listed}")
    for flag in ("lengths", *known):
        if flag != "encodings" and not getattr(arguments, flag):  # nope is always compared
            raise UserError(f"--{flag}: give at least one, such as {ATTENTION[flag][0]}")
    check_json(arguments.json)


def check_implementations(implementations: Sequence[str], backend: str) -> None:
    """Raise UserError if the TPU's kernel would run in an interpreter, whose times mean nothing."""
    if "tpu" in implementations and backend != "tpu":
        raise UserError(
            f"--implementations: the kernel of tpu cannot be timed on a {backend}\n"
            "--tpu=v4-8 prints the compiler's estimates for it"
        )


def check_json(file: str | None) -> None:
    """Raise UserError if the results could not be written to `file` in the end."""
    if not file:
        return
    if "://" in file:
        raise UserError(f"--json: {file} must be a local path")
    path = Path(file).absolute()
    if not path.parent.is_dir():
        raise UserError(f"--json: there is no folder {path.parent}: create it")
    if path.is_dir():
        raise UserError(f"--json: {file} is a folder: give the path of a file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"--json: {file} cannot be written: choose another path")
