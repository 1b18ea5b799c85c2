"""What a grid refuses before its first arm starts, and which gin files it finds."""

import shlex
from pathlib import Path

import pytest
from tpu_cloud import EXPERIMENT, run

from fire_lm import cli
from fire_lm.experiment import load_experiment
from tpu.__main__ import main
from tpu.local import LocalJobs

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "given, told",
    [
        (["--positions=rope"], "--positions is given more than once"),
        (["--seeds=0,1", "--seeds=5"], "--seeds is given more than once"),
        (
            ["--cluster.zone=a", "--cluster.zone=b"],
            "only the last of repeated bindings applies: --cluster.zone=b",
        ),
        (["--gin.SEED=5"], "--gin.SEED has no effect, because --seeds sets it for each arm"),
        (
            ["--gin.BATCH_SIZE=8", "--vary.BATCH_SIZE=16"],
            "--gin.BATCH_SIZE has no effect, because --vary.BATCH_SIZE sets it",
        ),
        (["--vary.SEED=3"], "use --seeds"),
        (["--output=gs://bucket/grid"], "with --local, it must be a local folder"),
        ([f"--output={__file__}"], "is not a folder"),
    ],
)
def test_an_option_that_would_be_ignored_is_named(given, told, capsys):
    grid = ["grid", "mini", "--local", "--dry_run", "--gin_file=configs/runs/quickstart.gin"]
    assert main([*grid, "--positions=fire", *given]) == 2
    assert told in capsys.readouterr().err


def test_gin_files_of_a_local_grid_may_be_outside_the_repository(tmp_path, monkeypatch, capsys):
    for name, text in (
        ("own", "BATCH_SIZE = 3"),
        ("varied", "include 'more.gin'"),
        ("more", "TRAIN_STEPS = 60"),
    ):
        (tmp_path / f"{name}.gin").write_text(text)
    monkeypatch.chdir(tmp_path)
    base = [f"--gin_file={ROOT}/configs/runs/quickstart.gin", "--gin_file=own.gin"]
    grid = ["grid", "mini", "--local", "--dry_run", "--positions=fire", *base]
    assert main([*grid, "--vary.gin_file=varied.gin"]) == 0
    lines = capsys.readouterr().out.splitlines()
    train, _ = (line for line in lines if not line.startswith("#"))
    for name in ("own", "varied"):
        assert f" --gin_file={tmp_path}/{name}.gin " in f"{train} "
    assert " --gin_file=configs/runs/quickstart.gin " in train
    asked = cli.parse(shlex.split(train)[3:])
    config = load_experiment(asked.gin_file, asked.bindings, asked.gin_search_paths)
    assert (config.macro("BATCH_SIZE"), config.macro("TRAIN_STEPS")) == (3, 60)


@pytest.mark.parametrize(
    "flags, words",
    [
        (
            ["--vary.BATCH_SIZE=0", "--vary.BATCH_SIZE=8"],
            "fire-seed0-batch-size-0: batch_size is 0",
        ),
        (
            ["--vary.gin_file=configs/none.gin"],
            "fire-seed0-configs-none: --gin_file: there is no g",
        ),
    ],
)
def test_a_refusal_names_the_arm(flags, words, cloud, capsys):
    grid = ["grid", "mini", "--gin_file=configs/runs/quickstart.gin", "--positions=fire", *flags]
    assert main([*grid, "--local", "--dry_run"]) == 2
    assert words in capsys.readouterr().err


def test_a_batch_that_does_not_fit_the_slice_names_the_arm_too(cloud, capsys):
    flags = [flag for flag in EXPERIMENT if "positions" not in flag]
    varied = ["--vary.BATCH_SIZE=256", "--vary.BATCH_SIZE=100"]
    assert run("grid", "mini", *flags, "--positions=fire", *varied, "--dry_run") == 2
    assert (
        "tpu: fire-seed0-batch-size-100: a batch of 100 sequences cannot be split"
        in capsys.readouterr().err
    )


