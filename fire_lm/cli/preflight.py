"""`fire-lm preflight`, which compiles the programs of a configuration and prints a report."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from fire_lm.checkpoints import (
    array_paths,
    available_steps,
    check_arrays,
    check_params,
    check_processes,
    choose_step,
    split_run,
)
from fire_lm.errors import RunFailed, UserError
from fire_lm.experiment import Statements, check_blocks, check_settings, read_gin
from fire_lm.generation import Beam, Greedy
from fire_lm.hardware.slices import parse_slice
from fire_lm.measures import LengthSweep, lengths_refused
from fire_lm.measures.task_scores import TextEvaluation
from fire_lm.models import Decoder, parameter_shapes
from fire_lm.preflight import bundles, check
from fire_lm.preflight.plan import check_local_paths
from fire_lm.preflight.programs import Compiler, Prompts
from fire_lm.preflight.report import Report
from fire_lm.preflight.tasks import preflight_tasks
from fire_lm.runs.inherited import training_experiment
from fire_lm.runs.resuming import Start
from fire_lm.runs.saved import read_saved, saved_run, tokenized_of_run
from fire_lm.runs.variants import experiment_at_evaluation
from fire_lm.storage import in_bucket, is_folder, place, require_bucket
from fire_lm.training import Pretraining, check_start, ensure_writable
from fire_lm.training.averages import as_saved


def run(arguments: argparse.Namespace) -> None:
    """Run `fire-lm preflight`: compile a run's programs for `--slice` and check the run's inputs.

    The inputs are the configuration and the saved files that the run would read.
    """
    where = parse_slice(arguments.slice)
    workdir = str(place(arguments.workdir)) if arguments.workdir else ""
    if arguments.json:
        check_place_of(arguments.json)
    with tempfile.TemporaryDirectory() as folder:
        bundles.dump_schedules_to(folder)  # before anything loads libtpu
        compiler = Compiler(where, Path(folder))
        stated = read_gin(arguments.gin_file, arguments.bindings, arguments.gin_search_paths)
        if "evaluate" in stated.configurables:
            kind, report = "evaluation", report_on_evaluation(arguments, stated, compiler, workdir)
        else:
            kind, report = "run", report_on_training(arguments, stated, compiler, workdir)
    print(report)
    if arguments.json:
        place(arguments.json).write_text(json.dumps(report.as_json(), indent=1) + "\n")
    if not report.passed:
        raise RunFailed(f"this {kind} would not work on {where}: see the report above")


def report_on_training(
    arguments: argparse.Namespace, stated: Statements, compiler: Compiler, workdir: str
) -> Report:
    """Return the report on a training run.

    The report includes generation with `--generate` and, if the run trains on text, the length
    sweep.
    """
    begun = None
    # The report lists the errors of saved files (`what_is_saved`). Until then, the run is described
    # without whatever cannot be read.
    with contextlib.suppress(UserError, RunFailed):
        begun = read_saved(workdir) if workdir else None
    experiment = training_experiment(stated, arguments.imports, begun)
    check_blocks(experiment)
    check_settings(experiment)
    start = Start(experiment, workdir, begun, arguments.allow_config_change)
    start.check_new()
    with contextlib.suppress(UserError, RunFailed):  # the lengths that the run keeps
        experiment = start.experiment
    train: Pretraining = experiment.train
    with contextlib.suppress(UserError, RunFailed):  # the vocabulary in the run directory
        train = start.run
    score: LengthSweep | None = None
    lengths: list[int] = []
    if not train.data.not_text:
        score = experiment.sweep
        refused = lengths_refused(score.model, score.in_order)
        lengths = [length for length in score.in_order if length not in refused]
    report = check.preflight(
        compiler,
        train,
        score,
        lengths if arguments.all_lengths else lengths[-1:],
        workdir,
        what_is_saved(start, train, compiler.where.hosts),
        prompts_of(arguments),
    )
    local = check_local_paths(experiment, compiler.where)
    return dataclasses.replace(report, checks=[*report.checks, *local])


def report_on_evaluation(
    arguments: argparse.Namespace, stated: Statements, compiler: Compiler, workdir: str
) -> Report:
    """Return the report on the evaluation of a model on downstream tasks.

    The model is that of the run in `workdir` or, if `workdir` is empty, the one that the gin files
    describe.
    """
    if arguments.generate is not None or arguments.beams is not None:
        raise UserError(
            "--generate and --beams have no effect on an evaluation: omit them, and set "
            "EVAL_LENGTHS and evaluate.method instead"
        )
    if arguments.allow_config_change:
        raise UserError("--allow_config_change has no effect on an evaluation: omit it")
    if workdir:
        experiment, _ = experiment_at_evaluation(arguments, place(workdir))
    else:
        experiment = training_experiment(stated, arguments.imports)
    model: Decoder = experiment.model
    evaluation: TextEvaluation = experiment.task
    lengths = list(evaluation.readable_lengths(model, "this model"))

    def checkpoint() -> str:
        step = choose_step(workdir, None)
        check_params(workdir, step, parameter_shapes(model))
        return f"step {step} of {workdir} has the model's parameters"

    return preflight_tasks(
        compiler,
        model,
        evaluation,
        lengths if arguments.all_lengths else lengths[-1:],
        {"checkpoint": checkpoint} if workdir else {},
    )


def prompts_of(arguments: argparse.Namespace) -> Prompts | None:
    """Return the prompts that `--generate` describes, or None if this flag was not given."""
    if arguments.generate is None:
        if arguments.beams is not None:
            raise UserError("--beams needs --generate=BATCHxPROMPTxNEW: give both")
        return None
    method = Greedy() if arguments.beams is None else Beam(arguments.beams)
    batch, length, new_tokens = arguments.generate
    return Prompts(batch, length, new_tokens, method)


def what_is_saved(start: Start, train: Pretraining, hosts: int) -> dict[str, Callable[[], str]]:
    """Return, by title, the checks of the saved files from which the run would resume or start."""
    workdir = start.workdir

    def checkpoint() -> str:
        now = dataclasses.replace(start, begun=read_saved(workdir))
        now.check_same_experiment(now.begun)
        now.run  # noqa: B018 (checks the vocabulary)
        steps = available_steps(workdir)
        if not steps:
            return "none yet"
        state = as_saved(train.abstract_state(), array_paths(workdir, steps[-1]))
        check_arrays(workdir, steps[-1], state)
        check_processes(workdir, steps[-1], hosts)
        return f"continues from step {steps[-1]}"

    def source() -> str:
        if start.has_checkpoints:
            return "not read: the run directory has checkpoints"
        run, _ = split_run(train.init_from)
        if start.stated.kind == "finetune":
            tokenized_of_run(start.stated, run)  # checks that the vocabulary is that of the source
        step, missing = check_start(train, saved_run(run, "INIT_FROM").experiment.model)
        fresh = f"; newly initialised: {', '.join(missing)}" if missing else ""
        return f"starts from the parameters of {run}@{step}{fresh}"

    checks: dict[str, Callable[[], str]] = {}
    if workdir:
        checks["checkpoint"] = checkpoint
    if train.init_from:
        checks["INIT_FROM"] = source
    return checks


def check_place_of(file: str) -> None:
    """Raise UserError, before minutes of compilation, if the JSON file cannot be written."""
    path = place(file)
    require_bucket(path, "--json")
    # Ignore RunFailed: permission to write to a bucket need not include permission to read.
    with contextlib.suppress(RunFailed):
        if is_folder(path):
            raise UserError(f"--json={file} is a folder: give the path of a file")
    if not in_bucket(path) and not path.parent.is_dir():
        raise UserError(f"--json={file}: there is no folder {path.parent}: create it")
    ensure_writable(path.parent, "--json")
