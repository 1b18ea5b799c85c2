"""The validation of what all benchmarks take."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fire_lm.errors import UserError, nearest


def check(arguments: argparse.Namespace, encodings: Sequence[str]) -> None:
    """Check `--encodings` against those that benchmarks know, `--lengths` and `--json`."""
    check_names(arguments.encodings, encodings, "--encodings")
    check_json(arguments.json)
    if not arguments.lengths:
        raise UserError("--lengths: give at least one, such as 2048")


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
