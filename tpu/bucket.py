"""The launcher's questions to the bucket, through gcloud, without a library of Google's."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ml_collections import ConfigDict

from fire_lm.errors import UserError
from tpu.cluster import region_of
from tpu.commands import CallFailed, Calls, NotFound

# Dollars per GB, rounded from Google's list of 2025: within a continent, and between two.
_WITHIN, _BETWEEN = 0.02, 0.08


def is_there(path: str, calls: Calls) -> bool:
    try:
        calls.read(["gcloud", "storage", "ls", path])
    except NotFound:
        return False
    return not calls.dry_run


def check(cluster: ConfigDict, calls: Calls) -> str:
    """A warning if the bucket is far from the TPUs, else nothing.

    Raises:
      UserError: there are no credentials, or no such bucket, or no permission to see it.
    """
    accounts = calls.ask(["gcloud", "auth", "list", "--filter=status:ACTIVE", "--format=json"])
    if not accounts and not calls.dry_run:
        raise UserError(
            "gcloud has no active account\nrun `gcloud auth login`, and `gcloud auth "
            "application-default login` for what is read here"
        )
    name = cluster.bucket.partition("/")[0]
    try:
        found = calls.ask(
            ["gcloud", "storage", "buckets", "describe", f"gs://{name}", "--format=json"]
        )
    except NotFound as error:
        raise UserError(
            f"there is no bucket gs://{name}\nmake it where the TPUs are: gcloud storage buckets "
            f"create gs://{name} --project={cluster.project} --location={region_of(cluster)}"
        ) from error
    return far(str((found or {}).get("location", "")), region_of(cluster), name)


def far(location: str, region: str, name: str) -> str:
    """Describe the cost of a bucket outside the region of the TPUs."""
    place = location.lower()
    if not place or place == region:
        return ""
    # Of multi-regions and dual-regions (nam4, eur5, asia1) the continent.
    continents = {"us": "us", "nam": "us", "eu": "europe", "eur": "europe", "asia": "asia"}
    first = re.match(r"[a-z]*", place)
    assert first is not None
    continent = continents.get(first[0], first[0])
    same = continent == region.partition("-")[0]
    price = _WITHIN if same else _BETWEEN
    return (
        f"warning: gs://{name} is in {place}, the TPUs are in {region}: every GB read from it or "
        f"written to it may cost about ${price:.2f} (${price * 1000:.0f} a TB), and is slow"
    )


def progress(workdir: str, calls: Calls) -> str:
    """The newest line of a run's metrics, in a few words; nothing where there is none."""
    if not workdir:
        return ""
    path = f"{workdir}/metrics*.jsonl"  # in parts, the last lines of each
    try:
        return in_words(calls.read(["gcloud", "storage", "cat", "--range=-4096", path]))
    except CallFailed:
        return ""


def last_step(metrics: Path) -> str:
    """The progress of a run on this machine; see `progress`."""
    return in_words(metrics.read_text()[-4096:]) if metrics.exists() else ""


def in_words(told: str) -> str:
    """Describe the newest whole line of `metrics.jsonl`."""
    lines = [line for line in told.splitlines() if line.startswith("{") and line.endswith("}")]
    if not lines:
        return ""
    last = max(map(json.loads, lines), key=lambda facts: facts["step"])
    loss = f", loss {last['loss']:.3f}" if "loss" in last else ""
    return f"step {last['step']:,}{loss}, {last.get('tokens_per_second', 0):,.0f} tokens/s"
