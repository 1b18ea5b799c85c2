"""What jobs cost before they start and so far, and the table of costs in tpu/README.md."""

import datetime
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tpu_cloud import EXPERIMENT, FILES, GS, SITE, run

from fire_lm.experiment import load_experiment
from fire_lm.hardware.slices import parse_slice
from fire_lm.preflight.step_time import StepTime, expected_sweep_time
from tpu import __main__ as tpu
from tpu import tables
from tpu.cluster import load
from tpu.commands import Calls
from tpu.cost import Training, of_evaluation, of_training, table, total
from tpu.image import ROOT
from tpu.job import Job, Stage, State
from tpu.launch import _preflight

REPORTS = ROOT / "docs" / "evidence" / "preflight"
SECONDS = json.loads((REPORTS / "c4_125m_fire_v4-8.json").read_text())["programs"]["training step"][
    "seconds"
]


def test_the_cost_of_a_run_that_preflight_has_estimated():
    told = str(
        of_training(load_experiment(FILES), load("v4_8", [*SITE, "price_per_chip_hour=3.22"]))
    )
    hours = 600_000 * SECONDS / 3600
    assert told.startswith(
        f"600,000 steps x 869 ms = {hours:.0f} h on 4 chips = {4 * hours:.0f} chip-hours, "
        f"${4 * hours * 3.22:,.0f} at $3.22 per chip-hour (step time: the compiler's estimate; "
    )


def test_the_cost_of_any_other_run_says_which_mfu_it_assumes():
    told = str(of_training(load_experiment(FILES, ["BATCH_SIZE=512"]), load("v4_8", SITE)))
    assert "step time: assuming 28% MFU, the lowest of preflight's estimates for v4" in told
    assert "$" not in told and told.startswith("600,000 steps x ")


def test_a_grid_has_one_table_with_the_total():
    step = StepTime(3.6, "the compiler's estimate")
    arms = {
        "fire-seed0": Training(1000, step, 4, 2.0),
        "rope-seed0": Training(3000, step, 4, 2.0),
    }
    lines = [line.split() for line in table(arms, 2).splitlines()]
    assert lines[0] == ["arm", "steps", "step", "hours", "chip-hours", "dollars", "step", "time"]
    assert lines[1][:7] == ["fire-seed0", "1,000", "3,600", "ms", "1.0", "4.0", "8.0"]
    assert (
        table(arms, 2)
        .splitlines()[3]
        .startswith("2 arms, 2 at a time: 3.0 h = 16.0 chip-hours, $32.0 at $2 per chip-hour (")
    )
    free = {name: Training(arm.steps, step, 4) for name, arm in arms.items()}
    assert "dollars" not in table(free, 1).splitlines()[0]
    assert "--cluster.price_per_chip_hour=DOLLARS adds dollars" in total(free, 1)
    here = {name: Training(arm.steps, step, 0) for name, arm in arms.items()}
    assert table(here, 1).splitlines()[0].split() == [
        "arm",
        "steps",
        "step",
        "hours",
        "step",
        "time",
    ]
    assert total(here, 1).startswith("2 arms, 1 at a time: 4.0 h (")


@pytest.mark.parametrize("at_once, hours", [(1, "10.0"), (2, "5.0"), (3, "4.0"), (9, "4.0")])
def test_the_hours_of_a_grid_are_those_of_arms_side_by_side(at_once, hours):
    """Arms start in order: with two at a time, that of 3 hours follows that of 2 hours."""
    step = StepTime(3600, "")
    costs = {str(hours): Training(hours, step, 1) for hours in (2, 4, 3, 1)}
    assert f": {hours} h = 10.0 chip-hours" in total(costs, at_once)


def test_a_dry_run_prints_the_cost(cloud, capsys):
    more = ["--cluster.price_per_chip_hour=1", "--dry_run"]
    assert run("pretrain", "fire-125m", *EXPERIMENT, *more) == 0
    assert "\n# fire-125m: 600,000 steps x 869 ms = " in capsys.readouterr().out
    flags = [flag for flag in EXPERIMENT if "positions" not in flag]
    assert run("grid", "study", "--positions=fire,rope", *flags, *more) == 0
    printed = capsys.readouterr().out.splitlines()
    lines = [line for line in printed if line.startswith("# ")]
    chip_hours = 4 * 600_000 * SECONDS / 3600
    words = ["#", "fire-seed0", "600,000", "869", "ms", "145", f"{chip_hours:.0f}"]
    assert lines[1].split()[:7] == words and lines[1].endswith("the compiler's estimate")
    assert lines[3].startswith("# 2 arms, 2 at a time: ") and printed[-1] == lines[3]
    calls = [line for line in printed if not line.startswith("#") and line]
    assert len(calls) == len(set(calls)) and sum("gcloud auth list" in call for call in calls) == 1
    assert not cloud.changes()


