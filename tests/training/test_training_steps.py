"""Steps and intervals of `fire-lm pretrain`: what is logged, skipped, stopped and refused."""

import contextlib
import json
import math
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from bucket_faults import Status
from etils import epath
from sample_run import SAVE_EVERY, STEPS, assert_same_state, command, logged, tiny_run

from fire_lm import training
from fire_lm.checkpoints import available_steps
from fire_lm.cli import main
from fire_lm.data.corpora import c4_writer
from fire_lm.errors import RunFailed, UserError
from fire_lm.training import AdamW, Pretraining, Spikes, loop, start, stopped_at
from fire_lm.training.goodput import Goodput
from fire_lm.training.reporter import Reporter, _Mark, new_counters
from fire_lm.training.start import ensure_writable
from fire_lm.training.step import TrainState


@pytest.mark.ci
def test_sigterm_before_anything_is_saved_is_told_so(data_dir, tmp_path, monkeypatch, capsys):
    """This happens if the first losses are not finite and their updates are skipped."""
    pending = Reporter.pending

    def pending_with_signal(self: Reporter, *arguments: object) -> None:
        pending(self, *arguments)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Reporter, "pending", pending_with_signal)
    monkeypatch.setattr(Reporter, "flush", lambda self: setattr(self, "sound", False))
    assert main(command(data_dir, tmp_path / "run")) == 3
    told = capsys.readouterr().err
    assert (
        "stopped by SIGTERM before any step was saved\nrun the same command to start over" in told
    )
    assert "step 0" not in told


def test_two_starts_at_once_do_not_take_each_others_probe(tmp_path, monkeypatch):
    write_probe, left = start.replace_text, []

    def while_another_starts(path: epath.Path, text: str) -> None:
        write_probe(path, text)
        left.append(path.name)
        for probe in tmp_path.iterdir():  # on another machine, with the same pid
            probe.unlink()

    monkeypatch.setattr(start, "replace_text", while_another_starts)
    ensure_writable(str(tmp_path))
    monkeypatch.setattr(os, "getpid", lambda: 1)
    ensure_writable(str(tmp_path))
    assert len(set(left)) == 2 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("status", "error"), [(503, RunFailed), (403, UserError)])
def test_a_write_that_a_restart_may_repeat_is_no_error_of_the_user(bucket, status, error):
    """The launcher restarts a run after RunFailed and releases the TPUs after UserError."""
    bucket.faults = [Status(status=status, match="^POST")]
    with pytest.raises(error, match=f"{status}, as a fault of the tests"):
        ensure_writable(bucket.url("run"))


@pytest.mark.ci
def test_a_run_directory_that_is_gone_stops_the_run(data_dir, tmp_path, monkeypatch, capsys):
    """No save creates a new directory in its place, which would lack the old one's content."""
    workdir, pending = tmp_path / "run", Reporter.pending

    def pending_and_gone(self: Reporter, step: int, *arguments: object) -> None:
        pending(self, step, *arguments)
        if step == 9:
            while available_steps(workdir) != [SAVE_EVERY]:  # its save has ended
                time.sleep(0.01)
            workdir.rename(tmp_path / "renamed")

    with monkeypatch.context() as patch:
        patch.setattr(Reporter, "pending", pending_and_gone)
        assert main(command(data_dir, workdir)) == 1
    error = capsys.readouterr().err
    assert f"{workdir} was removed or renamed while the run was writing to it: stopped" in error
    assert not workdir.exists() and available_steps(tmp_path / "renamed") == [SAVE_EVERY]
    assert main(command(data_dir, tmp_path / "renamed")) == 0


@pytest.mark.ci
def test_updates_left_out_are_the_same_after_a_restart(data_dir, tmp_path):
    """Updates are skipped for losses above the usual, in both halves of the run."""
    more = ["TRAIN_STEPS=60", "Spikes.deviations=0.5", "Spikes.skips_allowed=60"]
    more += ["Spikes.skip_finite=True", "AdamW.learning_rate=1e-9", "Checkpointing.keep_last=99"]
    arguments = [f"--gin.{binding}" for binding in more]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert main(command(data_dir, whole, *arguments)) == 0
    shutil.copytree(whole, stopped)
    for step in range(40, 61, SAVE_EVERY):
        shutil.rmtree(stopped / "checkpoints" / str(step))
    assert main(command(data_dir, stopped, *arguments)) == 0
    assert logged(stopped) == logged(whole)
    spikes = (whole / "spikes.jsonl").read_text()
    assert (stopped / "spikes.jsonl").read_text() == spikes
    skipped = [json.loads(line)["step"] for line in spikes.splitlines()]
    assert len([step for step in skipped if step <= 35]) > 2 < len([s for s in skipped if s > 35])
    assert_same_state(stopped, whole, 60)


