"""The validation of benchmark arguments, and the output of results as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fire_lm.errors import UserError, nearest


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


def write_json(file: str | None, report: Any) -> None:
    """Write the dataclass `report` as JSON to `file`, or do nothing if no file was requested."""
    if file:
        Path(file).write_text(json.dumps(dataclasses.asdict(report), indent=1) + "\n")
