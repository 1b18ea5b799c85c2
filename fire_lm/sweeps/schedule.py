"""The order of evaluations: all chosen checkpoints in turn, or each new one during training.

`fire-lm sweep` and `fire-lm evaluate` share this module; `Command` defines how a checkpoint is
evaluated.
"""

from __future__ import annotations

import argparse
import time

import jax

from fire_lm.checkpoints import available_steps, checkpoint_damage, choose_step
from fire_lm.errors import FireLMError, RunFailed, UserError
from fire_lm.processes import agreed, by_first, say
from fire_lm.runs.find import SEVERAL, find_runs
from fire_lm.storage import place, require_folder
from fire_lm.sweeps.command import Command
from fire_lm.sweeps.settings import flags_of
from fire_lm.sweeps.survey import Survey

# The number of seconds between checks of an ongoing training run, or of a checkpoint that another
# job is evaluating.
_EVERY = 10.0


def check_output(arguments: argparse.Namespace) -> None:
    """Check --output before any other work, because --follow may wait for runs.

    Raises:
      UserError: --output is not a writable folder and cannot become one, or it is missing although
        --follow names several runs.
    """
    if arguments.output:
        require_folder(place(arguments.output), "--output")
    elif arguments.follow and len(arguments.runs) > 1:
        raise UserError(SEVERAL)


def evaluate_checkpoints(command: Command) -> None:
    """Evaluate the checkpoints that the command line specifies.

    If there are several checkpoints, one that cannot be evaluated is reported and skipped.

    Raises:
      UserError: An argument is invalid.
      RunFailed: At least one checkpoint could not be evaluated.
    """
    if command.combines:
        check_output(command.arguments)
    for also in command.arguments.also:
        flags_of(also)  # Check these first, because --follow may wait for runs.
    if command.arguments.follow:
        follow(command)
        return
    checkpoints, top = by_first(lambda: chosen_checkpoints(command))
    command.check(dict.fromkeys(place(name) for name, _ in checkpoints))
    if command.arguments.dry_run:
        for name, step in checkpoints:
            command.describe(place(name), step)
        return
    failures: dict[tuple[str, int], FireLMError] = {}
    for name, step in checkpoints:
        try:
            while not command.evaluate(place(name), step):
                say(
                    f"{name}@{step} is being evaluated by another process: waiting for that process"
                )
                time.sleep(_EVERY)
        except FireLMError as error:  # For example, a checkpoint was removed in the meantime.
            reraise_unless_shared(error)
            failures[name, step] = error
            if len(failures) == len(checkpoints):
                raise
            say(f"{name}@{step} is skipped: {error}")
    command.combine([pair for pair in checkpoints if tuple(pair) not in failures], top)
    if failures:
        problems = "\n".join(f"{name}@{step}: {error}" for (name, step), error in failures.items())
        raise RunFailed(
            f"{len(failures)} of {len(checkpoints)} checkpoints could not be scored\n{problems}"
        )


def reraise_unless_shared(error: FireLMError) -> None:
    """Raise an error that only this process of a job has, which ends the job.

    If this process continued with the next checkpoint, the others would still evaluate the previous
    one, and the results of the two checkpoints would be mixed.
    """
    if jax.process_count() > 1 and not error.everywhere:
        raise error


def chosen_checkpoints(command: Command) -> tuple[list[tuple[str, int]], str]:
    """Return the distinct checkpoints to evaluate and the folder for the combined results.

    Damaged checkpoints that `RUN@all` selects are reported and skipped.

    Raises:
      UserError, RunFailed: A requested checkpoint is missing or damaged, or none is intact.
    """
    runs, named = find_runs(command.arguments.runs)
    top = command.folder([run.workdir for run in runs], named)
    checkpoints: list[tuple[str, int]] = []
    for run in runs:
        name = str(run.workdir)
        if run.all:
            for step in available_steps(run.workdir):
                if problem := checkpoint_damage(run.workdir, step):
                    damaged = f"checkpoint {step} of {name} is damaged and will be skipped"
                    print(f"{damaged}: {problem}", flush=True)
                else:
                    checkpoints.append((name, step))
        else:
            checkpoints += [(name, choose_step(run.workdir, step)) for step in run.steps or (None,)]
    if not checkpoints:
        raise RunFailed("there is no intact checkpoint to evaluate")
    return list(dict.fromkeys(checkpoints)), top


def follow(command: Command) -> None:
    """Evaluate each checkpoint of ongoing training runs, oldest first, until training ends.

    Rows are written as they are computed, so the same command resumes after it has been killed.

    Raises:
      UserError: --dry_run is also set, or none of the runs can be evaluated.
      RunFailed: Training has ended, and either some intact checkpoints could not be scored or there
        were none.
    """
    if command.arguments.dry_run:
        raise UserError("--follow and --dry_run cannot be used together: omit one of them")
    survey, checked = Survey(command), False
    unfit: set[str] = set()
    while True:
        due, top, over = by_first(survey.look)
        if not checked and (checked := agreed(survey.begun)):
            command.check(map(place, agreed(list(survey.runs))))
        scored = 0
        for name, step in due:
            try:
                if command.evaluate(place(name), step):
                    survey.leave(name, step)
                    scored += 1
            except (RunFailed, UserError) as error:
                reraise_unless_shared(error)
                if isinstance(error, UserError):  # One run does not end the others' evaluation.
                    unfit.add(name)
                    if agreed(survey.begun) and unfit >= set(agreed(list(survey.runs))):
                        raise
                survey.failed(name, step, str(error))
        if scored:
            command.combine(survey.scored(), top)
        if over and not due:
            by_first(survey.judge)
            return
        if not scored:
            time.sleep(_EVERY)
