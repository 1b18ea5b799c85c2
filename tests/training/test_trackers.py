"""Experiment trackers: Weights & Biases offline, and trackers that fail."""

import struct
from pathlib import Path

import pytest

from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.measures.training_losses import effective_length
from fire_lm.results.metrics_log import logged_steps
from fire_lm.results.trackers import MetricsLog
from fire_lm.results.weights_and_biases import WandB


class Failing:
    """A tracker, and its log, of which one method fails."""

    def __init__(self, method: str):
        self.method = method

    def _call(self, method: str) -> None:
        if method == self.method:
            raise RuntimeError("the server is down")

    def open(self, workdir: str, resume_step: int) -> "Failing":
        self._call("open")
        return self

    def write(self, step: int, values: dict) -> None:
        self._call("write")

    def flush(self) -> None:
        self._call("flush")

    def close(self) -> None:
        self._call("close")


@pytest.mark.parametrize("method", ["open", "write", "flush", "close"])
def test_a_tracker_that_fails_is_reported_once_and_stops_nothing(tmp_path, capsys, method):
    log = MetricsLog(tmp_path, 0, [Failing(method)])
    for step in (1, 2, 3):
        log.write(step, {"loss": 1.0 / step})
        log.flush()
    log.close()
    assert [row["step"] for row in logged_steps(tmp_path)] == [1, 2, 3]
    assert capsys.readouterr().err.count("Failing cannot be written: the server is down") == 1


def test_the_file_selects_wandb():
    names = ("runs/quickstart", "positions/fire", "trackers/wandb")
    experiment = load_experiment([f"configs/{name}.gin" for name in names])
    assert experiment.train.trackers == (WandB(project="fire_lm"),)


def test_what_training_and_an_observer_share_is_compared_when_a_run_resumes():
    files = ["configs/runs/quickstart.gin", "configs/positions/fire.gin"]
    mine = ["pretrain.trackers=(@WandB(),)", "WandB.project=%DATA_DIR"]
    run, other = (load_experiment(files, [*mine, f"DATA_DIR='{name}'"]) for name in "ab")
    assert [difference.name for difference in run.differences_from(other)] == ["DATA_DIR"]
    assert not run.differences_from(load_experiment(files, ["DATA_DIR='a'"]))


def test_what_cannot_work_is_refused_before_the_run(monkeypatch):
    with pytest.raises(UserError, match=r"WandB\.mode is 'of': it must be 'online', 'offline'"):
        WandB(mode="of")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'fire-lm\[wandb\]'"):
        WandB().check()


def test_the_effective_length_of_a_model_that_returns_nan_is_none():
    nan = float("nan")
    assert effective_length({64: 2.0, 128: 1.9, 256: 1.91, 512: 1.95}, 0.02) == 256
    assert effective_length({64: nan, 128: nan}, 0.02) == 0


@pytest.mark.interop("wandb")
def test_starts_continue_one_run_of_wandb(tmp_path):
    (tmp_path / "config.gin").write_text("# Macros\nTRAIN_STEPS = 5\n")
    (tmp_path / "config_1.gin").write_text("TRAIN_STEPS = 8\n")
    tracker = WandB(project="lengths", mode="offline")
    tracker.check()
    for resume, last in ((0, 5), (3, 8)):
        log = MetricsLog(tmp_path, resume, [tracker])
        for step in range(resume + 1, last + 1):
            log.write(step, {"loss": 1.0 / step, "batch_hash": "abc"})
        log.close()
    starts = [_records(path) for path in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))]
    assert len(starts) == 2
    ids = {record.run.run_id for start in starts for record in start if record.HasField("run")}
    assert ids == {(tmp_path / "wandb_id").read_text()}
    runs = [record.run for record in starts[1] if record.HasField("run")]
    assert runs[0].project == "lengths" and runs[0].display_name == tmp_path.name
    assert {item.key: item.value_json for item in runs[0].config.update}["TRAIN_STEPS"] == '"8"'
    steps = [
        [record.history.step.num for record in start if record.HasField("history")]
        for start in starts
    ]
    assert steps == [[1, 2, 3, 4, 5], [4, 5, 6, 7, 8]]


def _records(path: Path) -> list:
    """Return the records of a file of W&B: chunks of 32 KiB after a heading, as in LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, records, part = path.read_bytes(), 7, [], b""
    while at + 7 <= len(content):
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        if not kind:  # the rest of a block is empty
            at += 32_768 - at % 32_768
            continue
        part += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            records.append(Record.FromString(part))
            part = b""
    return records
