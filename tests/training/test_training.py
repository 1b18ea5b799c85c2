"""`fire-lm pretrain` in this process: what a run leaves, how it goes on, how it refuses."""

import contextlib
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath
from sample_run import (
    SAVE_EVERY,
    STEPS,
    command,
    logged,
    quick_compiles,  # noqa: F401  (a fixture)
    saved_state,
    tiny_run,
    write_text,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fire_lm import training
from fire_lm.checkpoints import available_steps
from fire_lm.cli import main
from fire_lm.data.corpora import c4_writer
from fire_lm.training import AdamW, Spikes, start
from fire_lm.training.goodput import Goodput
from fire_lm.training.lock import only_writer
from fire_lm.training.reporter import Reporter, new_counters
from fire_lm.training.start import ensure_writable


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "data")


@pytest.fixture(scope="module")
def finished(data_dir, tmp_path_factory):
    """The workdir of a whole run; tests change only copies of it."""
    workdir = tmp_path_factory.mktemp("runs") / "finished"
    assert main(command(data_dir, workdir)) == 0
    return workdir


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def test_a_run_leaves_the_files_of_the_contract(finished):
    assert "TRAIN_STEPS = 12" in (finished / "config.gin").read_text()
    assert available_steps(finished) == [SAVE_EVERY, 2 * SAVE_EVERY, STEPS]
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["tokens"] for row in rows] == [8 * 32 * row["step"] for row in rows]
    contract = {"step", "tokens", "loss", "grad_norm", "learning_rate", "tokens_per_second"}
    assert contract <= rows[0].keys()
    events = EventAccumulator(str(finished))
    events.Reload()
    for name in contract - {"step"}:
        shown = {event.step: event.value for event in events.Scalars(name)}
        assert shown == {row["step"]: pytest.approx(row[name]) for row in rows}


def test_what_fire_learns_is_logged(finished):
    """A quarter of the training length and Appendix E's c at first; then both move."""
    rows = logged(finished)
    for name, initial in (("L", 8.0), ("c", 0.1)):
        values = [row[f"{name}/layer_0"] for row in rows]
        assert values[0] == pytest.approx(initial) and len(set(values)) > STEPS // 2


def test_training_learns(finished):
    losses = [row["loss"] for row in logged(finished)]
    assert abs(losses[1] - losses[0]) < 0.1  # the first learning rate is 0: nothing is learnt
    assert losses[-1] < losses[0] - 2


@pytest.mark.ci
def test_again_does_nothing_and_more_steps_go_on(copy, data_dir):
    before = (copy / "metrics.jsonl").read_bytes()
    assert main(command(data_dir, copy)) == 0
    assert (copy / "metrics.jsonl").read_bytes() == before
    assert main(command(data_dir, copy, f"--gin.TRAIN_STEPS={STEPS + 2}")) == 0
    assert (copy / "metrics.jsonl").read_bytes().startswith(before)
    assert [row["step"] for row in logged(copy)] == list(range(1, STEPS + 3))
    assert available_steps(copy)[-1] == STEPS + 2


def test_another_configuration_is_refused_unless_allowed(copy, data_dir, capsys):
    changed = command(data_dir, copy, "--gin.BATCH_SIZE=4", f"--gin.TRAIN_STEPS={STEPS + 1}")
    before = sorted(path.name for path in copy.iterdir())
    assert main(changed) == 2
    told = capsys.readouterr().err
    assert "another experiment" in told and "BATCH_SIZE: 8 -> 4" in told
    assert "--allow_config_change" in told and "TRAIN_STEPS" not in told
    assert sorted(path.name for path in copy.iterdir()) == before

    assert main([*changed, "--allow_config_change"]) == 0
    assert "BATCH_SIZE = 8" in (copy / "config.gin").read_text()
    assert "BATCH_SIZE = 4" in (copy / "config_1.gin").read_text()
    tokens = [row["tokens"] for row in logged(copy)]
    assert tokens[-1] - tokens[-2] == 4 * 32
    assert main(command(data_dir, copy)) == 2  # the latest counts now
    told = capsys.readouterr().err
    assert "(config_1.gin)" in told and "BATCH_SIZE: 4 -> 8" in told


def test_fewer_steps_are_another_configuration(copy, data_dir, capsys):
    assert main(command(data_dir, copy, f"--gin.TRAIN_STEPS={STEPS - 1}")) == 2
    assert "TRAIN_STEPS: 12 -> 11" in capsys.readouterr().err


# --- Stopped, resumed.