def test_a_local_grid_says_how_long_it_will_take(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tpu.cost._flops_of_products", lambda: 1e9)
    flags = ["--gin_file=configs/runs/quickstart.gin", "--gin.TRAIN_STEPS=200"]
    grid = ["grid", "mini", "--local", "--positions=fire,rope", "--seeds=0,1", *flags, "--dry_run"]
    config = load_experiment(["configs/runs/quickstart.gin", "configs/positions/rope.gin"])
    flops = config.train.flops_per_token * config.train.tokens_per_step
    assert tpu.main([*grid, "--at_once=1"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("# ")]
    assert lines[0].split() == ["#", "arm", "steps", "step", "hours", "step", "time"]
    step = float(lines[3].split()[3].replace(",", ""))
    assert lines[3].split()[:3] == ["#", "rope-seed0", "200"]
    assert step == pytest.approx(1e3 * flops / 0.15e9, rel=0.02)
    assert lines[3].endswith("assuming 15% of the 1 GFLOP/s of matrix products here")
    assert lines[5].startswith("# 4 arms, 1 at a time: ")
    monkeypatch.setattr("tpu.cost.of_training_here", lambda *_: None)
    assert tpu.main(grid) == 0
    assert "# the time is unknown on this device" in capsys.readouterr().out


def test_the_estimate_of_preflight_takes_the_place_of_the_launchers(monkeypatch):
    def compiles(command, **_):
        (path,) = (flag.partition("=")[2] for flag in command if flag.startswith("--json="))
        Path(path).write_text(json.dumps({"programs": {"training step": {"seconds": 0.036}}}))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("tpu.launch.subprocess", SimpleNamespace(run=compiles))
    absent: Any = SimpleNamespace(look=lambda job: State(Stage.ABSENT))
    job = Job("short", (), "gs://my-bucket/runs/short")
    step = _preflight(absent, job, load("v4_8", SITE), [[]], Calls(), None)
    assert step == StepTime(0.036, "the compiler's estimate")


def test_a_sweep_and_an_evaluation_tell_what_a_checkpoint_costs(cloud, capsys):
    """The newest configuration in the bucket counts; a run that has not started has no estimate."""
    folder = f"{GS}/fire-125m"
    text = load_experiment(FILES).text()
    objects = {"config.gin": "", "config_9.gin": "MODEL = 1", "config_10.gin": text}
    cloud.plan(objects={f"{folder}/{name}": text for name, text in objects.items()})
    more = ["--cluster.price_per_chip_hour=2", "--dry_run"]
    assert run("sweep", "score", "fire-125m@all", "new", *more) == 0
    said = capsys.readouterr().out
    hours = expected_sweep_time(load_experiment(FILES).sweep, parse_slice("v4-8"))
    chip_hours = f"{4 * hours.seconds / 3600:.2g} chip-hours, $"
    assert f"\n# score: fire-125m: {chip_hours}" in said
    assert " at $2 per chip-hour per checkpoint on 4 chips (an estimate from FLOPs, " in said
    assert "assuming 28% MFU, the lowest of preflight's estimates for v4; start-up" in said
    unknown = f"the cost is unknown: {GS}/new has no config.gin, so this run has not started; "
    how = "`fire-lm preflight --slice=v4-8` with the gin files of the run estimates the time"
    assert f"\n# score: new: {unknown}{how}\n" in said
    assert not cloud.changes()
    task = load_experiment([*FILES, "configs/tasks/scrolls_qasper.gin"])
    said = of_evaluation(task, load("v4_8", SITE))
    assert " per checkpoint and 1,000 examples on 4 chips (" in said and "decoding add" in said


def test_status_has_the_same_line_for_what_was_spent(capsys):
    where = load("v4_8", [*SITE, "price_per_chip_hour=2"])
    since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=3)
    rows = [
        {"name": "a", "accelerator": "v4-8", "since": since.isoformat()[:16]},
        {"name": "b", "accelerator": "v4-256", "since": ""},
        {"name": "c", "accelerator": "v4-16", "since": since.isoformat()[:16]},
    ]
    tables.show(rows, where, lambda folder: "", "a")
    said = capsys.readouterr().out
    assert re.search(r"\na: 12\.\d chip-hours, \$24\.\d at \$2 per chip-hour so far\n", said)
    assert re.search(r"\nall of these: 36\.\d chip-hours, \$7\d\.\d at \$2 per chip-hour so", said)


def cost_row(name: str) -> str:
    """Return the row of the table in tpu/README.md for a report of preflight."""
    report = json.loads((REPORTS / f"{name}.json").read_text())
    _, size, encoding, slice_name = name.split("_")
    seconds = report["programs"]["training step"]["seconds"]
    cost = Training(600_000, StepTime(seconds, ""), report["chips"])
    step = f"{1e3 * seconds:.1f}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"
    time = f"{cost.hours:.1f} h" if cost.hours < 48 else f"{cost.hours / 24:.1f} days"
    label = f"{size.upper()} {encoding.upper().replace('ROPE', 'RoPE')}"
    return f"| {label} | {slice_name} | {step} ms | {time} | {round(cost.chip_hours, -1):,.0f} |"


def test_the_costs_in_the_readme_follow_from_the_reports():
    text = (ROOT / "tpu" / "README.md").read_text()
    rows = re.findall(r"^\| \d+M .*\|$", text, re.MULTILINE)
    files = (row.split(" | ") for row in rows)
    names = [f"c4_{label[2:].lower().replace(' ', '_')}_{where}" for label, where, *_ in files]
    assert len(rows) == 7 and rows == [cost_row(name) for name in names]
    tokens = 600_000 * 256 * 2048
    assert f"600,000 steps of 256 x 2048 tokens ({tokens:.3g} tokens)".replace("+", "") in text
