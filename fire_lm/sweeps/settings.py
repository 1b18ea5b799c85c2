"""The settings under which a run is evaluated: the plain setting and one for each --also."""

from __future__ import annotations

import abc
import argparse
import dataclasses
import shlex
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

from etils import epath

from fire_lm.errors import UserError
from fire_lm.experiment import Experiment, UnusedBinding
from fire_lm.processes import say_once
from fire_lm.runs.evaluated import configuration


@dataclasses.dataclass(frozen=True)
class Setting(abc.ABC):
    """A way of evaluating a run's checkpoints.

    Attributes:
      also: The value of --also, which contains additional flags; empty for the plain setting.
      config: The experiment, with the changes from the command line and --also.
      variant: The name, in tables, of the changes to the model since training.
    """

    also: str
    config: Experiment
    variant: str

    @property
    @abc.abstractmethod
    def rows(self) -> dict[str, Any]:
        """The values that determine the rows; equivalent settings have the same values."""

    @abc.abstractmethod
    def check(self, workdir: epath.Path) -> None:
        """Raise UserError for problems that would affect every checkpoint of the run.

        Without this check, other settings would be evaluated before the problem was found.
        """

    @abc.abstractmethod
    def check_apart(self, other: Self) -> None:
        """Raise UserError if this setting's rows could be confused with those of `other`."""


_Setting = TypeVar("_Setting", bound=Setting)
# A function that creates a setting from its --also, its configuration and its variant's name.
Make = Callable[[str, Experiment, str], _Setting]


def settings(
    make: Make[_Setting], arguments: argparse.Namespace, workdir: epath.Path
) -> list[_Setting]:
    """Return the plain setting and the setting of each --also that affects this run.

    Every other --also is reported and skipped.
    """
    found, idle = resolved(make, arguments, workdir)
    for also, why in idle.items():
        say_once(f"{workdir}: --also='{also}' is skipped: {why}")
    return found


def resolved(
    make: Make[_Setting], arguments: argparse.Namespace, workdir: epath.Path
) -> tuple[list[_Setting], dict[str, str]]:
    """Return the settings that affect this run, and the reason for each --also that does not.

    Raises:
      UserError: A setting is invalid, or the rows of two settings could be confused.
    """
    found = [make("", *configuration(arguments, workdir))]
    found[0].check(workdir)
    idle = {}
    for also in arguments.also:
        files, bindings = flags_of(also)
        try:
            one = make(also, *configuration(arguments, workdir, files, bindings))
        except UnusedBinding as error:
            idle[also] = str(error)
            continue
        one.check(workdir)
        same = [other.also for other in found if other.rows == one.rows]
        if same:
            idle[also] = (
                f"it is equivalent to --also='{same[0]}'" if same[0] else "it has no effect"
            )
        else:
            for other in found:
                one.check_apart(other)
            found.append(one)
    return found, idle


def check_effects(
    make: Make[_Setting], arguments: argparse.Namespace, workdirs: Iterable[epath.Path]
) -> None:
    """Raise UserError if the value of an --also affects none of the runs."""
    if not arguments.also:
        return
    idle = [resolved(make, arguments, workdir)[1] for workdir in workdirs]
    for also in arguments.also:
        if idle and all(also in of_run for of_run in idle):
            raise UserError(
                f"--also='{also}' changes nothing for any of these runs: {idle[0][also]}\n"
                "correct or omit this flag"
            )


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
