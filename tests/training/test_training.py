"""`fire-lm pretrain` in this process: what a run leaves, how it resumes, what it refuses."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from sample_blocks import blocks, whole  # noqa: F401 (fixtures)
from sample_run import (
    SAVE_EVERY,
    STEPS,
    assert_same_state,
    command,
    command_on_blocks,
    logged,
    saved_state,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fire_lm.checkpoints import available_steps, restore_params
from fire_lm.cli import main
from fire_lm.data import TextData, scoring_text
from fire_lm.errors import RunFailed
from fire_lm.models import token_losses
from fire_lm.reporting.history import earlier_settings
from fire_lm.runs.saved import read_saved, saved_experiment
from fire_lm.training import AdamW, Pretraining, loop
from fire_lm.training.lock import only_writer
from fire_lm.training.reporter import Reporter


@pytest.fixture
def finished(trained) -> Path:
    """Return a finished run; tests change only copies of it."""
    return trained / "finished"


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
    """L starts at a quarter of the training length and c as in Appendix E; then both change."""
    rows = logged(finished)
    for name, initial in (("L", 8.0), ("c", 0.1)):
        values = [row[f"{name}/layer_0"] for row in rows]
        assert values[0] == pytest.approx(initial) and len(set(values)) > STEPS // 2


@pytest.mark.ci
def test_ids_without_a_row_are_refused_before_the_compilation(
    data_dir, tmp_path, monkeypatch, capsys
):
    """Data can contain ids that its vocabulary does not state; the losses would be NaN."""
    monkeypatch.setattr(loop, "check_vocabulary", lambda *_: None)
    monkeypatch.setattr(Pretraining, "compile", lambda *_: pytest.fail("a compilation began"))
    assert main(command(data_dir, tmp_path / "run", "--gin.VOCAB_SIZE=100")) == 2
    told = r"the training data contains the token id \d+, but .* has only 100 rows \(VOCAB_SIZE\)"
    assert re.search(told, capsys.readouterr().err)
    assert not (tmp_path / "run/config.gin").exists()


def held_out_losses(workdir: Path, step: int) -> tuple[list[float], list[float]]:
    """Return the mean losses of two rows at 16 and 32 tokens, and by bins of four positions."""
    saved = read_saved(str(workdir))
    assert saved is not None
    run = saved.experiment.train
    assert isinstance(run.data, TextData)
    text = scoring_text(run.data, length=32, num_sequences=2, split="validation")
    params = restore_params(str(workdir), step, run.abstract_state().params)[0]
    losses = []
    for length in (16, 32):
        targets_BT = text.targets.reshape(-1, length)
        pos_BT = np.broadcast_to(np.arange(length, dtype=np.int32), targets_BT.shape)
        rows = map(jnp.asarray, (targets_BT, pos_BT))
        losses.append(np.asarray(token_losses(run.model, params, *rows)[0]))
    return [float(x.mean()) for x in losses], losses[1].reshape(2, 8, 4).mean((0, 2)).tolist()


TRACKER = """
import dataclasses, io, pathlib

@dataclasses.dataclass(frozen=True)
class Lines:
    def check(self):
        pass

    def open(self, workdir, resume_step):
        class Log(io.FileIO):
            def write(self, step, values):
                super().write(f"{step} ".encode())
        return Log(pathlib.Path(workdir) / "mine.txt", "w")
