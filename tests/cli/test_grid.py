"""`fire-lm grid`, which hands its arguments to the launcher of the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sample_run import command_on_blocks, write_token_blocks

from fire_lm.cli import main, parse
from fire_lm.cli.grid import launcher
from fire_lm.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["mini", "--positions=fire", "--gin.TRAIN_STEPS=2", "--vary.SEED=1", "--dry_run"]


def test_the_arguments_are_passed_on():
    assert parse(["grid", *FLAGS]).rest == FLAGS
    command, environment = launcher(FLAGS, {"PYTHONPATH": "own", "HOME": "/h"})
    assert command == [sys.executable, "-m", "tpu", "grid", *FLAGS, "--local"]
    assert environment == {"PYTHONPATH": f"{ROOT}{os.pathsep}own", "HOME": "/h"}
    assert launcher(["x", "--local"], {})[0].count("--local") == 1


def test_what_cannot_run_here_is_refused(tmp_path, capsys):
    assert main(["grid", *FLAGS, "--cluster=v4_8"]) == 2
    assert "use `python -m tpu grid`" in capsys.readouterr().err
    with pytest.raises(UserError, match="needs a checkout of the repository"):
        launcher(FLAGS, {}, tmp_path)


@pytest.mark.ci
def test_a_grid_runs_from_any_folder(tmp_path):
    """The text, a gin file and the results are in that folder, by relative paths."""
    blocks = write_token_blocks(tmp_path / "data").relative_to(tmp_path)
    (tmp_path / "own.gin").write_text("SEED = 1\n")
    flags = [
        flag
        for flag in command_on_blocks(blocks, "unused", "--gin.TRAIN_STEPS=4")[1:]
        if not flag.startswith(("--workdir", "--gin_file=configs/positions"))
    ]
    more = ["EVAL_LENGTHS=32,64", "length_sweep.tokens=2048", "length_sweep.tokens_per_batch=2048"]
    done = subprocess.run(
        [sys.executable, "-m", "fire_lm", "grid", "mini", "--positions=alibi", *flags]
        + ["--gin_file=own.gin", *(f"--gin.{binding}" for binding in more)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "runs" / "mini" / "length_sweep.csv").exists()
    assert (tmp_path / "runs" / "mini" / "alibi-seed0" / "metrics.jsonl").exists()
