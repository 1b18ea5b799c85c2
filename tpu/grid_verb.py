"""`python -m tpu grid`: the checks of a grid's arms, and their jobs here or on a cluster."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ml_collections import ConfigDict

from fire_lm.errors import RunFailed, UserError
from fire_lm.storage import place, require_folder
from tpu import bucket, checks, cluster, cost
from tpu import grid as grids
from tpu import image as images
from tpu.commands import Calls
from tpu.flags import check_experiment, experiment_flags, for_hosts
from tpu.job import Job, bindings_of, check_name
from tpu.launch import attempt, check_data, preflight_flags, prepared, tell, where_of
from tpu.local import LocalJobs, newest_line, only_grid

if TYPE_CHECKING:
    from fire_lm.experiment import Experiment
    from fire_lm.measures import Measure

_SHOW_EVERY = 10.0  # seconds between lines about the progress of a local grid
_T = TypeVar("_T")


def run(arguments: argparse.Namespace) -> None:
    """Run a job for each arm, and then write a table and a figure of all arms."""
    from fire_lm.preflight.plan import check_scoring  # imports JAX

    name, flags = check_name(arguments.name), experiment_flags(arguments)
    varied: dict[str, list[str]] = {}
    for binding in arguments.varied:
        key, _, value = binding.partition("=")
        if key == grids.FILES:
            files = [path for path in value.split(",") if path]
            paths = arguments.gin_search_paths
            value = ",".join(for_hosts(path, arguments, paths) for path in files)
        varied.setdefault(key, []).append(value)
    for bound in (binding.partition("=")[0] for binding in arguments.bindings):
        if bound == "SEED" or bound in varied:
            instead = "--seeds" if bound == "SEED" else f"--vary.{bound}"
            raise UserError(f"--gin.{bound} has no effect, because {instead} sets it for each arm")
    chosen = grids.arms(arguments.positions, arguments.seeds, varied)
    configs = of_arms(chosen, lambda arm: check_experiment([*flags, *arm.flags]))
    scoring, measure = _scoring(list(configs.values()), arguments), _measure(arguments)
    with contextlib.redirect_stdout(sys.stderr):  # the stdout of a dry run is for calls
        of_arms(chosen, lambda arm: check_scoring(configs[arm], arm.name, measure))

    def jobs_in(folder: str, fire_lm: Sequence[str]) -> dict[grids.Arm, Job]:
        return {
            arm: grids.arm_job(arm, name, folder, flags, fire_lm, scoring, bindings_of(config))
            for arm, config in configs.items()
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
        check_local_grid(configs, jobs, arguments)
        with _combined(scoring, jobs, folder, lambda job: Path(job.mark).exists(), arguments):
            local_grid(jobs, Path(folder), arguments)
        return
    where, calls = where_of(arguments)
    on_one_host = scoring[0] == "evaluate" and not arguments.measure
    if on_one_host and cluster.slice_of(where).hosts > 1:
        raise UserError(
            f"runs on synthetic tasks are evaluated on one host, but {where.accelerator} has "
            "several: choose a slice of one host, such as v4-8, or use --local"
        )
    slices = of_arms(chosen, lambda arm: checks.check_run(configs[arm], where))
    if arguments.measure:
        checks.check_importable(arguments.measure.rpartition(".")[0], where)
    checks.check_place(where)
    output = arguments.output or f"runs/{name}"
    require_folder(place(output), "--output")
    check_data(configs.values(), where, calls)
    jobs = jobs_in(cluster.run_directory(where, name), ("fire-lm",))
    jobs = {arm: dataclasses.replace(job, slices=slices[arm]) for arm, job in jobs.items()}
    costs = {arm: cost.of_training(config, where) for arm, config in configs.items()}
    is_done = lambda job: bucket.is_there(job.mark, calls)  # noqa: E731
    with _combined(scoring, jobs, output, is_done, arguments):
        cloud_grid(jobs, arguments, where, calls, flags, costs)


def of_arms(arms: Iterable[grids.Arm], find: Callable[[grids.Arm], _T]) -> dict[grids.Arm, _T]:
    """Return what `find` finds for each arm; a refusal names the arm."""
    found = {}
    for arm in arms:
        try:
            found[arm] = find(arm)
        except UserError as error:
            raise UserError(f"{arm.name}: {error}") from error
    return found


def _measure(arguments: argparse.Namespace) -> Measure | None:
    """Return the measure of --measure, or None without it.

    Raises:
      UserError: It is not a measure, or a grid cannot set a parameter that it needs.
    """
    if not arguments.measure:
        return None
    from fire_lm.experiment.own_measure import measure_class, with_lengths  # imports JAX

    kind = measure_class(arguments.measure)
    try:
        measure = kind()
    except TypeError as error:
        raise UserError(
            f"--measure={arguments.measure}: a grid cannot set its parameters, which need "
            f"defaults: {error}"
        ) from None
    return with_lengths(measure, arguments.lengths)


def _scoring(configs: Sequence[Experiment], arguments: argparse.Namespace) -> list[str]:
    """Return the verb that scores these experiments, followed by its flags.

    Raises:
      UserError: Some experiments train on text and others on a synthetic task, or a flag has no
        effect.
    """
    sequences, measure, lengths = arguments.sequences, arguments.measure, arguments.lengths
    if measure:
        if sequences:
            raise UserError("--sequences and --measure exclude each other: omit one of them")
        chosen = [f"--lengths={','.join(map(str, lengths))}"] if lengths else []
        return ["evaluate", f"--measure={measure}", *chosen]
    if lengths:
        raise UserError("--lengths applies only to --measure: set --gin.EVAL_LENGTHS instead")
    for data in (config.train.data for config in configs):
        if data.not_text and not data.exercises:
            raise UserError(
                f"a grid cannot score runs trained on {data.not_text} by their next-token loss\n"
                "choose a measure: masked text has "
                "--measure=fire_lm.measures.masked_accuracy.MaskedAccuracy"
            )
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


def check_local_grid(
    configs: Mapping[grids.Arm, Experiment],
    jobs: Mapping[grids.Arm, Job],
    arguments: argparse.Namespace,
) -> None:
    """Check the data of the arms that are not done, and print what the grid will take."""
    calls = Calls(arguments.dry_run)
    for arm, config in configs.items():
        if not (arm in jobs and Path(jobs[arm].mark).exists()):
            attempt(functools.partial(checks.check_here, config), calls)
    at_once = min(arguments.at_once, len(configs))
    costs = {
        arm.name: found
        for arm, config in configs.items()
        if (found := cost.of_training_here(config, at_once)) is not None
    }
    unknown = "the time is unknown on this device: the ETA follows once an arm is done"
    tell(cost.table(costs, at_once) if costs else unknown, calls)


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
    named = {arm.name: expected for arm, expected in costs.items()}
    tell(cost.table(named, arguments.at_once), calls)

    def run_arm(arm: grids.Arm) -> None:
        job = jobs[arm]
        compiled = [preflight_flags(job.folder, [*flags, *arm.flags])]
        prepared(job, job.folder, arguments, where, calls, compiled, leave, costs[arm])()

    if calls.dry_run:
        for arm in jobs:
            print(f"\n## {arm.name}")
            run_arm(arm)
        print()
        tell(cost.total(named, arguments.at_once), calls)
        return
    grids.run(
        list(jobs),
        run_arm,
        is_done=lambda arm: False,  # The follower checks this, and releases TPUs that still exist.
        progress=lambda arm: bucket.progress(jobs[arm].folder, calls),
        at_once=arguments.at_once,
        stop=leave.set,
    )


@contextlib.contextmanager
def _combined(
    scoring: Sequence[str],
    jobs: Mapping[grids.Arm, Job],
    output: str,
    is_done: Callable[[Job], bool],
    arguments: argparse.Namespace,
) -> Iterator[None]:
    """Combine the results of a grid at its end; if some arms have failed, those of the others."""
    try:
        yield
    except RunFailed:
        _combine(scoring, [job for job in jobs.values() if is_done(job)], output)
        raise
    if not arguments.dry_run:
        _combine(scoring, jobs.values(), output)


def _combine(scoring: Sequence[str], jobs: Iterable[Job], output: str) -> None:
    """Write a table and a figure, or a report, of the jobs' arms, whose rows already exist.

    Other runs in the folder of the grid may still be training, so they are left out.
    """
    runs = [job.folder for job in jobs]
    if not runs:
        return
    combining, folder = scoring, output
    if any(flag.startswith("--measure=") for flag in scoring):
        combining, folder = ["report"], f"{output}/report"
    command = [sys.executable, "-m", "fire_lm", *combining, *runs, f"--output={folder}"]
    if code := subprocess.run(command, check=False).returncode:
        raise RunFailed(
            f"writing the combined table failed (exit code {code}): {shlex.join(command)}"
        )