"""


def test_training_learns(finished):
    losses = [row["loss"] for row in logged(finished)]
    assert abs(losses[1] - losses[0]) < 0.1  # the first learning rate is 0: no change
    assert losses[-1] < losses[0] - 2


@pytest.mark.ci
def test_again_does_nothing_and_more_steps_go_on(copy, data_dir, tmp_path, monkeypatch):
    before = (copy / "metrics.jsonl").read_bytes()
    assert main(command(data_dir, copy)) == 0
    assert (copy / "metrics.jsonl").read_bytes() == before
    # Overlapping operations in another way, which only TPUs do, is the same experiment.
    # So is one that is observed by other trackers, and evaluated while it trains.
    overlap = "--gin.pretrain.overlap_gathers=True"
    (tmp_path / "my_tracker.py").write_text(TRACKER)
    monkeypatch.syspath_prepend(tmp_path)
    mine = (
        *("--import=my_tracker", "--gin.pretrain.trackers=(@Lines(),)"),
        *("--gin.pretrain.evaluation=@TrainingLosses()", "--gin.TrainingLosses.every=1"),
        *("--gin.TrainingLosses.lengths=(16,32)", "--gin.TrainingLosses.tokens=64"),
    )
    assert main(command(data_dir, copy, f"--gin.TRAIN_STEPS={STEPS + 2}", overlap, *mine)) == 0
    assert (copy / "mine.txt").read_text() == f"{STEPS + 1} {STEPS + 2} "
    assert (copy / "metrics.jsonl").read_bytes().startswith(before)
    rows = logged(copy)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 3))
    assert [("validation/16" in row) for row in rows] == [False] * STEPS + [True] * 2
    by_length, by_position = held_out_losses(copy, STEPS + 2)
    found = [rows[-1][f"validation/{length}"] for length in (16, 32)]
    np.testing.assert_allclose(found, by_length, rtol=1e-5)
    found = [rows[-1][f"validation_at/{first}"] for first in range(0, 32, 4)]
    np.testing.assert_allclose(found, by_position, rtol=1e-5)
    assert rows[-1]["validation/effective_length"] in (16, 32)
    assert available_steps(copy)[-1] == STEPS + 2


@pytest.mark.ci
def test_another_configuration_is_refused_unless_allowed(copy, data_dir, capsys):
    changed = command(data_dir, copy, "--gin.BATCH_SIZE=4", f"--gin.TRAIN_STEPS={STEPS + 1}")
    before = sorted(path.name for path in copy.iterdir())
    assert main(changed) == 2
    told = capsys.readouterr().err
    assert "another experiment" in told and "BATCH_SIZE: 8 -> 4" in told
    assert "--allow_config_change" in told and "TRAIN_STEPS" not in told
    assert sorted(path.name for path in copy.iterdir()) == before

    tables = [copy / "task_table.csv", copy / "measures" / "own.csv"]
    predictions = [copy / "predictions" / f"t.s.plain.{n}.64.jsonl" for n in (STEPS, STEPS + 1)]
    for path in (*tables, *predictions):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"run,step,score\na,{STEPS},1\na,{STEPS + 1},2\n")
    assert main([*changed, "--allow_config_change"]) == 0
    for path in tables:
        assert path.read_text() == f"run,step,score\na,{STEPS},1\n", "of steps that were redone"
    assert [path.exists() for path in predictions] == [True, False]
    changed_settings = earlier_settings({"run": epath.Path(copy)}, {"run": saved_experiment(copy)})
    assert [(one.name, one.value) for one in changed_settings] == [
        ("earlier.BATCH_SIZE", f"8 until step {STEPS}")
    ]
    assert "BATCH_SIZE = 8" in (copy / "config.gin").read_text()
    assert "BATCH_SIZE = 4" in (copy / "config_1.gin").read_text()
    tokens = [row["tokens"] for row in logged(copy)]
    assert tokens[-1] - tokens[-2] == 4 * 32
    assert main(command(data_dir, copy)) == 2  # the latest configuration counts
    told = capsys.readouterr().err
    assert "(config_1.gin)" in told and "BATCH_SIZE: 4 -> 8" in told


def test_fewer_steps_are_another_configuration(copy, data_dir, capsys):
    assert main(command(data_dir, copy, f"--gin.TRAIN_STEPS={STEPS - 1}")) == 2
    assert "TRAIN_STEPS: 12 -> 11" in capsys.readouterr().err


@pytest.mark.ci
def test_the_steps_before_a_batch_that_cannot_be_read_are_saved(
    blocks,  # noqa: F811
    tmp_path,
    monkeypatch,
    capsys,
):
    """Each restart would otherwise repeat them, and fail at the same batch.

    A batch that is read and then refused is read again.
    """
    read, last = loop.next_batch, SAVE_EVERY + 1

    def unreadable(batches, run, step):
        if step > last:
            raise RunFailed("a damaged chunk")
        return read(batches, run, step)

    def refused(batches, run, step):
        batch = read(batches, run, step)
        if step > last:
            raise RunFailed("an unknown token")
        return batch

    run, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    for broken, saved in ((refused, [SAVE_EVERY]), (unreadable, [SAVE_EVERY, last])):
        with monkeypatch.context() as patched:
            patched.setattr(loop, "next_batch", broken)
            assert main(command_on_blocks(blocks, run)) == 1
        told = capsys.readouterr().out
        assert available_steps(run) == saved
        assert (f"the batch of step {last + 1} cannot be read" in told) == (broken is unreadable)
    for workdir in (run, undisturbed):
        assert main(command_on_blocks(blocks, workdir)) == 0
    assert_same_state(run, undisturbed)


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

    monkeypatch.setattr(pipeline.SeqioIterator, "set_state", lambda self, state: None)
    assert main(command(data_dir, broken)) == 0
    assert logged(broken)[:7] == logged(finished)[:7]
    assert logged(broken)[7:] != logged(finished)[7:]  # the text started again
    with pytest.raises(AssertionError):
        assert_same_state(broken, finished)


def test_nan_stops_and_keeps_the_last_good_checkpoint(copy, data_dir, monkeypatch, capsys):
    """It resumes at step 10 with the program that it had; step 11 leaves absurd parameters."""
    shutil.rmtree(copy / "checkpoints" / str(STEPS))
    compiled_for = loop.compiled_for

    def explodes(*args):
        step = compiled_for(*args)

        def exploding(*given):
            state, metrics = step(*given)
            return state.replace(
                params=jax.tree.map(lambda leaf: 1e30 * leaf, state.params)
            ), metrics

        return exploding

    monkeypatch.setattr(loop, "compiled_for", explodes)
    often = ["--gin.Checkpointing.save_every=1", "--allow_config_change"]
    assert main(command(data_dir, copy, *often)) == 1
    first, second = capsys.readouterr().err.strip().splitlines()
    assert first.endswith(f"nan at step {STEPS}: stopped")
    assert f"with a finite loss: {STEPS - 1}; to skip such updates, add --gin." in second
    assert available_steps(copy)[-1] == STEPS - 1
    assert all(np.isfinite(leaf).all() for leaf in saved_state(copy, STEPS - 1).values())
    assert [row["step"] for row in logged(copy)] == list(range(1, STEPS))


@pytest.mark.ci
def test_updates_left_out_are_bounded(copy, data_dir, capsys):
    bindings = ["AdamW.learning_rate=1e30", "TRAIN_STEPS=20", "Spikes.skips_allowed=3"]
    bindings += ["Checkpointing.save_every=1", "Checkpointing.keep_last=1"]
    absurd = [f"--gin.{binding}" for binding in bindings]
    assert main(command(data_dir, copy, *absurd, "--allow_config_change")) == 1
    first, second = capsys.readouterr().err.strip().splitlines()
    assert first.endswith(f"nan at step {STEPS + 5}: stopped")
    assert second.endswith("4 updates have been skipped, more than Spikes.skips_allowed = 3")
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
    """The command falls back to the previous checkpoint and reaches the same bits."""
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


def test_the_learning_rate_is_that_of_the_step(finished):
    """The optimizer counts updates from 0, so that the warm-up starts at 0."""
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


def test_a_second_writer_is_refused(data_dir, copy, capsys):
    """It is refused only while the first one holds the run directory."""
    with only_writer(str(copy)):
        assert main(command(data_dir, copy)) == 2
        assert f"{copy} is in use by process {os.getpid()} on " in capsys.readouterr().err
    assert main(command(data_dir, copy)) == 0


@pytest.mark.ci
def test_init_from_takes_the_parameters_alone(finished, data_dir, tmp_path):
    """One step at learning rate 0 leaves the source's parameters unchanged."""
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
def test_init_from_another_encoding(finished, data_dir, tmp_path, capsys):
    """FIRE-S has FIRE's parameters once instead of once per layer, at another path."""
    init = f"--gin.INIT_FROM={finished}"
    start = command(data_dir, tmp_path / "new", init, position="fire_s")
    assert main(start) == 2
    told = capsys.readouterr().err
    assert (
        "@12 lacks parameters (position/L_multiplier, position/c, position/mlp/dense_0/bias" in told
    )
    assert "and has unused parameters (layers/position/L_multiplier, layers/position/c" in told
    flags = re.findall(r"'(--gin.pretrain.init_allow_\w+=[^']+)'", told)
    assert len(flags) == 2
    assert main([*start, flags[0]]) == 2
    start += flags
    assert main(start) == 0
    told = capsys.readouterr().out
    assert f"model compared with {finished}: share_position False -> True" in told
    assert f"parameters of {finished}@12; newly initialised: position/L_multiplier" in told
    assert logged(tmp_path / "new")[0]["loss"] < logged(finished)[0]["loss"] - 2
