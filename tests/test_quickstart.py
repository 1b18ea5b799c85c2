"""scripts/quickstart, whole: the numbers it promises, and that a second run re-uses everything."""

import os
import subprocess
from pathlib import Path

import pytest
from etils import epath

from fire_lm.reporting import read_rows

ROOT = Path(__file__).resolve().parent.parent
ENCODINGS = ("fire", "fire_g", "kerple_log", "alibi", "rope", "nope")


def quickstart(workdir: Path) -> str:
    """Runs it as a user does, so without the fake devices of these tests; gives its output."""
    done = subprocess.run(
        [str(ROOT / "scripts" / "quickstart"), f"--workdir={workdir}"],
        env={name: value for name, value in os.environ.items() if name != "XLA_FLAGS"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def results_of(workdir: Path) -> dict[Path, int]:
    """All that training and evaluation write, with the time of writing: not what every start
    writes (logs, configurations), nor what is drawn again."""
    kept = [*workdir.glob("*/length_sweep.csv"), *workdir.glob("*/checkpoints/*/**/*")]
    return {path: path.stat().st_mtime_ns for path in kept if path.is_file()}


@pytest.mark.ci
def test_quickstart(tmp_path):
    workdir = tmp_path / "runs"
    output = quickstart(workdir)
    assert "Nats per token" in output and str(workdir / "length_sweep.csv") in output
    assert (workdir / "length_sweep.png").read_bytes().startswith(b"\x89PNG")
    assert (workdir / "report" / "index.html").exists()
    rows = read_rows(epath.Path(workdir / "length_sweep.csv"))
    nll = {(row.encoding, row.length): row.nll for row in rows}
    assert set(nll) == {(name, 64 * times) for name in ENCODINGS for times in (1, 2, 4, 8, 16)}
    assert {row.dataset for row in rows} == {"embedded"}

    assert nll["fire", 256] < nll["rope", 256] - 0.3
    assert nll["fire", 256] < nll["nope", 256] - 0.3
    assert abs(nll["fire", 64] - nll["rope", 64]) < 0.06

    before, table = results_of(workdir), (workdir / "length_sweep.csv").read_bytes()
    assert len(before) > len(ENCODINGS)
    quickstart(workdir)
    assert results_of(workdir) == before
    assert (workdir / "length_sweep.csv").read_bytes() == table
