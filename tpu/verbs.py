"""The functions that implement the verbs of `python -m tpu`."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import yaml
from ml_collections import ConfigDict

from fire_lm import cli
from fire_lm.cli.argument_checks import check_for_tasks
from fire_lm.errors import UserError
from tpu import bucket, checks, cluster, cost, gke, grid_verb, tables
from tpu import image as images
from tpu.commands import Calls
from tpu.flags import check_experiment, experiment_flags, gin_flags, own_file
from tpu.job import Job, bindings_of, check_name
from tpu.launch import (
    attempt,
    backend_of,
    check_before,
    check_data,
    experiment_of,
    preflight_flags,
    prepared,
    tell_cost,
    where_of,
)

if TYPE_CHECKING:
    from fire_lm.experiment import Experiment

LONGEST_EXISTING = 63  # the limit for names of queued resources


def image(arguments: argparse.Namespace) -> None:
    """Build the image of this commit."""
    where, calls = where_of(arguments)
    images.check_registry(where.image)
    attempt(lambda: images.check_committed(where), calls)
    images.build(images.tagged(where), where, calls)


def create(arguments: argparse.Namespace) -> None:
    """Request TPUs without starting a job."""
    where, calls = where_of(arguments)
    _only_queued(where, "create")
    name = check_name(arguments.name)
    checks.check_place(where)
    check_before(where, calls)
    backend_of(where, calls).create(Job(name, (), cluster.run_directory(where, name)))


def setup(arguments: argparse.Namespace) -> None:
    """Pull the image on every host and check that every host can write to the bucket."""
    where, calls = where_of(arguments)
    _only_queued(where, "setup")
    attempt(lambda: images.check_committed(where), calls)
    where.image = images.tagged(where)
    backend_of(where, calls).setup(check_name(arguments.name))


def _only_queued(where: ConfigDict, verb: str) -> None:
    if where.gke_context:
        raise UserError(
            f"`{verb}` applies only to queued resources: on GKE, run `pretrain` directly"
        )


def pretrain(arguments: argparse.Namespace) -> None:
    """Train the run `gs://BUCKET/runs/NAME` to its end, for the verb `pretrain` or `finetune`."""
    where, calls = where_of(arguments)
    flags = experiment_flags(arguments)
    config = experiment_of(flags, arguments.verb, calls)
    job = training_job(arguments.name, where, flags, config, arguments.verb)
    checks.check_place(where)
    expected: cost.Training | str = cost.unknown("INIT_FROM was not read", where)
    if config is None:  # a dry run, which has said why
        checks.check_bindings(arguments.bindings, where)
    else:
        job = dataclasses.replace(job, slices=checks.check_run(config, where))
        check_data([config], where, calls)
        expected = cost.of_training(config, where)
    compiled = [preflight_flags(job.folder, flags)]
    prepared(job, job.folder, arguments, where, calls, compiled, expected=expected)()


finetune = pretrain
grid = grid_verb.run


def training_job(
    name: str,
    where: ConfigDict,
    flags: Sequence[str],
    config: Experiment | None,
    verb: str = "pretrain",
) -> Job:
    """Return the job that trains the run `name`."""
    workdir = cluster.run_directory(where, check_name(name))
    command = ("fire-lm", verb, f"--workdir={workdir}", *flags)
    return Job(name, (command,), workdir, bindings_of(config) if config else "")


def render(arguments: argparse.Namespace) -> None:
    """Print the manifest that `pretrain` would apply to a GKE cluster."""
    where, _ = where_of(arguments)
    checks.check_place(where)
    says = Calls(dry_run=True)
    attempt(lambda: checks.check_manifest_is_used(where), says)
    attempt(lambda: checks.check_context(where), says)
    attempt(lambda: images.check_committed(where), says)
    where.image = images.tagged(where)
    flags = experiment_flags(arguments)
    config = check_experiment(flags)
    job = training_job(arguments.name, where, flags, config)
    checks.check_run(config, where)
    print(yaml.safe_dump(gke.manifest(job, where), sort_keys=False), end="")


def sweep(arguments: argparse.Namespace) -> None:
    """Run `fire-lm sweep RUN ...` as a separate job; each RUN is a run's name or path."""
    where, calls = where_of(arguments)
    paths = _run_paths(arguments.runs, where)
    folder = f"gs://{where.bucket}/sweeps/{check_name(arguments.name)}"
    output = arguments.output or (folder if len(paths) > 1 else "")
    if output and "://" not in output:
        raise UserError(f"--output={output} would be lost with the TPUs: choose a gs:// path")
    flags = [*([f"--output={output}"] if output else []), *gin_flags(arguments), *arguments.rest]
    asked = cli.parse(["sweep", *paths, *flags])
    checks.check_bindings(arguments.bindings, where)
    job = Job(arguments.name, (("fire-lm", "sweep", *paths, *flags),), folder, once=False)
    follow = prepared(job, "", arguments, where, calls)
    tell_cost(job, paths, asked, arguments.bindings, where, calls)
    follow()


