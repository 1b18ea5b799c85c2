"""tpu/host.py in a process of its own: what it restarts, what it does not, and what it leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tpu import host

# Counts its starts in RUN/starts, and ends with the exit code that CODES has for this start.
PROGRAM = """
import pathlib, sys
run, *codes = sys.argv[1:]
starts = pathlib.Path(run.partition("=")[2]) / "starts"
number = len(starts.read_text()) if starts.exists() else 0
starts.write_text("x" * (number + 1))
print(f"start {number}", flush=True)
sys.exit(int(codes[min(number, len(codes) - 1)]))
"""


def run_host(folder: Path, *codes: int, restarts: int = 3, then: list[str] | None = None) -> int:
    """Return the exit code of the host's process; the command ends with each of `codes` in turn."""
    command = [sys.executable, "-c", PROGRAM, f"--workdir={folder}", *map(str, codes)]
    job = json.dumps([command, *([then] if then else [])])
    return subprocess.run(
        [
            *(sys.executable, "-m", "tpu.host", f"--restarts={restarts}", "--pause=0"),
            *(f"--folder={folder}", f"--mark={folder}/logs/done", f"--job={job}"),
        ],
        cwd=Path(host.__file__).parent.parent,
        check=False,
    ).returncode


def starts(folder: Path) -> int:
    return len((folder / "starts").read_text())


@pytest.mark.parametrize(
    "codes, code, number",
    [
        ((0,), 0, 1),
        ((2,), 2, 1),  # an error in its configuration
        ((1, 3, 137, 0), 0, 4),
        ((1, 2), 2, 2),
        ((3,), 1, 4),  # three restarts, no more
    ],
)
def test_what_is_started_again(tmp_path, codes, code, number):
    assert run_host(tmp_path, *codes) == code
    assert starts(tmp_path) == number
    assert (tmp_path / "logs" / "done").exists() == (code == 0)


def test_a_loss_that_is_not_finite_is_not_started_again(tmp_path):
    last = {"step": 7, "loss": "nan", "grad_norm": "nan", "skipped": False, "stopped": True}
    path, began = tmp_path / "spikes.jsonl", time.time()
    for lines, told in (
        ([{**last, "step": 3}], "at step 3"),
        ([{**last, "step": 3}, {**last, "stopped": None}], ""),  # it continued after that one
        ([last], "at step 7"),
    ):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert host.diverged(str(tmp_path), began)[-9:] == told
    assert not host.diverged(str(tmp_path), time.time() + 10), "of an earlier start"
    path.write_text('{"step": 7, "lo')
    assert not host.diverged(str(tmp_path), began), "torn"
    writes = f"import sys; open({str(path)!r}, 'w').write({json.dumps(last)!r}); sys.exit(1)"
    command = [sys.executable, "-c", writes, f"--workdir={tmp_path}"]
    assert host.Host(3, 0.0, str(tmp_path)).run([command]) == host.DIVERGED
    assert len(list((tmp_path / "logs").iterdir())) == 1


def test_one_command_after_another_and_none_after_a_failure(tmp_path):
    then = [sys.executable, "-c", f"open({str(tmp_path / 'then')!r}, 'w')"]
    assert run_host(tmp_path, 2, then=then) == 2 and not (tmp_path / "then").exists()
    (tmp_path / "starts").unlink()
    assert run_host(tmp_path, 0, then=then) == 0 and (tmp_path / "then").exists()


def test_what_it_prints_is_kept(tmp_path, capfd):
    assert run_host(tmp_path, 1, 0) == 0
    logs = sorted((tmp_path / "logs").glob("*.txt"))
    assert "start 0\n" in capfd.readouterr().out
    assert [log.read_text() for log in logs] == ["start 0\n", "start 1\n"]


@pytest.mark.parametrize(
    "signum, code, handles",
    [
        (signal.SIGTERM, 3, True),
        (signal.SIGTERM, 3, False),
        (signal.SIGUSR1, host.STOPPED, True),
        (signal.SIGUSR1, host.STOPPED, False),
        (signal.SIGHUP, 3, True),
    ],
)
def test_asked_to_end_it_ends_and_is_not_started_again(signum, code, handles):
    """This includes a command without a handler, such as a sweep, which SIGTERM kills."""
    waits = (
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n" * handles
    ) + "import time\nprint('ready', flush=True)\ntime.sleep(60)"
    job = json.dumps([[sys.executable, "-c", waits]])
    with subprocess.Popen(
        [sys.executable, "-m", "tpu.host", "--restarts=3", f"--job={job}"],
        cwd=Path(host.__file__).parent.parent,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signum)
        assert process.wait(30) == code
        assert "start 2" not in process.stdout.read()


def test_a_bucket_that_cannot_be_written_is_found_out(tmp_path):
    host.try_bucket(str(tmp_path / "runs"))
    assert not list((tmp_path / "runs").iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        host.try_bucket(str(tmp_path / "file"))
