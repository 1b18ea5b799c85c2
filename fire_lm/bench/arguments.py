"""The validation of what all benchmarks take."""

from __future__ import annotations

import argparse
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
    """Return the arguments of `bench attention`, with defaults for those that were not given.

    Raises:
      UserError: An argument that is not `used` was given, which has no effect with `flag`.
    """
    given = {name for name in ATTENTION if getattr(arguments, name) is not None}
    for name in ATTENTION:
        if name in given and name not in used:
            raise UserError(f"--{name} has no effect with {flag}: omit it")
    defaults = {name: default for name, default in ATTENTION.items() if name not in given}
    return argparse.Namespace(**{**vars(arguments), **defaults})


def check(arguments: argparse.Namespace, encodings: Sequence[str]) -> None:
    """Check `--encodings` against those that benchmarks know, `--lengths` and `--json`."""
    check_names(arguments.encodings, encodings, "--encodings")
    check_json(arguments.json)
    check_not_empty(arguments, "lengths")


def check_not_empty(arguments: argparse.Namespace, *names: str) -> None:
    for name in names:
        if not getattr(arguments, name):
            raise UserError(f"--{name}: give at least one, such as {ATTENTION[name][0]}")


def check_names(names: Sequence[str], known: Sequence[str], flag: str) -> None:
    for name in names:
        if name not in known:
            near = nearest(name, known)
            hint = f": did you mean {near}?" if near else ""
            raise UserError(f"{flag}: unknown name '{name}'{hint}\nknown names: {', '.join(known)}")


def check_json(file: str | None) -> None:
    if file and not Path(file).absolute().parent.is_dir():
        raise UserError(f"--json: there is no folder {Path(file).absolute().parent}: create it")
    if file and Path(file).is_dir():
        raise UserError(f"--json: {file} is a folder: give the path of a file")
