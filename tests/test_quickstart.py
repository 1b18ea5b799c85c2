"""scripts/quickstart: the numbers it promises, and that another run reuses everything."""

import subprocess
from pathlib import Path

import pytest
from environments import of_users, with_devices
from etils import epath

from fire_lm.results import SweepRow, read_table

ROOT = Path(__file__).resolve().parent.parent
ENCODINGS = ("fire", "fire_g", "kerple_log", "alibi", "rope", "nope")


def quickstart(workdir: Path, *more: str, environment: dict[str, str]) -> str:
    """Run it and return its output."""
    done = subprocess.run(
        [str(ROOT / "scripts" / "quickstart"), f"--workdir={workdir}", *more],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def results_of(workdir: Path) -> dict[Path, int]:
    """Return the files that training and evaluation write, with their modification times.

    Files that every start writes (logs, configurations) and figures are excluded.
    """
    kept = [
        *(run / "length_sweep.csv" for run in workdir.iterdir() if run.name != "report"),
        *workdir.glob("*/checkpoints/*/**/*"),
    ]
    return {path: path.stat().st_mtime_ns for path in kept if path.is_file()}


@pytest.mark.ci
def test_one_encoding_for_a_few_steps(tmp_path):
    workdir, asked = tmp_path / "runs", ("--steps=20", "nope")
    environment = with_devices(1)  # compiles as the other tests do
    output = quickstart(workdir, *asked, environment=environment)
    assert "Nats per token" in output and str(workdir / "length_sweep.csv") in output
    assert "20/20  trained and scored" in output
    assert (workdir / "length_sweep.png").read_bytes().startswith(b"\x89PNG")
    assert (workdir / "report" / "index.html").exists()
    assert set(values(workdir)) == {
        (n, 64 * times) for n in asked[1:] for times in (1, 2, 4, 8, 16)
    }

    before, table = results_of(workdir), (workdir / "length_sweep.csv").read_bytes()
    assert len(before) > 2
    assert "20/20  trained" in quickstart(workdir, *asked, "nope", environment=environment)
    assert results_of(workdir) == before
    assert (workdir / "length_sweep.csv").read_bytes() == table
    assert "40/40  trained" in quickstart(workdir, "--steps=40", "nope", environment=environment)


def values(workdir: Path) -> dict[tuple[str, int], float]:
    rows = read_table(epath.Path(workdir / "length_sweep.csv"), SweepRow)
    assert {row.dataset for row in rows} == {"embedded"}
    return {(row.encoding, row.length): row.nll for row in rows}


@pytest.mark.slow
def test_what_the_quick_start_shows(tmp_path):
    quickstart(tmp_path, environment=of_users())
    nll = values(tmp_path)
    assert {name for name, _ in nll} == set(ENCODINGS)
    assert nll["fire", 256] < nll["rope", 256] - 0.3
    assert nll["fire", 256] < nll["nope", 256] - 0.3
    assert abs(nll["fire", 64] - nll["rope", 64]) < 0.06
