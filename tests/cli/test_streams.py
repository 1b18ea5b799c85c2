"""Standard streams that cannot be written: long work goes on, and a lost result is an error."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from sample_run import command_on_blocks, logged, write_token_blocks

from fire_lm import cli, console
from fire_lm.checkpoints import available_steps
from fire_lm.errors import OutputLost, ReaderEnded

ROOT = Path(__file__).resolve().parents[2]

# Write a line as the verb of the first argument would, then end as `main` does.
PROGRAM = """
import sys
from fire_lm import cli
def perform(parsed):
    for number in range(3):
        print("é" * 3, flush=number > 0)
    open("done", "w").close()
cli.perform = perform
sys.exit(cli.main(sys.argv[1:]))
"""
LONG = ("sweep", "run")
RESULT = ("generate", "run", "--prompt=a")


def in_shell(redirected: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """Run the program above with redirections of a shell, or a pipe to another command."""
    line = f'"$0" -c "$1" {" ".join(arguments)} {redirected}'
    shell = ["bash", "-o", "pipefail", "-c", line, sys.executable, PROGRAM]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(shell, cwd=cwd, env=environment, capture_output=True, check=False)


@pytest.mark.ci
@pytest.mark.parametrize("redirected", [">/dev/full", ">&-", "2>&-", ">&- 2>&-", "| true"])
def test_progress_that_cannot_be_written_does_not_end_the_work(redirected, tmp_path):
    found = in_shell(redirected, *LONG, cwd=tmp_path)
    assert found.returncode == 0 and (tmp_path / "done").exists(), found
    assert b"Traceback" not in found.stderr and b"Exception ignored" not in found.stderr
    assert len(found.stderr.strip().splitlines()) == (redirected in (">/dev/full", ">&-")) or (
        "true" in redirected  # whether the reader has ended by then is a matter of luck
    )


@pytest.mark.ci
@pytest.mark.parametrize(
    ("redirected", "code", "told"),
    [
        (">/dev/full", 1, "fire-lm: stdout cannot be written: No space left on device"),
        (">&-", 1, "fire-lm: stdout cannot be written: Bad file descriptor"),
        ("2>&-", 0, ""),
        ("| (exec <&-; sleep 0.1)", 141, ""),
    ],
)
def test_a_result_that_cannot_be_written_is_an_error(redirected, code, told, tmp_path):
    """A reader that has ended is no error, but ends the command, quietly as in other tools."""
    found = in_shell(redirected, *RESULT, cwd=tmp_path)
    if "sleep" in redirected and not found.returncode:
        pytest.skip("everything was written before the reader ended")
    assert (found.returncode, found.stderr.decode().strip()) == (code, told)


@pytest.mark.ci
def test_characters_that_stdout_cannot_represent_are_replaced(tmp_path):
    shell = in_shell("", *RESULT, cwd=tmp_path)
    assert shell.stdout.decode().split() == ["ééé"] * 3
    os.environ["PYTHONIOENCODING"] = "ascii"
    try:
        found = in_shell("", *RESULT, cwd=tmp_path)
    finally:
        del os.environ["PYTHONIOENCODING"]
    assert (found.returncode, found.stdout) == (0, b"???\n" * 3), found.stderr


def test_a_reader_that_stalls_does_not_stop_the_work(monkeypatch):
    """A pager that waits for its user fills the pipe; the watchdog would then end the run."""
    monkeypatch.setattr(console, "_STALL_SECONDS", 0.05)
    reads, writes = os.pipe()
    stream = console.Guarded(writes, "stdout")
    for _ in range(40):
        assert stream.write(b"x" * 4096)
    assert 4096 <= len(os.read(reads, 2**20)) < 40 * 4096
    assert stream.write(b"again") == 5 and os.read(reads, 2**20) == b"again"
    os.close(reads)
    os.close(writes)


def test_which_verbs_print_their_result():
    def prints(*arguments: str) -> bool:
        return cli.prints_result(cli.parse(list(arguments)))

    assert prints(*RESULT) and prints("pretrain", "--dry_run")
    assert prints("corpus", "check", "--data_dir=d") and prints("bench", "data", "--data_dir=d")
    assert not prints(*LONG) and not prints("pretrain", "--workdir=w")
    assert not prints("corpus", "--data_dir=d") and not prints("report", "run")
    assert not prints("generate", "run", "--prompts=p", "--output=o")


@pytest.mark.parametrize(
    ("failing", "error", "told"),
    [("disk", OutputLost, "stdout cannot be written: No space"), ("reader", ReaderEnded, "^$")],
)
def test_only_a_result_raises(failing, error, told, capsys):
    if failing == "disk":
        writes = os.open("/dev/full", os.O_WRONLY)
    else:
        reads, writes = os.pipe()
        os.close(reads)
    stream = console.Guarded(writes, "stdout")
    assert stream.write(b"progress") == stream.write(b"progress") == 8
    assert capsys.readouterr().err.count("; the work continues") == 1
    stream.required = True
    with pytest.raises(error, match=told):
        stream.write(b"result")
    os.close(writes)


@pytest.mark.ci
def test_training_goes_on_when_its_output_cannot_be_written(tmp_path):
    """The disk of stdout is full, and the terminal of stderr is gone: writing fails with EIO."""
    blocks, workdir = write_token_blocks(tmp_path / "data"), tmp_path / "run"
    full = os.open("/dev/full", os.O_WRONLY)
    master, terminal = pty.openpty()
    os.close(master)
    command = [sys.executable, "-m", "fire_lm", *command_on_blocks(blocks, workdir)]
    code = subprocess.run(command, stdout=full, stderr=terminal, check=False).returncode
    os.close(full)
    os.close(terminal)
    assert code == 0 and available_steps(workdir)[-1] == 12
    assert [row["step"] for row in logged(workdir)] == list(range(1, 13))
