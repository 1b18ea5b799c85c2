"""The functions that implement the verbs of `python -m tpu`."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from ml_collections import ConfigDict

from fire_lm import cli
from fire_lm.cli.argument_checks import check_for_tasks
from fire_lm.errors import RunFailed, UserError
from fire_lm.storage import place, require_folder
from tpu import bucket, checks, cluster, cost, gke, tables
from tpu import grid as grids
from tpu import image as images
from tpu.commands import Calls
from tpu.flags import check_experiment, experiment_flags, for_hosts, gin_flags
from tpu.job import Job, check_name
from tpu.launch import (
    attempt,
    backend_of,
    check_before,
    check_data,
    preflight_flags,
    prepared,
    tell_cost,
    where_of,
)
from tpu.local import LocalJobs, newest_line, only_grid

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
    config = check_experiment(flags, arguments.verb)
    job = training_job(arguments.name, where, flags, config, arguments.verb)
    job = dataclasses.replace(job, slices=checks.check_run(config, where))
    checks.check_place(where)
    check_data([config], where, calls)
    compiled = [preflight_flags(job.folder, flags)]
    expected = cost.of_training(config, where)
    follower = prepared(job, job.folder, arguments, where, calls, compiled, expected=expected)
    if follower is not None:
        follower.follow()


finetune = pretrain


def training_job(
    name: str, where: ConfigDict, flags: Sequence[str], config: Experiment, verb: str = "pretrain"
) -> Job:
    """Return the job that trains the run `name`."""
    workdir = cluster.run_directory(where, check_name(name))
    command = ("fire-lm", verb, f"--workdir={workdir}", *flags)
    return Job(name, (command,), workdir, bindings_of(config))


def bindings_of(config: Experiment) -> str:
    """Return the bindings of the gin files and flags, without defaults, which may gain settings."""
    return "".join(sorted(f"{name} = {value}\n" for name, value in config.bindings.items()))


def render(arguments: argparse.Namespace) -> None:
    """Print the manifest that `pretrain` would apply to a GKE cluster."""
    where, _ = where_of(arguments)
    checks.check_place(where)
    attempt(lambda: checks.check_context(where), Calls(dry_run=True))
    attempt(lambda: images.check_committed(where), Calls(dry_run=True))
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
    flags = [
        *([f"--output={output}"] if output else []),
        *gin_flags(arguments),
        *arguments.rest,
    ]
    asked = cli.parse(["sweep", *paths, *flags])
    checks.check_bindings(arguments.bindings, where)
    job = Job(arguments.name, (("fire-lm", "sweep", *paths, *flags),), folder, once=False)
    follower = prepared(job, "", arguments, where, calls)
    tell_cost(job, paths, asked, arguments.bindings, where, calls)
    if follower is not None:
        follower.follow()


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
    follower = prepared(job, "", arguments, where, calls, compiled)
    bindings = [*arguments.bindings, *(flag.removeprefix("--gin.") for flag in lengths)]
    tell_cost(job, paths, asked, bindings, where, calls)
    if follower is not None:
        follower.follow()


def check_task_evaluation(asked: argparse.Namespace) -> None:
    """Raise UserError unless the arguments of `fire-lm evaluate` select a downstream task."""
    from fire_lm.experiment import evaluates_a_task  # imports JAX

    if not evaluates_a_task(asked.gin_file, asked.bindings, asked.gin_search_paths):
        raise UserError(
            "evaluate needs a downstream task, such as "
            "--gin_file=configs/tasks/scrolls_qasper.gin\n`python -m tpu grid` evaluates runs on "
            "their synthetic tasks"
        )
    check_for_tasks(asked)


def _run_paths(runs: Sequence[str], where: ConfigDict) -> list[str]:
    """Return the paths of `runs`, which may contain names and paths."""
    return [run if "://" in run else cluster.run_directory(where, run) for run in runs]


def grid(arguments: argparse.Namespace) -> None:
    """Run a job for each arm, and then write a table and a figure of all arms."""
    name, flags = check_name(arguments.name), experiment_flags(arguments)
    varied: dict[str, list[str]] = {}
    for binding in arguments.varied:
        key, _, value = binding.partition("=")
        if key == grids.FILES:
            files = [path for path in value.split(",") if path]
            paths = arguments.gin_search_paths
            value = ",".join(for_hosts(path, arguments, paths) for path in files)
        varied.setdefault(key, []).append(value)
    chosen = grids.arms(arguments.positions, arguments.seeds, varied)
    configs = [check_experiment([*flags, *arm.flags]) for arm in chosen]
    scoring = _scoring(configs, arguments.sequences)
    if scoring == ["sweep"]:
        for arm, config in zip(chosen, configs, strict=True):
            config.sweep.lengths_taken(arm.name)

    def jobs_in(folder: str, fire_lm: Sequence[str]) -> dict[grids.Arm, Job]:
        return {
            arm: grids.arm_job(arm, name, folder, flags, fire_lm, scoring, bindings_of(config))
            for arm, config in zip(chosen, configs, strict=True)
        }

    if arguments.local:
        if arguments.cluster or arguments.overrides:
            raise UserError("--local and --cluster exclude each other: omit one of them")
        if arguments.every is not None or arguments.no_preflight:
            raise UserError("--every and --no_preflight have no effect with --local: omit them")
        if "://" in (arguments.output or ""):
            raise UserError(f"--output={arguments.output}: with --local, it must be a local folder")
        folder = str(Path(arguments.output or f"runs/{name}").absolute())
        require_folder(place(folder), "--output")
        jobs = jobs_in(folder, (sys.executable, "-m", "fire_lm"))
        try:
            local_grid(jobs, Path(folder), arguments)
        except RunFailed:  # The results of the other arms are combined nevertheless.
            _combine(scoring, [job for job in jobs.values() if Path(job.mark).exists()], folder)
            raise
        if not arguments.dry_run:
            _combine(scoring, jobs.values(), folder)
        return
    where, calls = where_of(arguments)
    if scoring[0] == "evaluate" and cluster.slice_of(where).hosts > 1:
        raise UserError(
            f"runs on synthetic tasks are evaluated on one host, but {where.accelerator} has "
            "several: choose a slice of one host, such as v4-8, or use --local"
        )
    fitting = [checks.check_run(config, where) for config in configs]
    checks.check_place(where)
    check_data(configs, where, calls)
    folder = cluster.run_directory(where, name)
    jobs = {
        arm: dataclasses.replace(job, slices=slices)
        for (arm, job), slices in zip(jobs_in(folder, ("fire-lm",)).items(), fitting, strict=True)
    }
    costs = [cost.of_training(config, where) for config in configs]
    cloud_grid(jobs, arguments, where, calls, flags, dict(zip(chosen, costs, strict=True)))
    if not calls.dry_run:
        _combine(scoring, jobs.values(), arguments.output or f"runs/{name}")


def _scoring(configs: Sequence[Experiment], sequences: int | None) -> list[str]:
    """Return the verb that scores these experiments, followed by its flags.

    Raises:
      UserError: Some experiments train on text and others on a synthetic task, or `sequences` has
        no effect.
    """
    synthetic = {config.train.data.exercises for config in configs}
    if len(synthetic) > 1:
        raise UserError("some arms train on text and some on a synthetic task: run two grids")
    if synthetic == {True}:
        return ["evaluate", *([f"--sequences={sequences}"] if sequences else [])]
    if sequences:
        raise UserError(
            "--sequences applies only to synthetic tasks, but these arms train on text: omit it"
        )
    return ["sweep"]


def local_grid(jobs: dict[grids.Arm, Job], folder: Path, arguments: argparse.Namespace) -> None:
    """Run the jobs of a grid on this machine, or print their commands in a dry run."""
    if arguments.dry_run:
        for job in jobs.values():
            print("\n".join(shlex.join(command) for command in job.commands))
        return
    # Neither the number of arms left nor an interruption changes the cores of an arm, because the
    # number of cores changes the last bits of results.
    at_once = min(arguments.at_once, len(jobs))
    running = LocalJobs(at_once=at_once)

    def log(arm: grids.Arm) -> Path:
        return folder / "logs" / f"{arm.name}.txt"

    with only_grid(folder), running.signals():
        grids.run(
            list(jobs),
            lambda arm: running.run(jobs[arm], log(arm)),
            is_done=lambda arm: Path(jobs[arm].mark).exists(),
            progress=lambda arm: bucket.last_step(Path(jobs[arm].folder) / "metrics.jsonl"),
            phase=lambda arm: newest_line(log(arm)),
            at_once=at_once,
            stop=running.stop,
            log=lambda arm: str(log(arm)),
            every=_SHOW_EVERY,
        )


def cloud_grid(
    jobs: dict[grids.Arm, Job],
    arguments: argparse.Namespace,
    where: ConfigDict,
    calls: Calls,
    flags: Sequence[str],
    costs: Mapping[grids.Arm, cost.Training],
) -> None:
    """Run the jobs of a grid on a cluster, or print their calls in a dry run."""
    leave = threading.Event()
    attempt(lambda: images.check_committed(where), calls)
    where.image = images.tagged(where)  # The tag is set once, so that all arms run the same code.
    print(cost.table({arm.name: expected for arm, expected in costs.items()}), flush=True)

    def run_arm(arm: grids.Arm) -> None:
        job = jobs[arm]
        compiled = [preflight_flags(job.folder, [*flags, *arm.flags])]
        follower = prepared(job, job.folder, arguments, where, calls, compiled, leave, costs[arm])
        if follower is not None:
            follower.follow()

    if calls.dry_run:
        for arm in jobs:
            print(f"\n## {arm.name}")
            run_arm(arm)
        return
    grids.run(
        list(jobs),
        run_arm,
        is_done=lambda arm: False,  # The follower checks this, and releases TPUs that still exist.
        progress=lambda arm: bucket.progress(jobs[arm].folder, calls),
        at_once=arguments.at_once,
        stop=leave.set,
    )


def _combine(scoring: Sequence[str], jobs: Iterable[Job], output: str) -> None:
    """Write a table and a figure of the jobs' arms, whose rows already exist, if there are any.

    Other runs in the folder of the grid may still be training, so they are left out.
    """
    runs = [job.folder for job in jobs]
    if not runs:
        return
    command = [sys.executable, "-m", "fire_lm", *scoring, *runs, f"--output={output}"]
    if code := subprocess.run(command, check=False).returncode:
        raise RunFailed(
            f"writing the combined table failed (exit code {code}): {shlex.join(command)}"
        )


_SHOW_EVERY = 10.0  # seconds between lines about the progress of a local grid


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
            f"{name} is saving and will end; `python -m tpu delete {name}` then releases any TPUs "
            "that it still holds"
        )


def delete(arguments: argparse.Namespace) -> None:
    """End a job and release its TPUs."""
    where, calls = where_of(arguments)
    name = check_name(arguments.name, LONGEST_EXISTING)
    outcome = backend_of(where, calls).delete(name)
    if not calls.dry_run:
        print(f"{name}: {outcome}")
