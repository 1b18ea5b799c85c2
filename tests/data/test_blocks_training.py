"""Training from blocks, killed on some processes and resumed on others, has the same batches."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sample_run import (
    command,
    command_on_blocks,
    logged,
    saved_state,
    write_text,
    write_token_blocks,
)
from started_together import finish, run_together, start_together, wait_for_step
from test_blocks_reading import WITHOUT

from fire_lm.checkpoints import available_steps

ROOT = Path(__file__).resolve().parents[2]
STEPS = 60  # of 8 rows of 256 tokens: a little more than two epochs


@pytest.fixture(scope="module")
def blocks(tmp_path_factory) -> Path:
    return write_token_blocks(tmp_path_factory.mktemp("data"))


def pretrain(blocks: Path, workdir: Path, *more: str) -> list[str]:
    return [
        *command_on_blocks(blocks, workdir),
        f"--gin.TRAIN_STEPS={STEPS}",
        "--gin.TRAIN_LENGTH=256",
        "--gin.Checkpointing.keep_last=100",
        "--gin.AdamW.learning_rate=1e-4",  # with 0.01, rounding errors reach 1e-5 of the loss
        *more,
    ]


def seen(workdir: Path) -> list[tuple[int, str]]:
    return [(row["step"], row["batch_hash"]) for row in logged(workdir)]


@pytest.fixture(scope="module")
def whole(blocks, tmp_path_factory) -> Path:
    """Return an uninterrupted run on one process."""
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    run_together(pretrain(blocks, workdir), 1)
    assert len(seen(workdir)) == len(set(seen(workdir))) == STEPS
    return workdir


def assert_same_run(workdir: Path, whole: Path) -> None:
    """Batches must be identical; losses may differ by the order in which processes sum them."""
    assert seen(workdir) == seen(whole)
    found, expected = ([row["loss"] for row in logged(run)] for run in (workdir, whole))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def kill_after(step: int, blocks: Path, workdir: Path, processes: int, *more: str) -> int:
    """Train until `step` is logged, kill all processes, and return the newest checkpoint."""
    started = start_together(pretrain(blocks, workdir, *more), processes)
    wait_for_step(workdir, step, started)
    for process in started:
        process.send_signal(signal.SIGKILL)
    finish(started)
    return available_steps(workdir)[-1]


@pytest.mark.ci
def test_killed_on_two_processes_resumed_on_one(blocks, whole, tmp_path):
    last = kill_after(27, blocks, tmp_path / "run", 2)
    assert 20 <= last < STEPS
    position = [path.name for path in (tmp_path / f"run/checkpoints/{last}/position").iterdir()]
    assert "all_processes" in position and not any("process_0" in name for name in position)
    run_together(pretrain(blocks, tmp_path / "run"), 1, resumed=last)
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.slow
def test_packed_rows_are_trained_on_and_resumed(blocks, whole, tmp_path):
    packed = "--gin.Blocks.construction=packed", "--gin.TRAIN_STEPS=30"
    run_together(pretrain(blocks, tmp_path / "packed", *packed), 1)
    assert len(seen(tmp_path / "packed")) == 30
    assert seen(tmp_path / "packed") != seen(whole)[:30]
    assert 10 <= (last := kill_after(17, blocks, tmp_path / "run", 2, *packed)) < 30
    run_together(pretrain(blocks, tmp_path / "run", *packed), 1, resumed=last)
    assert_same_run(tmp_path / "run", tmp_path / "packed")


@pytest.mark.slow
def test_four_then_two_then_one_process(blocks, whole, tmp_path):
    assert 10 <= kill_after(17, blocks, tmp_path / "run", 4) < STEPS
    assert 30 <= (last := kill_after(37, blocks, tmp_path / "run", 2)) < STEPS
    run_together(pretrain(blocks, tmp_path / "run"), 1, resumed=last)
    assert_same_run(tmp_path / "run", whole)
    found = saved_state(tmp_path / "run", STEPS)
    for path, array in saved_state(whole, STEPS).items():
        np.testing.assert_allclose(found[path], array, rtol=1e-2, atol=1e-4, err_msg=path)


@pytest.mark.ci
def test_the_comparison_sees_another_order(whole, tmp_path):
    lines = (whole / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) | {"batch_hash": json.loads(lines[-2])["batch_hash"]}
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]))
    with pytest.raises(AssertionError):
        assert_same_run(tmp_path, whole)


@pytest.mark.ci
def test_a_machine_without_tensorflow_trains(blocks, whole, tmp_path):
    refuse = WITHOUT.replace(', "gin"', "")  # the configuration needs gin
    code = f"{refuse}\nfrom fire_lm.cli import main\nsys.exit(main())"
    arguments = pretrain(blocks, tmp_path / "run", "--gin.TRAIN_STEPS=12")
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert seen(tmp_path / "run") == seen(whole)[:12]


@pytest.mark.slow
def test_a_seqio_position_stays_with_its_processes(tmp_path):
    arguments = command(write_text(tmp_path / "data"), tmp_path / "run")
    run_together(arguments, 2)
    more = [*arguments, "--gin.TRAIN_STEPS=20"]
    started = start_together(more, 1)
    (output,) = finish(started)
    assert started[0].returncode == 2
    assert "was written by a different number of processes" in output