@pytest.mark.ci
def test_sigterm_saves_and_the_same_command_resumes(
    finished, data_dir, tmp_path, monkeypatch, capsys
):
    stopped, broken = tmp_path / "stopped", tmp_path / "broken"
    pending = Reporter.pending

    def pending_with_signal(self: Reporter, step: int, *arguments: object) -> None:
        pending(self, step, *arguments)
        if step == 7:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Reporter, "pending", pending_with_signal)
        assert main(command(data_dir, stopped)) == 3
    assert "stopped by SIGTERM after step 7, which is saved" in capsys.readouterr().err
    assert available_steps(stopped) == [SAVE_EVERY, 7]
    assert logged(stopped) == logged(finished)[:7]
    shutil.copytree(stopped, broken)

    assert main(command(data_dir, stopped)) == 0
    assert logged(stopped) == logged(finished)
    assert_same_state(stopped, finished)

    from fire_lm.data.on_the_fly import pipeline

    monkeypatch.setattr(pipeline.TrainIterator, "set_state", lambda self, state: None)
    assert main(command(data_dir, broken)) == 0
    assert logged(broken)[:7] == logged(finished)[:7]
    assert logged(broken)[7:] != logged(finished)[7:]  # the text began again
    with pytest.raises(AssertionError):
        assert_same_state(broken, finished)


def test_sigterm_before_anything_is_saved_is_told_so(data_dir, tmp_path, monkeypatch, capsys):
    """As when the first losses are not finite, and their updates left out."""
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


def assert_same_state(run: Path, other: Path) -> None:
    found, expected = saved_state(run, STEPS), saved_state(other, STEPS)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_nan_stops_and_keeps_the_last_good_checkpoint(copy, data_dir, capsys):
    bindings = ["AdamW.learning_rate=1e30", "TRAIN_STEPS=20", "Checkpointing.save_every=1"]
    absurd = [f"--gin.{binding}" for binding in bindings]
    assert main(command(data_dir, copy, *absurd, "--allow_config_change")) == 1
    first, second = capsys.readouterr().err.strip().splitlines()
    assert first.endswith(f"nan at step {STEPS + 2}: stopped")
    assert f"of a step with finite loss: {STEPS + 1}; --gin.Spikes.skips_allowed=" in second
    assert available_steps(copy)[-1] == STEPS + 1
    assert all(np.isfinite(leaf).all() for leaf in saved_state(copy, STEPS + 1).values())
    assert [row["step"] for row in logged(copy)] == list(range(1, STEPS + 2))


@pytest.mark.ci
def test_a_run_directory_that_is_gone_stops_the_run(data_dir, tmp_path, monkeypatch, capsys):
    """And no save makes a new one in its place, without what was in it."""
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
def test_updates_left_out_are_bounded(copy, data_dir, capsys):
    bindings = ["AdamW.learning_rate=1e30", "TRAIN_STEPS=20", "Spikes.skips_allowed=3"]
    bindings += ["Checkpointing.save_every=1", "Checkpointing.keep_last=1"]
    absurd = [f"--gin.{binding}" for binding in bindings]
    assert main(command(data_dir, copy, *absurd, "--allow_config_change")) == 1
    first, second = capsys.readouterr().err.strip().splitlines()
    assert first.endswith(f"nan at step {STEPS + 5}: stopped")
    assert second.endswith("4 updates have been left out, 3 are allowed")
    spikes = [json.loads(line) for line in (copy / "spikes.jsonl").read_text().splitlines()]
    assert [spike["step"] for spike in spikes] == list(range(STEPS + 2, STEPS + 6))
    assert all(spike["loss"] == "nan" and spike["skipped"] for spike in spikes)
    assert [spike.get("stopped") for spike in spikes] == [None, None, None, True]
    rows = logged(copy)[STEPS:]
    assert [row["updates_skipped"] for row in rows] == [0, 1, 2, 3]
    schedule = AdamW(learning_rate=1e30, warmup_steps=2).schedule(20)
    updates = [STEPS, STEPS + 1, STEPS + 1, STEPS + 1]  # as the optimizer counts them, from 0
    assert [row["learning_rate"] for row in rows] == [float(schedule(n)) for n in updates]
    assert "loss" not in logged(copy)[-1], "JSON has no NaN"
    assert available_steps(copy) == [STEPS + 1], "no broken state takes the place of a sound one"