def test_masked_text_is_scored_by_the_measure_that_its_refusal_names(capsys):
    grid = ["grid", "mini", "--local", "--positions=rope", "--dry_run"]
    grid += ["--gin_file=configs/runs/masked_quickstart.gin"]
    assert main(grid) == 2
    refusal = capsys.readouterr().err
    assert "a grid cannot score runs trained on masked text of" in refusal
    measure = refusal.split()[-1]
    assert main([*grid, measure]) == 0
    assert f"fire_lm evaluate {measure} " in capsys.readouterr().out
    assert main([*grid, measure, "--lengths=64,128"]) == 0
    assert f"evaluate {measure} --lengths=64,128 " in capsys.readouterr().out
    learned = [flag.replace("=rope", "=learned") for flag in grid]  # 64 positions
    assert main([*learned, measure, "--lengths=64"]) == 0
    for wrong, words in (
        ([*grid, f"{measure}s"], "Did you mean"),
        ([*grid, measure, "--sequences=8"], "omit"),
        ([*grid, measure, "--lengths=96"], "it must be a power of two"),
        ([*learned, measure], "learned-seed0: "),
        (
            [*grid[:-1], "--gin_file=configs/runs/quickstart.gin", measure],
            "was not trained on masked",
        ),
        ([*grid[:-1], "--gin_file=configs/runs/quickstart.gin", "--lengths=64"], "EVAL_LENGTHS"),
    ):
        assert main(wrong) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "bindings, words",
    [
        (["DATA_DIR=none"], "DATA_DIR is none, but there is nothing at this path\ncorrect it, or"),
        ([f"DATA_DIR={ROOT}/configs"], f"DATA_DIR is {ROOT}/configs, but there is no data set "),
        ([f"DATA_DIR={ROOT}", "VOCABULARY=none"], "VOCABULARY is none, but there is nothing at"),
    ],
)
def test_data_that_are_not_here_are_refused_before_the_first_arm(
    bindings, words, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(LocalJobs, "run", lambda *_: pytest.fail("an arm was started"))
    grid = ["grid", "mini", "--local", "--positions=fire", f"--output={tmp_path / 'mini'}"]
    grid += ["--gin_file=configs/runs/quickstart.gin", *(f"--gin.{one}" for one in bindings)]
    assert main(grid) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "mini").exists()
    assert main([*grid, "--dry_run"]) == 0
    assert f"tpu: a launch would refuse this: {words}" in capsys.readouterr().err


def test_synthetic_tasks_need_no_data(tmp_path, capsys):
    grid = ["grid", "mini", "--local", "--dry_run", f"--output={tmp_path / 'mini'}"]
    even = [*grid, "--positions=rope", "--gin_file=configs/synthetic/even_pairs.gin"]
    assert main(even) == 0
    text = [*grid, "--positions=fire", "--gin_file=configs/runs/quickstart.gin"]
    text += ["--gin.DATA_DIR=none"]
    assert "would refuse" not in capsys.readouterr().err
    assert main(text) == 0 and "would refuse" in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_booked(cloud, capsys):
    flags = [flag for flag in EXPERIMENT if "positions" not in flag]
    assert run("grid", "mini", *flags, "--positions=fire", f"--output={__file__}") == 2
    assert "is not a folder" in capsys.readouterr().err and not cloud.calls()


@pytest.mark.parametrize(
    "bindings, told",
    [
        (["length_sweep.tokens=1000"], "alibi-seed0: evaluation length 1024 is longer than a row"),
        (["length_sweep.tokens=1000"], "set --gin.length_sweep.tokens=32768 or more"),
        (["length_sweep.protocols=('sliding',)", "length_sweep.stride=100"], "stride"),
    ],
)
def test_lengths_that_the_sweep_would_refuse_are_refused_before_training(bindings, told, capsys):
    grid = ["grid", "mini", "--local", "--dry_run", "--gin_file=configs/runs/quickstart.gin"]
    grid += ["--positions=alibi", *(f"--gin.{binding}" for binding in bindings)]
    assert main(grid) == 2
    assert told in capsys.readouterr().err
