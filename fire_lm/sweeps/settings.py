"""Settings that `fire-lm sweep` scores a run under: as it was trained, and each --also beside."""

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

# What decides rows besides the model.
_SCORING = ("data", "split", "lengths", "protocols", "stride", "tokens")


@dataclasses.dataclass(frozen=True)
class Setting:
    """A way of scoring a run's checkpoints.

    Attributes:
      also: the flags that it has more than the plain one; empty for that.
      variant: what its model does otherwise than in training, by its name in the table.
    """

    also: str
    config: Config
    variant: str

    @functools.cached_property
    def asked(self) -> LengthSweep:
        value: LengthSweep = self.config.call("length_sweep")
        return value

    @property
    def rows(self) -> dict[str, Any]:
        """The values that determine the rows; equal for two settings that are the same."""
        return {"variant": self.variant, **{name: getattr(self.asked, name) for name in _SCORING}}

    def claim(self, step: int) -> str:
        """The name under which one sweeper has a checkpoint; of the text a hash."""
        text = repr([self.rows[name] for name in ("data", "split")])
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{step}-{self.variant or 'plain'}-{digest}"


def settings(arguments: argparse.Namespace, workdir: epath.Path) -> list[Setting]:
    """The plain one, and each --also that has an effect on this run; says which have none."""
    found, idle = resolved(arguments, workdir)
    for one in found:
        check_split(one)
    for also, why in idle.items():
        say_once(f"{workdir}: --also='{also}' is left out: {why}")
    return found


def check_split(setting: Setting) -> None:
    """Raises UserError for a split that the text does not have, where that is quickly told: else
    what comes before this setting would be scored first."""
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
    """(settings, why the others do not apply to this run)."""
    found = [Setting("", *configuration(arguments, workdir))]
    text_of_run(found[0].config, workdir)  # refuses a run that has none
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
            idle[also] = f"it asks for what --also='{same[0]}' does" if same[0] else "no effect"
        else:
            for other in found:
                check_named_apart(one, other)
            found.append(one)
    return found, idle


def check_named_apart(one: Setting, other: Setting) -> None:
    """Raises UserError for two texts that the table would call the same."""
    names = [
        {(dataset_label(part), part.construction) for part in setting.rows["data"].parts}
        for setting in (one, other)
    ]
    same_rows = one.variant == other.variant and one.rows["split"] == other.rows["split"]
    if not (same_rows and (both := names[0] & names[1])):
        return
    if one.rows["data"] != other.rows["data"]:
        raise UserError(
            f"--also='{one.also}' scores another text that is called {min(both)[0]}, too: rows "
            "could not be distinguished\ngive the data sets names of their own "
            "(fire-lm corpus --name=NAME)"
        )
    if one.rows["tokens"] != other.rows["tokens"]:
        raise UserError(
            f"--also='{one.also}' scores another amount of {min(both)[0]}: rows of both could not "
            "stand beside each other\nlength_sweep.tokens is given once, for all settings"
        )


def check_effects(arguments: argparse.Namespace, workdirs: Iterable[epath.Path]) -> None:
    """Raises UserError if an --also has no effect on any of the runs."""
    idle = [resolved(arguments, workdir)[1] for workdir in workdirs] if arguments.also else []
    for also in arguments.also:
        if idle and all(also in of_run for of_run in idle):
            raise UserError(
                f"--also='{also}' adds nothing to any of these runs: {idle[0][also]}\n"
                "leave it out, or fix it"
            )


def flags_of(also: str) -> tuple[list[str], list[str]]:
    """The gin files and bindings of one --also.

    Raises:
      UserError: it holds anything else, or nothing.
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
        raise UserError("--also is empty: it takes flags, as in --also='--gin.NAME=VALUE'")
    return files, bindings