@pytest.mark.ci
def test_a_damaged_checkpoint_is_left_for_the_one_before(finished, data_dir, tmp_path, capsys):
    """Through the command, to the same bits."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    array = max((run / "checkpoints" / str(STEPS)).glob("state/**/d/*"), key=os.path.getsize)
    content = bytearray(array.read_bytes())
    content[len(content) // 2] ^= 1
    array.write_bytes(content)
    assert main(command(data_dir, run)) == 0
    told = capsys.readouterr()
    assert f"checkpoint {STEPS} of {run} is damaged (" in told.err and "from step 10" in told.err
    assert "resuming from step 10" in told.out
    assert logged(run) == logged(finished)
    assert_same_state(run, finished)
    assert (run / "checkpoints" / f"{STEPS}.damaged").is_dir()


@pytest.mark.ci
def test_updates_left_out_are_the_same_after_a_restart(data_dir, tmp_path):
    """Those of losses above the usual, some of each half of the run."""
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
    found, expected = saved_state(stopped, 60), saved_state(whole, 60)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.ci
def test_dense_and_blockwise_train_alike(data_dir, tmp_path):
    """Twenty steps at length 256, in four blocks: losses equal to 1e-4."""
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
    """The last step is read right behind the one before: by itself it seems to take no time."""
    now = [0.0]
    monkeypatch.setattr("fire_lm.training.reporter.time.monotonic", lambda: now[0])
    reporter = object.__new__(Reporter)
    reporter._run, reporter.counters = tiny_run(log_every=100), {"tokens": 0}
    reporter._marks = ((0.0, 0, 0), (0.0, 0, 0))
    for step, seconds, rate in ((100, 10.0, 100.0), (200, 20.0, 100.0), (201, 20.001, 100.99)):
        now[0], reporter.counters["tokens"] = seconds, 10 * step
        assert reporter._tokens_per_second(step) == pytest.approx(rate, rel=1e-4)


def report(
    workdir: Path, counters: dict[str, Any], steps: dict[int, dict[str, Any]], **changed: Any
) -> dict[str, Any]:
    """The counters, as a checkpoint keeps them, once a `Reporter` has read these steps' metrics.

    Changes are to loss 1, gradient 1 and 3 tokens; those before the first step are on disk.
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
            reporter.pending(step, usual | metrics, 0)
        reporter.flush()
    return json.loads(json.dumps(reporter.counters))


def test_what_encodings_report_between_two_lines_survives_a_restart(tmp_path):
    """The largest since the last line of the log, also if a restart lies between."""
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


def test_the_learning_rate_is_that_of_the_step(finished):
    """And so that of the update which the optimizer counted, from 0: the warm-up begins at 0."""
    schedule = AdamW(learning_rate=0.01, warmup_steps=2).schedule(STEPS)
    rates = [row["learning_rate"] for row in logged(finished)]
    assert rates == [float(schedule(step)) for step in range(STEPS)]
    assert rates[:3] == pytest.approx([0, 0.005, 0.01]) and len(set(rates)) == STEPS
    (count,) = {
        int(value)
        for name, value in saved_state(finished, SAVE_EVERY).items()
        if name.endswith("/count")
    }
    assert rates[SAVE_EVERY - 1] == float(schedule(count - 1))


def test_a_skipped_update_takes_no_learning_rate(tmp_path):
    """The optimizer's count stays, so the next step has its rate; also after a restart."""
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
    """Metrics and spikes alike; the steps come again, and may do so otherwise."""
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
    """3 tokens a second on 4 devices of 1e6 FLOP/s."""
    now = [0.0]
    monkeypatch.setattr("fire_lm.training.reporter.time.monotonic", lambda: now[0])
    monkeypatch.setattr("fire_lm.training.reporter.peak_flops", lambda kind: 1e6)

    flush = Reporter.flush

    def a_second_later(self: Reporter) -> None:
        now[0] += self._waiting is not None
        flush(self)

    monkeypatch.setattr(Reporter, "flush", a_second_later)
    report(tmp_path, new_counters(), {n: {} for n in range(1, 9)})
    expected = 3 * tiny_run().flops_per_token / (4 * 1e6)
    assert [row["mfu"] for row in logged(tmp_path)] == pytest.approx([expected] * 3)


def test_a_second_writer_is_refused(data_dir, finished, capsys):
    """While the first one has the run directory, and no longer."""
    with only_writer(str(finished)):
        assert main(command(data_dir, finished)) == 2
        error = capsys.readouterr().err
        assert f"{finished} is being written by process {os.getpid()} on " in error
    assert main(command(data_dir, finished)) == 0


# --- From another run.


