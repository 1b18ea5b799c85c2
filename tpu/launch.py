"""The checks that precede the start of a job, and the calls that a dry run prints."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ml_collections import ConfigDict

from fire_lm.errors import FireLMError, Preempted, RunFailed, UserError
from tpu import bucket, checks, cluster, gke
from tpu import image as images
from tpu.commands import CallFailed, Calls, NoAccount, Refused, in_one_line
from tpu.cost import Training, of_evaluation, of_sweep, unknown
from tpu.flags import check_experiment, run_to_start_from
from tpu.follow import Follower
from tpu.job import Backend, Job, Stage
from tpu.queued import QueuedResources

if TYPE_CHECKING:
    from fire_lm.experiment import Experiment
    from fire_lm.preflight.step_time import StepTime
    from fire_lm.runs.inherited import Source

# Only one job is compiled at a time.
_COMPILING = threading.Lock()


def prepared(
    job: Job,
    workdir: str,
    arguments: argparse.Namespace,
    where: ConfigDict,
    calls: Calls,
    compiled: Sequence[Sequence[str]] = (),
    leave: threading.Event | None = None,
    expected: Training | str = "",
) -> Callable[[], None]:
    """Run all checks that are possible before TPUs are requested, and return what follows the job.

    In a dry run, print the calls that the job would make over its lifetime; the function that is
    returned then does nothing.

    Args:
      workdir: The run directory whose progress is shown, or "".
      compiled: The flags of each `fire-lm preflight` to run; --no_preflight skips all of them.
      leave: An event that makes the follower stop.
      expected: The expected cost of the job, or a line about it, which is printed.
    """
    where = where.copy_and_resolve_references()
    checks.check_place(where)
    attempt(lambda: images.check_committed(where), calls)
    where.image = images.tagged(where)
    backend = backend_of(where, calls)
    if compiled and not arguments.no_preflight:
        step = _preflight(backend, job, where, compiled, calls, leave)
        if step is not None and isinstance(expected, Training):
            expected = dataclasses.replace(expected, step=step)
    check_before(where, calls)
    _check_with(calls, "image", functools.partial(images.check, where.image, where))
    if expected:
        tell(f"{job.name}: {expected}", calls)
    if calls.dry_run:
        _print_life(backend, job, getattr(arguments, "keep", False))
        return lambda: None
    follower = Follower(
        job,
        backend,
        where,
        progress=lambda: bucket.progress(workdir, calls),
        every=60.0 if arguments.every is None else arguments.every,
        keep=getattr(arguments, "keep", False),
        detach=getattr(arguments, "detach", False),
        leave=leave,
    )
    return follower.follow


def _print_life(backend: Backend, job: Job, keep: bool) -> None:
    """Print the calls that a job makes over its lifetime if nothing goes wrong."""
    print("\n# request the TPUs")
    backend.create(job)
    print("\n# check repeatedly")
    backend.look(job)
    print("\n# when they are ready")
    backend.setup(job.name)
    backend.launch(job)
    if not keep:
        print("\n# when the job has ended")
        backend.delete(job.name)


def _preflight(
    backend: Backend,
    job: Job,
    where: ConfigDict,
    compiled: Sequence[Sequence[str]],
    calls: Calls,
    leave: threading.Event | None,
) -> StepTime | None:
    """Compile the job on this machine before TPUs are requested.

    Skip this if TPUs have already been requested, unless they are idle or the job has failed.

    Returns:
      The compiler's estimate of a training step, if there is one.

    Raises:
      UserError: The configuration is invalid.
      RunFailed: The job would not work on this slice.
    """
    starts = (Stage.ABSENT, Stage.READY, Stage.FAILED)
    if not calls.dry_run and backend.look(job).stage not in starts:
        return None
    from fire_lm.preflight.step_time import reported_step_time  # imports JAX

    step = None
    names = [where.accelerator]
    if job.slices:  # the fewest slices have the least memory
        names.insert(0, dataclasses.replace(cluster.slice_of(where), count=job.slices[0]).name)
    for name, flags in itertools.product(names, compiled):
        command = [sys.executable, "-m", "fire_lm", "preflight", f"--slice={name}"]
        if calls.dry_run:
            print(f"# first, on this machine\n{shlex.join([*command, *flags])}")
            continue
        with _COMPILING, tempfile.TemporaryDirectory() as folder:
            if leave is not None and leave.is_set():
                raise Preempted(f"{job.name} was not started")
            report = Path(folder) / "report.json"
            command += [f"--json={report}", *flags]
            code = subprocess.run(command, cwd=images.ROOT, check=False).returncode
            step = reported_step_time(json.loads(report.read_text())) if report.exists() else None
        problem = f"{job.name}: preflight ended with exit code {code}, so no TPUs were requested"
        if code == 2:
            raise UserError(f"{problem}\n--no_preflight skips it")
        if code:
            raise RunFailed(f"{problem}\n--no_preflight skips it")
    return step


def preflight_flags(workdir: str, flags: Sequence[str]) -> list[str]:
    """Return the preflight flags for a job in `workdir` that runs fire-lm with `flags`."""
    passed = [f"--workdir={workdir}"]
    words = iter(flags)
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--pairs":  # as in `fire-lm finetune`
            value = value if equals else next(words, "")
            passed[1:1] = ["--gin_file=configs/finetune/pairs.gin", f"--gin.PAIRS={value!r}"]
        elif name == "--allow_config_change" or (name.startswith("--gin.") and equals):
            passed.append(word)
        elif name in ("--gin_file", "--gin_search_paths", "--import"):
            passed.append(word if equals else f"{word}={next(words, '')}")
    return passed


def where_of(arguments: argparse.Namespace) -> tuple[ConfigDict, Calls]:
    if not arguments.cluster:
        raise UserError(f"{arguments.verb} needs --cluster=NAME, a file in tpu/clusters")
    where = cluster.load(arguments.cluster, arguments.overrides)
    return where, Calls(arguments.dry_run)


def backend_of(where: ConfigDict, calls: Calls) -> Backend:
    attempt(lambda: checks.check_context(where), calls)
    return (gke.GKE if where.gke_context else QueuedResources)(where, calls)


def tell(text: str, calls: Calls) -> None:
    """Print lines to stdout, where a dry run prints commands: there, they are comments."""
    print("\n".join(f"{'# ' * calls.dry_run}{line}" for line in text.split("\n")), flush=True)


def attempt(check: Callable[[], None], calls: Calls) -> None:
    """Run a check that a launch must pass; in a dry run, only print why it would not pass.

    Whatever a dry run says is printed once, to stderr, because stdout may be a manifest.
    """
    if not calls.dry_run:
        check()
        return
    try:
        check()
    except FireLMError as error:
        refuses = isinstance(error, UserError | Refused)
        said = "a launch would refuse this" if refuses else "not checked"
        one = "no account" if isinstance(error, NoAccount) else str(error)
        if one not in calls.told:
            calls.told.add(one)
            sys.stdout.flush()
            print(f"tpu: {said}: {error}", file=sys.stderr, flush=True)


def _check_with(calls: Calls, name: str, check: Callable[[Calls], str | None]) -> None:
    """Run a check that makes calls, all of which only read, and print the warning that it returns.

    A dry run prints these calls and also makes them once, to say what a launch would refuse.
    """

    def warned(calls: Calls) -> None:
        if warning := check(calls):
            sys.stdout.flush()
            print(f"tpu: {warning}", file=sys.stderr, flush=True)

    warned(calls)
    if calls.dry_run and name not in calls.told:
        calls.told.add(name)
        attempt(lambda: warned(Calls()), calls)


def experiment_of(flags: Sequence[str], verb: str, calls: Calls) -> Experiment | None:
    """Return the experiment of a training job, after checking it.

    The result is None in a dry run that cannot read the run in INIT_FROM, as it says.

    Raises:
      UserError: See `check_experiment`.
      UserError, CallFailed: The run in INIT_FROM cannot be read.
    """
    sources: list[Source | None] = [None]
    if (run := run_to_start_from(flags, verb)).startswith("gs://"):
        attempt(lambda: sources.append(bucket.source(run, Calls())), calls)
        if len(sources) == 1:
            return None
    return check_experiment(flags, verb, sources[-1])


def check_data(configs: Iterable[Experiment], where: ConfigDict, calls: Calls) -> None:
    """Check that the data of runs exist, and the region of their buckets."""
    from fire_lm.preflight.plan import bucket_paths  # imports JAX

    paths = {path: name for config in configs for path, name in bucket_paths(config).items()}
    if paths:
        _check_with(calls, "data", functools.partial(bucket.check_there, paths))
    for name in sorted(checks.data_buckets(paths, where)):
        check_region = functools.partial(bucket.check_region, name, where)
        _check_with(calls, f"bucket {name}", check_region)


def tell_cost(
    job: Job,
    paths: Sequence[str],
    asked: argparse.Namespace,
    bindings: Sequence[str],
    where: ConfigDict,
    calls: Calls,
) -> None:
    """Print what scoring each run will cost, according to the configuration in the bucket."""
    from fire_lm.experiment import GinText, read_gin, resolve  # these import JAX
    from fire_lm.runs.find import split_steps

    estimate = of_sweep if asked.verb == "sweep" else of_evaluation
    for run in dict.fromkeys(split_steps(path)[0] for path in paths):
        try:
            saved = GinText(f"{run}/config.gin", bucket.saved_config(run, Calls()))
            stated = read_gin(asked.gin_file, bindings, asked.gin_search_paths)
            experiment = resolve(stated.preceded_by([saved]))
            told = estimate(experiment, where, 1 + len(asked.also))
        except FireLMError as error:  # such as a run that has not started
            told = unknown(in_one_line(error), where)
        tell(f"{job.name}: {PurePosixPath(run).name}: {told}", calls)


def check_before(where: ConfigDict, calls: Calls) -> None:
    """Check the credentials, the bucket, and for several hosts the SSH key."""

    def check_key(calls: Calls) -> None:
        try:
            calls.read(["ssh-add", "-l"])
        except CallFailed as error:
            raise UserError(
                "ssh-agent has no key, which gcloud needs to reach several hosts\n"
                "run: eval $(ssh-agent) && ssh-add ~/.ssh/google_compute_engine"
            ) from error

    _check_with(calls, "bucket", functools.partial(bucket.check, where))
    if not where.gke_context and cluster.slice_of(where).hosts > 1:
        _check_with(calls, "key", check_key)
