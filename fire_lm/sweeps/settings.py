"""The settings under which `fire-lm sweep` scores a run: as it was trained, and each --also."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import shlex
from collections.abc import Iterable
from typing import Any

from etils import epath

from fire_lm.config import Config, UnusedBinding
from fire_lm.data import dataset_label, quick_splits
from fire_lm.errors import UserError
from fire_lm.evaluation import LengthSweep, say_once
from fire_lm.experiment import check_settings
from fire_lm.runs.evaluated import configuration
from fire_lm.runs.saved import text_of_run

# The settings besides the model that determine the rows.
_SCORING = ("data", "split", "lengths", "protocols", "stride", "tokens")


@dataclasses.dataclass(frozen=True)
class Setting:
    """A way of scoring a run's checkpoints.

    Attributes:
      also: The additional flags; empty for the plain setting.
      config: The configuration.
      variant: The name, in the table, of the model's changes from training.
    """

    also: str
    config: Config
    variant: str

    @functools.cached_property
    def asked(self) -> LengthSweep:
        """The length sweep that the configuration describes."""
        value: LengthSweep = self.config.call("length_sweep")
        return value

    @property
    def rows(self) -> dict[str, Any]:
        """The values that determine the rows, which are equal for equivalent settings."""
        return {"variant": self.variant, **{name: getattr(self.asked, name) for name in _SCORING}}

    def claim(self, step: int) -> str:
        """Return the name under which a sweep claims a checkpoint, with a hash of the text."""
        text = repr([self.rows[name] for name in ("data", "split")])
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{step}-{self.variant or 'plain'}-{digest}"


def settings(arguments: argparse.Namespace, workdir: epath.Path) -> list[Setting]:
    """Return the plain setting and each --also that affects this run; report the others."""
    found, idle = resolved(arguments, workdir)
    for one in found:
        check_split(one)
    for also, why in idle.items():
        say_once(f"{workdir}: --also='{also}' is skipped: {why}")
    return found


def check_split(setting: Setting) -> None:
    """Raise UserError for a split that the text does not have, if that can be checked quickly.

    Otherwise the settings before this one would be scored before the error is found.
    """
    wanted = setting.rows["split"]
    for part in setting.rows["data"].parts:
        if (there := quick_splits(part)) is not None and wanted not in there:
            raise UserError(
                f"{part.title} has no split {wanted!r}, only {', '.join(there)}: set "
                "length_sweep.split to one of them"
            )


def resolved(
    arguments: argparse.Namespace, workdir: epath.Path
) -> tuple[list[Setting], dict[str, str]]:
    """Return the settings, and why each other --also does not apply to this run."""
    found = [Setting("", *configuration(arguments, workdir))]
    text_of_run(found[0].config, workdir)  # refuses a run without text
    check_settings(found[0].config)
    idle = {}
    for also in arguments.also:
        files, bindings = flags_of(also)
        try:
            one = Setting(also, *configuration(arguments, workdir, files, bindings))
        except UnusedBinding as error:
            idle[also] = str(error)
            continue
        check_settings(one.config)
        same = [other.also for other in found if other.rows == one.rows]
        if same:
            idle[also] = f"it is the same as --also='{same[0]}'" if same[0] else "no effect"
        else:
            for other in found:
                check_named_apart(one, other)
            found.append(one)
    return found, idle


def check_named_apart(one: Setting, other: Setting) -> None:
    """Raise UserError for two texts that would have the same name in the table."""
    names = [
        {(dataset_label(part), part.construction) for part in setting.rows["data"].parts}
        for setting in (one, other)
    ]
    same_rows = one.variant == other.variant and one.rows["split"] == other.rows["split"]
    if not (same_rows and (both := names[0] & names[1])):
        return
    if one.rows["data"] != other.rows["data"]:
        raise UserError(
            f"--also='{one.also}' scores another text that is also called {min(both)[0]}: rows "
            "could not be distinguished\ngive the data sets different names "
            "(fire-lm corpus --name=NAME)"
        )
    if one.rows["tokens"] != other.rows["tokens"]:
        raise UserError(
            f"--also='{one.also}' scores another amount of {min(both)[0]}: the rows could not be "
            "compared\nset length_sweep.tokens once, for all settings"
        )


def check_effects(arguments: argparse.Namespace, workdirs: Iterable[epath.Path]) -> None:
    """Raise UserError if an --also has no effect on any of the runs."""
    idle = [resolved(arguments, workdir)[1] for workdir in workdirs] if arguments.also else []
    for also in arguments.also:
        if idle and all(also in of_run for of_run in idle):
            raise UserError(
                f"--also='{also}' adds nothing to any of these runs: {idle[0][also]}\n"
                "omit it, or fix it"
            )


def flags_of(also: str) -> tuple[list[str], list[str]]:
    """Return the gin files and bindings in one --also.

    Raises:
      UserError: The --also contains anything else, or nothing.
    """
    files, bindings = [], []
    try:
        words = shlex.split(also)
    except ValueError as error:
        raise UserError(f"--also='{also}' cannot be read ({error}): check its quotes") from None
    for word in words:
        if word.startswith("--gin_file="):
            files.append(word.removeprefix("--gin_file="))
        elif word.startswith("--gin.") and "=" in word:
            bindings.append(word.removeprefix("--gin."))
        else:
            raise UserError(
                f"--also='{also}': '{word}' is neither --gin_file=FILE nor --gin.NAME=VALUE"
            )
    if not words:
        raise UserError("--also is empty: pass flags, as in --also='--gin.NAME=VALUE'")
    return files, bindings