@pytest.mark.ci
def test_dense_and_blockwise_train_alike(data_dir, tmp_path):
    """Twenty steps at length 256, in four blocks, have losses that agree to 1e-4."""
    losses = {}
    for implementation in ("dense", "blockwise"):
        more = {
            "build_decoder.attention": implementation,
            "TRAIN_STEPS": 20,
            "TRAIN_LENGTH": 256,
            "BATCH_SIZE": 4,
        }
        workdir = tmp_path / implementation
        assert main(command(data_dir, workdir, *(f"--gin.{k}={v}" for k, v in more.items()))) == 0
        losses[implementation] = [row["loss"] for row in logged(workdir)]
        assert all(row["fire_kinks"] > 0 == row["fire_dense"] for row in logged(workdir))
    assert len(losses["dense"]) == 20 and losses["dense"][-1] < losses["dense"][0] - 0.3
    np.testing.assert_allclose(losses["blockwise"], losses["dense"], atol=1e-4)
    assert losses["blockwise"] != losses["dense"], "two implementations, not one twice"


def test_the_rate_of_an_interval_that_is_cut_short(monkeypatch):
    """The last step is read right after the one before; by itself it would seem to take no time."""
    now = [0.0]
    monkeypatch.setattr("fire_lm.training.reporter.time.monotonic", lambda: now[0])
    reporter = object.__new__(Reporter)
    reporter._run, reporter.counters = tiny_run(log_every=100), {"tokens": 0}
    reporter._marks = (_Mark(0.0, 0, 0.0, 0),) * 2
    for step, seconds, rate in ((100, 10.0, 100.0), (200, 20.0, 100.0), (201, 20.001, 100.99)):
        now[0], reporter.counters["tokens"], reporter._flops = seconds, 10 * step, 70.0 * step
        assert reporter._rates(step) == pytest.approx((rate, 7 * rate), rel=1e-4)


def report(
    workdir: Path, counters: dict[str, Any], steps: dict[int, dict[str, Any]], **changed: Any
) -> dict[str, Any]:
    """Return the counters, as saved in a checkpoint, after a `Reporter` has read these metrics.

    `steps` changes the defaults: loss 1, gradient norm 1 and 3 tokens. Earlier steps are on disk.
    """
    workdir.mkdir(exist_ok=True)
    reporter = Reporter(
        tiny_run(**{"log_every": 4, **changed}),
        str(workdir),
        min(steps) - 1,
        counters=counters,
        goodput=Goodput(str(workdir), quiet=True),
        newest_saved=lambda: 0,
        quiet=False,
    )
    with contextlib.closing(reporter):
        for step, metrics in steps.items():
            usual = {"loss": 1.0, "grad_norm": 1.0, "tokens": 3.0, "learned": {}}
            usual |= {"batch_hash": np.asarray([step, 7], np.uint32)}
            reporter.pending(step, usual | metrics, 0, reporter._run.lengths.at(step))
        reporter.flush()
    return json.loads(json.dumps(reporter.counters))


@pytest.mark.parametrize("lengths", [(), ((0, 16), (40, 32))])
def test_a_change_of_length_is_no_spike(tmp_path, lengths):
    """Losses of another length tell nothing about those of rows that have become longer."""
    changed: dict[str, Any] = {"train_lengths": lengths, "train_steps": 60}
    steps = {step: {"loss": 2 + 0.1 * (step % 2) + 4 * (step > 40)} for step in range(1, 43)}
    saved = report(tmp_path, new_counters(), steps, **changed)
    assert (tmp_path / "spikes.jsonl").exists() == (lengths == ())
    assert len(saved["recent_losses"]) == (2 if lengths else 42)
    reporter = object.__new__(Reporter)
    reporter._run, reporter.counters = tiny_run(**changed), {"recent_losses": [1.0] * 40}
    for reporter._read, step, known in ((39, 40, True), (39, 41, False), (40, 42, False)):
        assert bool(reporter.recent_losses(step)) == (known or not lengths)
    drawn = changed | {"train_lengths": ((0, (16, 32)),)}
    reporter._run = tiny_run(**drawn)
    assert reporter.recent_losses(40) == [], "of several lengths"
    report(tmp_path / "drawn", new_counters(), steps, **drawn)
    assert not (tmp_path / "drawn" / "spikes.jsonl").exists()


