"""The launcher's access to the bucket, through gcloud and without any of Google's libraries."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ml_collections import ConfigDict

from fire_lm.errors import UserError
from tpu.cluster import region_of
from tpu.commands import CallFailed, Calls, NoAccount, NotFound, Refused, in_one_line

if TYPE_CHECKING:
    from fire_lm.runs.inherited import Source

# Dollars per GB within a continent and between continents, rounded from Google's 2025 price list.
_WITHIN, _BETWEEN = 0.02, 0.08


def is_there(path: str, calls: Calls) -> bool:
    """Return whether an object exists; in a dry run, return False."""
    try:
        calls.read(["gcloud", "storage", "ls", path])
    except NotFound:
        return False
    return not calls.dry_run


def check(cluster: ConfigDict, calls: Calls) -> str:
    """Return a warning if the bucket's region is unknown or not that of the TPUs, otherwise ''.

    Raises:
      NoAccount: There are no credentials.
      UserError: The bucket does not exist, or it is outside the region of the TPUs and the cluster
        does not allow this.
    """
    accounts = calls.ask(["gcloud", "auth", "list", "--filter=status:ACTIVE", "--format=json"])
    if not accounts and not calls.dry_run:
        raise NoAccount(
            "gcloud has no active account\nrun `gcloud auth login`; for access to the bucket from "
            "this machine, also run `gcloud auth application-default login`"
        )
    return check_region(cluster.bucket.partition("/")[0], cluster, calls)


def check_there(paths: Mapping[str, str], calls: Calls) -> str:
    """Return a warning if the data of runs cannot be listed from this machine, otherwise ''.

    `paths` has the name of the setting for each path.

    Raises:
      UserError: There is nothing at one of the paths.
    """
    try:
        calls.read(["gcloud", "storage", "ls", *paths])
    except NotFound as error:
        for path, name in paths.items():
            if not is_there(path, calls):
                raise UserError(
                    f"{name} is {path}, but there is nothing at this path\n"
                    "correct it, or write the data first: docs/data.md"
                ) from error
    except Refused as error:  # the hosts may be allowed to
        names = ", ".join(sorted(paths.values()))
        return f"warning: {names} were not checked: {in_one_line(error)}"
    return ""


def check_region(name: str, cluster: ConfigDict, calls: Calls) -> str:
    """Check a bucket that the hosts read; see `check`."""
    try:
        found = calls.ask(
            ["gcloud", "storage", "buckets", "describe", f"gs://{name}", "--format=json"]
        )
    except NotFound as error:
        raise UserError(
            f"there is no bucket gs://{name}\ncreate it in the region of the TPUs: gcloud storage "
            f"buckets create gs://{name} --project={cluster.project} "
            f"--location={region_of(cluster)}"
        ) from error
    except Refused as error:  # a run needs no permission to view the bucket
        told = str(error).partition("\n")[0]
        return f"warning: the region of gs://{name} was not checked: {told}"
    region = region_of(cluster)
    problem = far(str((found or {}).get("location", "")), region, name)
    if problem and not cluster.far_bucket:
        raise UserError(
            f"{problem}\nuse a bucket in {region}, or accept this with --cluster.far_bucket=true"
        )
    return f"warning: {problem}" if problem else ""


def far(location: str, region: str, name: str) -> str:
    """Return the costs of access if the bucket is outside the TPUs' region, otherwise ''."""
    place = location.lower()
    if not place or place == region:
        return ""
    # Map the first letters of multi-regions and dual-regions (nam4, eur5, asia1) to continents.
    continents = {"nam": "us", "northamerica": "us", "eu": "europe", "eur": "europe"}
    first = re.match(r"[a-z]*", place)
    assert first is not None
    continent = continents.get(first[0], first[0])
    same = continent == region.partition("-")[0]
    price = _WITHIN if same else _BETWEEN
    return (
        f"gs://{name} is in {place}, but the TPUs are in {region}: every GB read or "
        f"written may cost about ${price:.2f} (${price * 1000:.0f} per TB), and access is slow"
    )


def saved_config(workdir: str, calls: Calls) -> str:
    """Return the text of the configuration with which a run was last started.

    Raises:
      CallFailed: There is none, or it cannot be read.
    """
    try:
        listed = calls.read(["gcloud", "storage", "ls", f"{workdir}/config*.gin"]).split()
    except NotFound as error:
        raise NotFound(f"{workdir} has no config.gin, so this run has not started") from error
    numbers = {path: re.search(r"/config(?:_(\d+))?\.gin$", path) for path in listed}
    found = {int(match[1] or 0): path for path, match in numbers.items() if match}
    if not found:
        raise NotFound(f"{workdir} has no config.gin, so this run has not started")
    return calls.read(["gcloud", "storage", "cat", found[max(found)]])


def source(run: str, calls: Calls) -> Source:
    """Return the run in a bucket from which finetuning starts.

    Its vocabulary is the file that its configuration names or, if this was a file of another
    machine, the copy in the run directory.

    Raises:
      UserError, CallFailed: There is no run, or it cannot be read.
    """
    from etils import epath

    from fire_lm.runs.inherited import Source  # these modules import JAX
    from fire_lm.runs.input_files import split_kind
    from fire_lm.runs.saved import Saved, vocabulary_of_run

    try:
        saved = Saved(run, epath.Path(f"{run}/config.gin"), saved_config(run, calls))
        vocabulary = vocabulary_of_run(saved.experiment, run)
        if "://" not in vocabulary and (copy := _inputs(run, calls).get("copy")):
            kind, path = split_kind(copy)
            vocabulary = f"{kind}{run}/{path}"
    except NotFound as error:
        raise UserError(f"INIT_FROM: {error}\ncorrect it, or start that run first") from error
    except CallFailed as error:
        raise type(error)(f"INIT_FROM is {run}, which cannot be read: {error}") from error
    return Source(saved, vocabulary)


def _inputs(run: str, calls: Calls) -> dict[str, str]:
    """Return the recorded inputs of a run; see `fire_lm.runs.inputs`."""
    try:
        return calls.ask(["gcloud", "storage", "cat", f"{run}/inputs.json"]) or {}
    except NotFound:  # a run of an earlier version
        return {}


def progress(workdir: str, calls: Calls) -> str:
    """Describe the newest line of a run's metrics in a few words; return '' if none can be read."""
    if not workdir:
        return ""
    path = f"{workdir}/metrics*.jsonl"  # The range below selects the last lines of each part.
    try:
        return in_words(calls.read(["gcloud", "storage", "cat", "--range=-4096", path]).encode())
    except CallFailed:
        return ""


def last_step(metrics: Path) -> str:
    """Describe the progress of a run on this machine, given its metrics file; see `progress`."""
    return in_words(metrics.read_bytes()[-4096:]) if metrics.exists() else ""


def in_words(excerpt: bytes) -> str:
    """Describe the newest step in an excerpt of one or more metrics files.

    Lines that are incomplete, damaged, or of another program are skipped.
    """
    steps = []
    for line in excerpt.decode(errors="replace").split("\n"):
        with contextlib.suppress(ValueError):
            facts = json.loads(line)
            if isinstance(facts, dict) and isinstance(facts.get("step"), int):
                steps.append(facts)
    if not steps:
        return ""
    last = max(steps, key=lambda facts: facts["step"])
    forms = {"loss": "loss {:.3f}", "tokens_per_second": "{:,.0f} tokens/s"}
    known = {name: value for name in forms if isinstance(value := last.get(name), int | float)}
    words = [forms[name].format(value) for name, value in known.items()]
    return ", ".join([f"step {last['step']:,}", *words])
