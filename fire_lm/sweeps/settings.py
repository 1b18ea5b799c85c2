"""The settings under which a run is evaluated: the plain setting and one for each --also."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Callable

from etils import epath

from fire_lm.errors import UserError
from fire_lm.experiment import Experiment, UnusedBinding
from fire_lm.measures.base import Measure, RunModel
from fire_lm.measures.recorded_settings import check_settings
from fire_lm.runs.variants import experiment_at_evaluation
from fire_lm.training import trained_length


@dataclasses.dataclass(frozen=True)
class Setting:
    """A way of evaluating a run's checkpoints.

    Attributes:
      also: The value of --also, which contains additional flags; empty for the plain setting.
      experiment: The experiment, with the changes from the command line and --also.
      run_model: The model with these changes.
      measure: What is measured.
    """

    also: str
    experiment: Experiment
    run_model: RunModel
    measure: Measure


# A function that returns the measure that the configuration of a run describes, or raises UserError
# if the run has no such measure.
MeasureOf = Callable[[Experiment, epath.Path], Measure]


def resolved_settings(
    measure_of: MeasureOf, arguments: argparse.Namespace, workdir: epath.Path
) -> tuple[list[Setting], dict[str, str]]:
    """Return the settings that affect this run, and the reason for each --also that does not.

    Raises:
      UserError: A setting is invalid, or its rows could be confused with those of another setting
        or in the table of the run.
    """
    plain = _setting(measure_of, arguments, workdir, "")
    plain.measure.check(plain.run_model)
    check_settings(plain.measure, workdir)
    settings, idle = [plain], {}
    for also in arguments.also:
        try:
            new = _setting(measure_of, arguments, workdir, also)
        except UnusedBinding as error:
            idle[also] = str(error)
            continue
        new.measure.check(new.run_model)
        same_variant = [s for s in settings if s.run_model.variant == new.run_model.variant]
        identity = new.measure.identity(new.run_model)
        same = [s for s in same_variant if s.measure.identity(s.run_model) == identity]
        if same:
            other = same[0].also
            idle[also] = f"it is equivalent to --also='{other}'" if other else "it has no effect"
            continue
        if new.measure.recorded() != plain.measure.recorded():
            raise UserError(
                f"--also='{also}' computes other rows of {new.measure.name}, which the table would "
                f"not tell apart: move {plain.measure.file(workdir)} away, and run a separate "
                "command"
            )
        for setting in same_variant:
            if problem := new.measure.clash(new.run_model, setting.measure):
                raise UserError(f"--also='{also}' {problem}")
        settings.append(new)
    return settings, idle


def _setting(
    measure_of: MeasureOf, arguments: argparse.Namespace, workdir: epath.Path, also: str
) -> Setting:
    more = flags_of(also) if also else ([], [])
    experiment, variant = experiment_at_evaluation(arguments, workdir, *more)
    run_model = RunModel(
        *(workdir, experiment.label, variant, experiment.model),
        train_length=trained_length(experiment.values(experiment.kind)),
        trained_on=lambda: experiment.train.data,
    )
    return Setting(also, experiment, run_model, measure_of(experiment, workdir))


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