def evaluate(arguments: argparse.Namespace) -> None:
    """Run `fire-lm evaluate RUN ...` on downstream tasks as a separate job; see `sweep`."""
    from fire_lm.runs.find import split_steps  # imports JAX

    where, calls = where_of(arguments)
    paths = _run_paths(arguments.runs, where)
    flags = [*gin_flags(arguments), *arguments.rest]
    asked = cli.parse(["evaluate", *paths, *flags])
    check_task_evaluation(asked)
    checks.check_bindings(arguments.bindings, where)
    folder = f"gs://{where.bucket}/evaluations/{check_name(arguments.name)}"
    job = Job(arguments.name, (("fire-lm", "evaluate", *paths, *flags),), folder, once=False)
    lengths = [f"--gin.evaluate.lengths={asked.lengths}"] if asked.lengths else []
    runs = dict.fromkeys(split_steps(path)[0] for path in paths)
    compiled = [preflight_flags(run, [*flags, *lengths]) for run in runs]
    follow = prepared(job, "", arguments, where, calls, compiled)
    bindings = [*arguments.bindings, *(flag.removeprefix("--gin.") for flag in lengths)]
    tell_cost(job, paths, asked, bindings, where, calls)
    follow()


def check_task_evaluation(asked: argparse.Namespace) -> None:
    """Raise UserError unless the arguments of `fire-lm evaluate` select a downstream task."""
    from fire_lm.experiment import evaluates_a_task  # imports JAX

    if not evaluates_a_task(asked.gin_file, asked.bindings, asked.gin_search_paths):
        raise UserError(
            f"evaluate needs a downstream task: {own_file(asked.gin_file, 'tasks')}\n"
            "`python -m tpu grid` evaluates runs on their synthetic tasks"
        )
    check_for_tasks(asked)


def _run_paths(runs: Sequence[str], where: ConfigDict) -> list[str]:
    """Return the paths of `runs`, which may contain names and paths."""
    return [run if "://" in run else cluster.run_directory(where, run) for run in runs]


def status(arguments: argparse.Namespace) -> None:
    """Print the resources in the project and zone and, if NAME is given, each host of that job."""
    where, calls = where_of(arguments)
    backend = backend_of(where, calls)
    rows = backend.listing()
    if calls.dry_run:
        if arguments.name:
            backend.hosts(check_name(arguments.name, LONGEST_EXISTING))
        return
    tables.show(rows, where, lambda folder: bucket.progress(folder, calls), arguments.name)
    if arguments.name:
        for line in backend.hosts(check_name(arguments.name, LONGEST_EXISTING)):
            print(line)


def logs(arguments: argparse.Namespace) -> None:
    """Print the output of a job on one host."""
    where, calls = where_of(arguments)
    name = check_name(arguments.name, LONGEST_EXISTING)
    backend_of(where, calls).logs(name, arguments.host, arguments.lines, arguments.follow)


def stop(arguments: argparse.Namespace) -> None:
    """Make a job save its state and end, without deleting the requested resources."""
    where, calls = where_of(arguments)
    name = check_name(arguments.name, LONGEST_EXISTING)
    backend_of(where, calls).stop(name)
    if not calls.dry_run:
        print(
            f"{name} is saving and will end; {cluster.command('delete', where, name)} then "
            "releases any TPUs that it still holds"
        )


def delete(arguments: argparse.Namespace) -> None:
    """End a job and release its TPUs."""
    where, calls = where_of(arguments)
    name = check_name(arguments.name, LONGEST_EXISTING)
    outcome = backend_of(where, calls).delete(name)
    if not calls.dry_run:
        print(f"{name}: {outcome}")