def test_what_encodings_report_between_two_lines_survives_a_restart(tmp_path):
    """The largest value since the last logged line is kept, even if a restart lies between."""
    watched = {2: 7.0, 5: 9.0}  # 9 at step 5, between the lines of steps 4 and 8
    steps: dict[int, dict[str, Any]] = {
        step: {"seen": watched.get(step, 1.0), "learned": {"L/layer_0": step}}
        for step in range(1, 9)
    }
    before, after = ({n: steps[n] for n in part} for part in (range(1, 7), range(7, 9)))
    report(tmp_path / "whole", new_counters(), steps)
    saved = report(tmp_path / "parts", new_counters(), before)
    report(tmp_path / "parts", saved, after)
    assert [row["seen"] for row in logged(tmp_path / "whole")] == [1.0, 7.0, 9.0]
    learned = [row["L/layer_0"] for row in logged(tmp_path / "whole")]
    assert learned == [1.0, 4.0, 8.0], "as the step of the line found it, not the largest"
    assert logged(tmp_path / "parts") == logged(tmp_path / "whole")
    report(tmp_path / "broken", new_counters(), before)
    report(tmp_path / "broken", {**saved, "largest": {}}, after)
    assert logged(tmp_path / "broken") != logged(tmp_path / "whole")


def test_all_processes_start_from_the_checkpoint_that_process_0_chooses(monkeypatch, tmp_path):
    """Another process might list a checkpoint that was completed in the meantime."""
    restored: list[int] = []

    def restore(_: str, step: int, params: Any, allowed: Any) -> tuple[Any, list[str]]:
        restored.append(step)
        return params, []

    monkeypatch.setattr(start, "by_first", lambda work: 7)
    monkeypatch.setattr(start, "restore_params", restore)
    run = tiny_run(init_from=str(tmp_path))
    start.start_from(TrainState(0, {}, run.transformation().init({})), run, None)
    assert restored == [7]


def test_the_shuffle_buffer_is_filled_before_the_first_step(trained, tmp_path, monkeypatch, capsys):
    """Filling it may take longer than the watchdog allows for a step."""
    opened: list[Any] = []
    open_data = loop.open_data

    def opening(*args: Any) -> Any:
        opened.append(open_data(*args))
        return opened[0]

    def compiling(*_: Any) -> None:
        raise RunFailed("filled" if opened[0]._began else "empty")

    monkeypatch.setattr(loop, "open_data", opening)
    monkeypatch.setattr(Pretraining, "compile", compiling)
    run = shutil.copytree(trained / "finished", tmp_path / "run")
    more = command(trained / "text", run, "--gin.TRAIN_STEPS=20", "--allow_config_change")
    assert main(more) == 1
    assert "filled" in capsys.readouterr().err


def test_the_learning_rate_is_computed_only_for_lines_of_the_log(tmp_path, monkeypatch):
    """It is computed on the device, so reading it waits for the step that was just dispatched."""
    updates: list[int] = []

    def schedule(_: Pretraining) -> Any:
        def rate(count: int) -> float:
            updates.append(count)
            return 0.5

        return rate

    monkeypatch.setattr(Pretraining, "schedule", schedule)
    report(tmp_path, new_counters(), {step: {} for step in range(1, 9)}, train_steps=8)
    assert updates == [0, 3, 7]
    assert [row["learning_rate"] for row in logged(tmp_path)] == [0.5, 0.5, 0.5]


def test_a_run_whose_last_step_was_skipped_has_stopped(tmp_path):
    """The last step is not saved, and a restart would only repeat it."""
    skipped = {"loss": math.nan, "skipped": 1.0}
    for name, at, stopped in (("last", 3, 3), ("before", 2, None)):
        steps: dict[int, dict[str, Any]] = {1: {}, 2: {}, 3: {}} | {at: skipped}
        settings = {"train_steps": 3, "spikes": Spikes(skips_allowed=9)}
        report(tmp_path / name, new_counters(), steps, **settings)
        assert stopped_at(tmp_path / name) == stopped


def test_a_skipped_update_takes_no_learning_rate(tmp_path):
    """The optimizer's count stays, so the next step has that rate; also after a restart."""
    steps = {step: {"skipped": float(step in (2, 4))} for step in range(1, 8)}
    settings: dict[str, Any] = {"log_every": 1, "spikes": Spikes(skips_allowed=9)}
    settings |= {"optimizer": AdamW(learning_rate=1.0, warmup_steps=10), "train_steps": 100}
    for run, parts in {"whole": [range(1, 8)], "parts": [range(1, 5), range(5, 8)]}.items():
        counters = new_counters()
        for part in parts:
            counters = report(tmp_path / run, counters, {n: steps[n] for n in part}, **settings)
        rows = logged(tmp_path / run)
        rates = [row["learning_rate"] for row in rows]
        assert rates == pytest.approx([0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.4])
        assert [row["updates_skipped"] for row in rows] == [0, 1, 1, 2, 2, 2, 2]


