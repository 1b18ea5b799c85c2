"""`fire-lm preflight` in a separate process, as users run it, on text made for the tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from environments import of_users
from sample_run import write_text

ROOT = Path(__file__).resolve().parent.parent


class Run(NamedTuple):
    """How a preflight ended; `report` is its JSON, or None if it wrote none."""

    code: int
    out: str
    err: str
    report: dict[str, Any] | None

    @property
    def outcomes(self) -> dict[str, str]:
        assert self.report is not None, self.err
        return {check["name"]: check["outcome"] for check in self.report["checks"]}


def preflight(folder: Path, slice_: str, run: str, position: str, *more: str) -> Run:
    """Run preflight for a run file and an encoding; bytes replace C4, which is not available."""
    if not (folder / "data").exists():
        write_text(folder / "data", documents=600)  # enough for all hosts and for a row of 8192
    written = folder / "report.json"
    written.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "fire_lm", "preflight", f"--slice={slice_}", f"--json={written}"),
        *(f"--gin_file=configs/{name}.gin" for name in (f"runs/{run}", f"positions/{position}")),
        *(f"--gin.DATA_DIR={folder / 'data'}", "--gin.VOCABULARY=bytes", *more),
    ]
    done = subprocess.run(command, cwd=ROOT, env=of_users(), capture_output=True, text=True)
    report = json.loads(written.read_text()) if written.exists() else None
    return Run(done.returncode, done.stdout, done.stderr, report)
