"""`fire-lm pretrain` and `fire-lm finetune`, which start or resume a training run."""

from __future__ import annotations

import argparse

import jax
from etils import epath

import fire_lm
from fire_lm import training
from fire_lm.errors import RunFailed, UserError
from fire_lm.experiment import Statements, check_blocks, check_settings, kind_of, read_gin
from fire_lm.hardware.program_cache import keep_programs
from fire_lm.processes import initialize_distributed
from fire_lm.runs.changed import discard_results_after, other_parameters
from fire_lm.runs.inherited import training_experiment
from fire_lm.runs.inputs import note_changed_modules
from fire_lm.runs.resuming import Start
from fire_lm.runs.saved import (
    best_steps,
    newest_config,
    read_saved,
    save_config,
    saved_run,
    tokenized_of_run,
)


def run(arguments: argparse.Namespace) -> None:
    """Start or resume the training run in `--workdir`, or describe it with `--dry_run`."""
    keep_programs()
    workdir, allow_change = arguments.workdir, arguments.allow_config_change
    if not workdir and not arguments.dry_run:
        raise UserError(f"{arguments.verb} needs --workdir=DIR, the run directory (or --dry_run)")
    stated = read_gin(arguments.gin_file, arguments.bindings, arguments.gin_search_paths)
    check_verb(stated, arguments.verb)
    begun = read_saved(workdir) if workdir else None
    experiment = training_experiment(stated, arguments.imports, begun)
    check_blocks(experiment)
    check_settings(experiment)
    initialize_distributed()
    start = Start(experiment, workdir or "", begun, allow_change)
    if arguments.dry_run:
        print_plan(start)
        return
    with training.telling_others():
        start_or_resume(start)


def check_verb(stated: Statements, verb: str) -> None:
    """Raise UserError if `pretrain` is given gin files for `finetune`, or vice versa."""
    if kind_of(stated) == verb:
        return
    if verb == "pretrain":
        raise UserError("the gin files describe finetuning: use `fire-lm finetune`")
    raise UserError(
        "the gin files do not describe finetuning: give --pairs=FILE.jsonl, or a file from\n"
        "configs/finetune, as in fire-lm finetune --gin_file=configs/finetune/scrolls_qasper.gin "
        "--gin.INIT_FROM=RUN --workdir=DIR"
    )


def print_plan(start: Start) -> None:
    """Print the configuration of a run and the plan of its training."""
    experiment = start.stated
    try:
        experiment = start.experiment
    except (UserError, RunFailed) as error:
        reason = str(error).partition("\n")[0]
        print(f"{reason}; the configuration below lacks the lengths that the run would keep")
    leads = jax.process_index() == 0
    if leads:
        print(experiment.text())
    start.check_new()
    run = experiment.train
    plan = training.describe(run)
    if leads:
        print(plan)
        if note := run.data.note(run.train_length):
            print(note)


def start_or_resume(start: Start) -> None:
    """Check the run directory and INIT_FROM, and train until the last step."""
    leads = jax.process_index() == 0  # one process prints and saves the configuration
    experiment, workdir, source = start.experiment, start.workdir, start.source
    start.check()
    if experiment.kind == "finetune" and not source:
        raise UserError("finetune needs --gin.INIT_FROM=RUN[@STEP], the run to start from")
    if source and not start.has_checkpoints:
        if experiment.kind == "finetune":
            tokenized_of_run(experiment, source)  # checks that the vocabulary is the source's
        saved_source = saved_run(source, "INIT_FROM")
        if leads:
            print(start.compared_with(saved_source))
    if start.has_checkpoints:
        note_changed_modules(workdir)
    run = start.run
    note = run.data.note(run.train_length)

    def check_again() -> None:
        """Check the directory again, to which another run may have written."""
        saved = read_saved(workdir)
        if saved != start.begun:
            start.check_same_experiment(saved)

    def record(resumed_from: int) -> None:
        """Save the configuration, after discarding results that a changed one makes obsolete."""
        if leads:
            if start.begun and other_parameters(experiment, start.begun):
                discard_results_after(workdir, resumed_from)
            save_config(experiment, workdir, resumed_from)

    training.pretrain(
        run,
        workdir,
        model_of_source=lambda: saved_run(source, "INIT_FROM").experiment.model,
        heading="".join(f"{text}\n" for text in (experiment.text(), note) if text),
        once_held=check_again,
        after_first_step=record,
        ranked=lambda: best_steps(epath.Path(workdir), experiment.label),
        since=fire_lm.STARTED,
    )
    # A finished run takes no step and saves no configuration, so a lost one is saved again here.
    if leads and newest_config(workdir) is None:
        save_config(experiment, workdir)