def test_what_was_logged_after_the_checkpoint_is_cut_off_at_a_resume(tmp_path):
    """Metrics and spikes are cut off, since the steps are repeated and may turn out differently."""
    settings: dict[str, Any] = {"log_every": 1, "spikes": Spikes(skips_allowed=9)}
    skipped: dict[str, Any] = {"skipped": 1.0}
    first = {step: skipped for step in range(1, 7)}
    counters = report(tmp_path, new_counters(), {n: first[n] for n in range(1, 5)}, **settings)
    report(tmp_path, json.loads(json.dumps(counters)), {n: first[n] for n in (5, 6)}, **settings)
    report(tmp_path, counters, {5: {}, 6: skipped}, **settings)  # saved at 4, killed after 6
    assert [row["step"] for row in logged(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert [row["updates_skipped"] for row in logged(tmp_path)] == [1, 2, 3, 4, 4, 5]
    spikes = (tmp_path / "spikes.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in spikes] == [1, 2, 3, 4, 6]


def test_mfu_is_of_the_peak_of_all_devices(tmp_path, monkeypatch):
    """A step per second on 4 devices of 1e6 FLOP/s, of rows that are computed whole.

    The 3 tokens of a step that count in the loss do not matter.
    """
    now = [0.0]
    monkeypatch.setattr("fire_lm.training.reporter.time.monotonic", lambda: now[0])
    monkeypatch.setattr("fire_lm.training.reporter.peak_flops", lambda kind: 1e6)

    flush = Reporter.flush

    def a_second_later(self: Reporter) -> None:
        now[0] += self._waiting is not None
        flush(self)

    monkeypatch.setattr(Reporter, "flush", a_second_later)
    report(tmp_path, new_counters(), {n: {} for n in range(1, 9)})
    expected = 8 * 16 * tiny_run().flops_per_token / (4 * 1e6)
    assert [row["mfu"] for row in logged(tmp_path)] == pytest.approx([expected] * 3)


@pytest.mark.ci
def test_skipped_documents_are_counted_in_the_metrics(tmp_path):
    """Empty and undecodable documents count, also after a restart; our own corpora have none."""
    text = b"fire and rope are positions, so they say. " * 4
    documents = {str(i): (text, b"", b"\xff\xfe bytes")[i % 3] for i in range(48)}
    c4_writer.write(tmp_path / "data", {"train": documents, "validation": {"0": text}})
    whole = command(tmp_path / "data", tmp_path / "whole")
    assert main(whole) == 0
    skipped = [row["documents_skipped"] for row in logged(tmp_path / "whole")]
    assert 0 < skipped[0] <= skipped[5] < skipped[-1]
    for name in ("10", str(STEPS)):
        shutil.rmtree(tmp_path / "whole" / "checkpoints" / name)
    assert main(whole) == 0  # resumes from step 5
    assert [row["documents_skipped"] for row in logged(tmp_path / "whole")] == skipped


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("BATCH_SIZE=6", "make BATCH_SIZE a multiple of 4"),
        ("DATA_DIR=no/such/place", "no/such/place"),
        ("VOCABULARY=no/such.model", "Vocabulary file not found: no/such.model"),
        (
            "VOCAB_SIZE=200",
            "'bytes' has 259 ids, but the model's embedding has only 200 rows: set --gin.VOCAB",
        ),
        ("SEED=-1", "SEED is -1"),
        ("BATCH_SIZE=0", "batch_size is 0: it must be 1 or more"),
        ("pretrain.log_every=0", "log_every is 0: it must be 1 or more"),
        ("size_tiny.num_heads=0", "the model's num_heads is 0: it must be positive"),
        ("INIT_FROM=no/such/run", "no/such/run contains no run"),
    ],
)
def test_a_setting_that_cannot_work(setting, told, data_dir, tmp_path, capsys):
    assert main(command(data_dir, tmp_path / "run", f"--gin.{setting}")) == 2
    error = capsys.readouterr().err
    assert told in error and "Traceback" not in error
    assert len(error.strip().splitlines()) <= 3
    assert not (tmp_path / "run" / "config.gin").exists()


def test_a_workdir_that_cannot_be_written(data_dir, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(command(data_dir, tmp_path / "file" / "run")) == 2
    assert f"cannot write to --workdir {tmp_path}/file/run: Not a dir" in capsys.readouterr().err


def test_dry_run_allocates_and_writes_nothing(tmp_path, monkeypatch, capsys):
    """The plan is for 128 chips, on four fake devices and without data."""
    held = []

    def describe(run):
        held.append(sum(array.nbytes for array in jax.live_arrays()))
        return training_describe(run)

    training_describe = training.describe
    monkeypatch.setattr(training, "describe", describe)
    files = [f"--gin_file=configs/{name}.gin" for name in ("runs/c4_125m", "positions/fire")]
    before = sum(array.nbytes for array in jax.live_arrays())
    assert main(["pretrain", *files, f"--workdir={tmp_path / 'run'}", "--dry_run"]) == 0
    assert held[0] - before < 2**10
    assert "data=8 x fsdp=16 x tensor=1 = 128 devices" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
