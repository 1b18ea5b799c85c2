"""The settings of a measure, recorded beside its table, which has rows of one choice of them only.

`measures/NAME.settings.json` has the settings that the keys of the rows in `measures/NAME.csv` do
not contain; see `Measure.recorded`.
"""

from __future__ import annotations

import dataclasses
import json

from etils import epath

from fire_lm.errors import RunFailed, UserError
from fire_lm.measures.base import Measure, StillOurs, setting_text
from fire_lm.processes import say_once
from fire_lm.storage import make_folder, present, read_bytes, replace_text


def check_settings(measure: Measure, workdir: epath.Path) -> None:
    """Check that the rows in the table of a run, if there are any, have the settings of a measure.

    Raises:
      UserError: They have other settings.
      RunFailed: The record of their settings is damaged.
    """
    table, now = measure.file(workdir), measure.recorded()
    if not now or not present(table):
        return
    before = _read(_file(measure, workdir))
    if before is None:
        settings = ", ".join(f"{name} = {value}" for name, value in now.items())
        say_once(
            f"{table} has no record of its settings: its rows are taken to be those of {settings}"
        )
        return
    before = _defaults(measure) | before
    kind = type(measure).__name__
    changed = [
        f"{kind}.{name} is {value} and was {before.get(name, 'not set')}"
        for name, value in now.items()
        if value != before.get(name)
    ]
    if changed:
        raise UserError(
            f"the rows of {table} have other settings: {', '.join(changed)}\n"
            f"set the old values, or move this file and {_file(measure, workdir).name} away"
        )


def record_settings(measure: Measure, workdir: epath.Path, still_ours: StillOurs) -> None:
    """Record the settings of rows that are about to be written, unless other rows forbid them.

    Until the rows are written, no other process may write rows of the run; see `Measure.write`.

    Raises:
      UserError, RunFailed: See `check_settings`.
    """
    check_settings(measure, workdir)
    file, now = _file(measure, workdir), measure.recorded()
    if now and _read(file) != now:
        make_folder(file.parent)
        still_ours()
        replace_text(file, json.dumps(now, indent=2) + "\n")


def _file(measure: Measure, workdir: epath.Path) -> epath.Path:
    return measure.file(workdir).with_suffix(".settings.json")


def _read(file: epath.Path) -> dict[str, str] | None:
    content = read_bytes(file)
    if content is None:
        return None
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError) as error:
        raise RunFailed(f"{file} is damaged ({error}): move or delete it") from error


def _defaults(measure: Measure) -> dict[str, str]:
    """Return the defaults of the fields, which hold for rows from before a field existed."""
    fields = dataclasses.fields(measure)  # type: ignore[arg-type]  # measures are dataclasses
    return {
        field.name: setting_text(field.default)
        for field in fields
        if field.default is not dataclasses.MISSING
    }
