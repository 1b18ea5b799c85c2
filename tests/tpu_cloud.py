"""A cloud for tests of the launcher: stand-ins for gcloud, kubectl and the hosts' docker."""

import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tpu import __main__ as tpu

STAND_INS = Path(__file__).parent / "tpu_stand_ins"
WHERE = [
    *("--cluster=v4_8", "--cluster.project=my-project", "--cluster.bucket=my-bucket"),
    *("--cluster.image=us-docker.pkg.dev/my-project/fire/fire_lm:test", "--cluster.retries=2"),
]
EXPERIMENT = [
    *("--gin_file=configs/runs/c4_125m.gin", "--gin_file=configs/slices/v4_8.gin"),
    *("--gin_file=configs/positions/fire.gin", "--gin.DATA_DIR=gs://my-bucket/data"),
    *("--gin.VOCABULARY=gs://my-bucket/spm.model", "--gin.MeshShape.data=-1"),  # any slice
]
GS = "gs://my-bucket/runs"
SITE = [flag.removeprefix("--cluster.") for flag in WHERE[1:]]
FILES = [flag.partition("=")[2] for flag in EXPERIMENT[:3]]


class Cloud:
    """The state of the stand-ins, and the calls to them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        self._path = folder / "cloud.json"
        state: dict[str, Any] = {
            name: {} for name in ("objects", "requests", "launches", "jobsets")
        }
        state |= {name: [] for name in ("states", "strays", "conditions")}
        state |= {
            "accounts": [{"account": "me@example.com"}],
            "buckets": {"my-bucket": "US-CENTRAL2"},
            "images": ["us-docker.pkg.dev/my-project/fire/fire_lm:test"],
            "containers": [["running", "running", "exited:0"]],
            "failure": "",
        }
        self._path.write_text(json.dumps(state))
        lines = {
            name: f'exec {sys.executable} -S -E {STAND_INS / name}.py "$@"'
            for name in ("gcloud", "kubectl", "docker")
        }
        lines |= {"sudo": 'exec "$@"', "hostname": 'echo "$FIRE_LM_STAND_IN_HOST"'}
        lines |= {"ssh-add": "echo a key"}
        if sys.prefix != sys.base_prefix:  # kubectl needs PyYAML
            lines["kubectl"] = lines["kubectl"].replace(" -S -E", "")
        (folder / "bin").mkdir()
        for name, line in lines.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
            (folder / "bin" / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("FIRE_LM_STAND_IN", str(folder))

    def __getitem__(self, name: str) -> Any:
        return json.loads(self._path.read_text())[name]

    def plan(self, **what: Any) -> None:
        with (self.folder / "lock").open("w") as lock:  # of the stand-ins, which may be running
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._path.write_text(json.dumps({**json.loads(self._path.read_text()), **what}))

    def calls(self, *words: str) -> list[list[str]]:
        """Return the calls that have all of `words` among their arguments."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if set(words) <= set(call)]

    def started(self) -> list[list[str]]:
        return self.calls("run", "--detach")

    def changes(self) -> list[list[str]]:
        """Return the calls that do not merely read."""
        reads = (
            *({"auth", "list"}, {"buckets", "describe"}, {"images", "describe"}),
            *({"storage", "ls"}, {"storage", "cat"}),
        )
        return [call for call in self.calls() if not any(read <= set(call) for read in reads)]

    def left(self) -> list[str]:
        """Return the resources that would still cost something."""
        return list(self["requests"]) + list(self["jobsets"])


def run(*arguments: str) -> int:
    """Run `python -m tpu VERB ...` in the cluster of the tests."""
    verb, *rest = arguments
    return tpu.main([verb, *WHERE, *rest])


def pretrain(*more: str) -> int:
    return run("pretrain", "fire-125m", *EXPERIMENT, "--no_preflight", "--every=0", *more)
