"""The settings under which a run is evaluated: the plain setting and one for each --also."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Callable
from typing import Any

from etils import epath

from fire_lm.errors import UserError
from fire_lm.experiment import Experiment, UnusedBinding
from fire_lm.measures.base import Evaluated, Measure
from fire_lm.runs.evaluated import configuration


@dataclasses.dataclass(frozen=True)
class Setting:
    """A way of evaluating a run's checkpoints.

    Attributes:
      also: The value of --also, which contains additional flags; empty for the plain setting.
      config: The configuration, with the changes from the command line and --also.
      evaluated: The model with these changes.
      measure: What is measured.
    """

    also: str
    config: Experiment
    evaluated: Evaluated
    measure: Measure

    @property
    def identity(self) -> Any:
        """The values that determine the rows; equivalent settings have the same values."""
        return self.evaluated.variant, self.measure.identity(self.evaluated)

    def check(self) -> None:
        """Raise UserError for problems that would affect every checkpoint of the run."""
        self.measure.check(self.evaluated)

    def check_apart(self, other: Setting) -> None:
        """Raise UserError if this setting's rows could be confused with those of `other`."""
        if self.evaluated.variant == other.evaluated.variant:
            if problem := self.measure.clash(self.evaluated, other.measure):
                raise UserError(f"--also='{self.also}' {problem}")


# A function that returns the measure that the configuration of a run describes, or raises UserError
# if the run has no such measure.
Make = Callable[[Experiment, epath.Path], Measure]


def resolved(
    make: Make, arguments: argparse.Namespace, workdir: epath.Path
) -> tuple[list[Setting], dict[str, str]]:
    """Return the settings that affect this run, and the reason for each --also that does not.

    Raises:
      UserError: A setting is invalid, or the rows of two settings could be confused.
    """
    found = [_setting(make, arguments, workdir, "")]
    found[0].check()
    idle = {}
    for also in arguments.also:
        try:
            setting = _setting(make, arguments, workdir, also)
        except UnusedBinding as error:
            idle[also] = str(error)
            continue
        setting.check()
        same = [other.also for other in found if other.identity == setting.identity]
        if same:
            idle[also] = (
                f"it is equivalent to --also='{same[0]}'" if same[0] else "it has no effect"
            )
        else:
            for other in found:
                setting.check_apart(other)
            found.append(setting)
    return found, idle


def _setting(make: Make, arguments: argparse.Namespace, workdir: epath.Path, also: str) -> Setting:
    more = flags_of(also) if also else ([], [])
    config, variant = configuration(arguments, workdir, *more)
    evaluated = Evaluated(
        *(workdir, config.label, variant, config.model),
        train_length=int(config.values(config.kind).get("train_length") or 0),
        trained_on=lambda: config.train.data,
    )
    return Setting(also, config, evaluated, make(config, workdir))


def flags_of(also: str) -> tuple[list[str], list[str]]:
    """Return the gin files and the bindings in the value of one --also.

    Raises:
      UserError: The value is empty, contains other arguments or has unbalanced quotes.
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
