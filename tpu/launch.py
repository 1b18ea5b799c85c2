"""The checks that precede the start of a job, and the calls that a dry run prints."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import threading
from collections.abc import Sequence

from ml_collections import ConfigDict

from fire_lm.errors import Preempted, RunFailed, UserError
from tpu import bucket, cluster, gke
from tpu import image as images
from tpu.commands import CallFailed, Calls
from tpu.follow import Follower
from tpu.job import Backend, Job, Stage
from tpu.queued import QueuedResources

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
) -> Follower | None:
    """Run all checks that are possible before TPUs are requested, and return the job's follower.

    In a dry run, print the calls that the job would make over its lifetime, and return None.

    Args:
      job: The job.
      workdir: The run directory whose progress is shown, or "".
      arguments: The arguments of the command line.
      where: The cluster.
      calls: The interface to external programs.
      compiled: The flags of each `fire-lm preflight` to run; --no_preflight skips all of them.
      leave: An event that makes the follower stop.
    """
    where = where.copy_and_resolve_references()
    where.image = images.tagged(where)
    backend = backend_of(where, calls)
    if compiled and not arguments.no_preflight:
        _preflight(backend, job, where, compiled, calls, leave)
    check_before(where, calls)
    images.check(where.image, where, calls)
    if calls.dry_run:
        _print_life(backend, job, getattr(arguments, "keep", False))
        return None
    return Follower(
        job,
        backend,
        retries=where.retries,
        progress=lambda: bucket.progress(workdir, calls) if workdir else "",
        every=60.0 if arguments.every is None else arguments.every,
        keep=getattr(arguments, "keep", False),
        detach=getattr(arguments, "detach", False),
        leave=leave,
    )


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
) -> None:
    """Compile the job on this machine before TPUs are requested.

    Skip this if TPUs have already been requested, unless they are idle or the job has failed.

    Raises:
      UserError: The configuration is invalid.
      RunFailed: The job would not work on this slice.
    """
    starts = (Stage.ABSENT, Stage.READY, Stage.FAILED)
    if not calls.dry_run and backend.look(job).stage not in starts:
        return
    for flags in compiled:
        command = [sys.executable, "-m", "fire_lm", "preflight", f"--slice={where.accelerator}"]
        command += flags
        if calls.dry_run:
            print(f"# first, on this machine\n{shlex.join(command)}")
            continue
        with _COMPILING:
            if leave is not None and leave.is_set():
                raise Preempted(f"{job.name} was not started")
            code = subprocess.run(command, cwd=images.ROOT, check=False).returncode
        problem = f"{job.name}: preflight ended with exit code {code}, so no TPUs were requested"
        if code == 2:
            raise UserError(f"{problem}\n--no_preflight skips it")
        if code:
            raise RunFailed(f"{problem}\n--no_preflight skips it")


def preflight_flags(workdir: str, flags: Sequence[str]) -> list[str]:
    """Return the preflight flags for a job in `workdir` that runs fire-lm with `flags`."""
    passed = ("--gin", "--import", "--allow_config_change")
    return [f"--workdir={workdir}", *(flag for flag in flags if flag.startswith(passed))]


def where_of(arguments: argparse.Namespace) -> tuple[ConfigDict, Calls]:
    if not arguments.cluster:
        raise UserError(f"{arguments.verb} needs --cluster=NAME, a file in tpu/clusters")
    where = cluster.load(arguments.cluster, arguments.overrides)
    return where, Calls(arguments.dry_run)


def backend_of(where: ConfigDict, calls: Calls) -> Backend:
    return (gke.GKE if where.gke_context else QueuedResources)(where, calls)


def check_before(where: ConfigDict, calls: Calls) -> None:
    if warning := bucket.check(where, calls):
        print(warning, flush=True)
    if not where.gke_context and cluster.slice_of(where).hosts > 1:
        try:
            calls.read(["ssh-add", "-l"])
        except CallFailed as error:
            raise UserError(
                "ssh-agent has no key, which gcloud needs to reach several hosts\n"
                "run: eval $(ssh-agent) && ssh-add ~/.ssh/google_compute_engine"
            ) from error