@pytest.mark.ci
def test_init_from_takes_the_parameters_alone(finished, data_dir, tmp_path):
    """One step at learning rate 0 leaves the parameters as they came."""
    bindings = ["AdamW.learning_rate=0.0", "AdamW.warmup_steps=0", "TRAIN_STEPS=1"]
    more = [f"--gin.{binding}" for binding in [*bindings, f"INIT_FROM={finished}@10"]]
    assert main(command(data_dir, tmp_path / "new", *more)) == 0
    assert [row["step"] for row in logged(tmp_path / "new")] == [1]
    found, source = saved_state(tmp_path / "new", 1), saved_state(finished, 10)
    other = saved_state(finished, STEPS)
    params = [name for name in source if name.startswith("params/")]
    assert all(np.array_equal(found[name], source[name]) for name in params)
    assert not any(np.array_equal(found[name], other[name]) for name in params)
    counts = [name for name in source if name.endswith("/count")]
    assert counts and all((found[name], source[name]) == (1, 10) for name in [*counts, "step"])


@pytest.mark.ci
def test_a_run_resumes_without_the_run_that_it_started_from(finished, data_dir, tmp_path):
    source = shutil.copytree(finished, tmp_path / "source")
    start = command(data_dir, tmp_path / "new", f"--gin.INIT_FROM={source}")
    assert main(start) == 0
    source.rename(tmp_path / "gone")
    assert main([*start, f"--gin.TRAIN_STEPS={STEPS + 1}"]) == 0
    assert logged(tmp_path / "new")[-1]["step"] == STEPS + 1


@pytest.mark.ci
def test_skipped_documents_are_counted_in_the_metrics(tmp_path):
    """Empty and undecodable ones, also over a restart; a corpus of ours would not hold them."""
    text = b"fire and rope are positions, so they say. " * 4
    documents = {str(i): (text, b"", b"\xff\xfe bytes")[i % 3] for i in range(48)}
    c4_writer.write(tmp_path / "data", {"train": documents, "validation": {"0": text}})
    whole = command(tmp_path / "data", tmp_path / "whole")
    assert main(whole) == 0
    skipped = [row["documents_skipped"] for row in logged(tmp_path / "whole")]
    assert 0 < skipped[0] <= skipped[5] < skipped[-1]
    for name in ("10", str(STEPS)):
        shutil.rmtree(tmp_path / "whole" / "checkpoints" / name)
    assert main(whole) == 0  # goes on from step 5
    assert [row["documents_skipped"] for row in logged(tmp_path / "whole")] == skipped


@pytest.mark.ci
def test_init_from_another_encoding(finished, data_dir, tmp_path, capsys):
    """FIRE-S has the parameters of FIRE once instead of once a layer, at another path."""
    init = f"--gin.INIT_FROM={finished}"
    start = command(data_dir, tmp_path / "new", init, position="fire_s")
    assert main(start) == 2
    told = capsys.readouterr().err
    assert "@12 lacks position/L_multiplier, position/c, position/mlp/dense_0/bias" in told
    assert "and has left over layers/position/L_multiplier, layers/position/c" in told
    flags = re.findall(r"'(--gin.pretrain.init_allow_\w+=[^']+)'", told)
    assert len(flags) == 2
    assert main([*start, flags[0]]) == 2
    start += flags
    assert main(start) == 0
    told = capsys.readouterr().out
    assert f"model against {finished}: share_position False -> True" in told
    assert f"parameters of {finished}@12; fresh, as it lacks them: position/L_multiplier" in told
    assert logged(tmp_path / "new")[0]["loss"] < logged(finished)[0]["loss"] - 2


# --- What cannot work is told before anything is trained.


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("BATCH_SIZE=6", "make BATCH_SIZE a multiple of 4"),
        ("MeshShape.data=8", "mesh data=8 x fsdp=1 x tensor=1 needs 8 devices, this job has 4"),
        ("DATA_DIR=no/such/place", "no/such/place"),
        ("VOCABULARY=no/such.model", "Vocabulary file not found: no/such.model"),
        ("VOCAB_SIZE=200", "vocabulary 'bytes' has 259 ids, the model 200 rows: set --gin.VOCAB_"),
        ("AdamW.warmup_steps=12", "warm-up of 12 steps does not fit into TRAIN_STEPS = 12"),
        ("SEED=-1", "SEED is -1"),
        ("BATCH_SIZE=0", "batch_size is 0: it must be 1 or more"),
        ("pretrain.log_every=0", "log_every is 0: it must be 1 or more"),
        ("size_tiny.num_heads=0", "the model's num_heads is 0: it must be positive"),
        ("INIT_FROM=no/such/run", "no/such/run holds no run"),
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
    """Of 128 chips, on four fake devices, without data."""
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
