"""`fire-lm evaluate`: what it measures, writes, skips and refuses, over a run of twenty steps."""

import contextlib
import dataclasses
import functools
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from etils import epath
from sample_run import logged, saved_state
from sample_sweeps import Sweeps

from fire_lm import cli
from fire_lm.cli import evaluate
from fire_lm.cli.evaluate import Accuracies
from fire_lm.data import Synthetic
from fire_lm.errors import UserError
from fire_lm.experiment import Experiment, load_experiment
from fire_lm.generation.generate import check_prompts
from fire_lm.measures import Cell, RunModel, exercise_answers, length_accuracy
from fire_lm.measures.exercise_answers import generated_answers
from fire_lm.measures.length_accuracy import FILE, SCORES, AccuracyByLength, exercise_lengths
from fire_lm.models import build_decoder, size_tiny
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.learned import Learned
from fire_lm.positions.nope import NoPE
from fire_lm.positions.resampling import RandomizedPositions, Resampling
from fire_lm.results import LengthAccuracy, TaskScore, read_table, write_table
from fire_lm.sweeps.command import compute_cells
from fire_lm.sweeps.settings import Setting
from fire_lm.tasks.synthetic import DecimalAddition, ModularArithmetic, ReverseString
from fire_lm.tasks.synthetic.exercises import fixed_samples
from fire_lm.tasks.synthetic.layouts import FIRST_SYMBOL
from fire_lm.tasks.synthetic.scoring import Tally

SIZE = "--gin.size_tiny.num_layers=1 --gin.size_tiny.hidden_size=16 --gin.size_tiny.num_heads=2"


def trained(workdir: Path, *more: str) -> str:
    asked = [
        "--gin_file=configs/synthetic/reverse_string.gin",
        "--gin_file=configs/resampling/even.gin",
        "--gin.RandomizedPositions.max_length=64",
        # 2 to 15 tokens, in a quarter of 64: one compilation of the training step.
        "--gin.TRAIN_LENGTH=64",
        "--gin.Synthetic.max_length=7",
        "--gin.AdamW.warmup_steps=1",
        "--gin.TRAIN_STEPS=3",
        "--gin.BATCH_SIZE=4",
    ]
    arguments = [*asked, *SIZE.split(), f"--workdir={workdir}", *more]
    assert cli.main(["pretrain", "--gin_file=configs/positions/fire.gin", *arguments]) == 0
    return str(workdir)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Train two runs of a task, one for each layout; return their folder."""
    folder = tmp_path_factory.mktemp("runs")
    trained(folder / "slots")
    trained(folder / "generated", "--gin.Synthetic.layout='autoregressive'")
    return folder


def rows(folder: Path) -> list[LengthAccuracy]:
    return read_table(epath.Path(folder) / FILE, LengthAccuracy)


def of_a_run(
    workdir: epath.Path, variant: str = "", lengths: Sequence[int] = (), **settings: Any
) -> tuple[AccuracyByLength, Cell]:
    """Return the measure of a run on additions of 2 to 4 digits, and its cell at step 7."""
    model = build_decoder(size_tiny(), NoPE, 115, 27, resampling=RandomizedPositions(64))
    settings.setdefault("positions", "plain")
    settings.setdefault("sequences", 8)
    data = Synthetic(task=DecimalAddition(), max_length=4)
    measure = AccuracyByLength(data, tuple(lengths), **settings)
    (cell,) = measure.plan(RunModel(workdir, "fire", variant, model), 7)
    return measure, cell


def row(measure: AccuracyByLength, cell: Cell, length: int, counted: Tally) -> LengthAccuracy:
    numbers = (counted.sequences, counted.accuracy, counted.stderr)
    return cast(LengthAccuracy, measure.row(cell, length, *numbers))


def test_scores_are_means_over_lengths_of_training_and_over_longer_ones():
    measure, cell = of_a_run(epath.Path("runs/fire"), "interpolate")
    task = measure.data.task
    tallies = {2: Tally(8, 16, 12), 4: Tally(8, 32, 8), 9: Tally(8, 64, 16)}
    measured = [row(measure, cell, length, counted) for length, counted in tallies.items()]
    trained, longer = measure.means(cell, measured)
    assert (trained.value, longer.value) == (50.0, 25.0)  # mean of 75 and 25; 25 only
    errors = [one.stderr for one in measured]
    assert trained.stderr == pytest.approx((errors[0] ** 2 + errors[1] ** 2) ** 0.5 / 2)
    assert (trained.examples, longer.examples) == (16, 8)
    assert trained.split == "lengths 2 to 4 (2 measured), plain positions"
    assert longer.split == "length 9, plain positions"
    assert trained.key == (
        *("fire", "fire", "interpolate", 7, "synthetic", task.label, trained.split),
        *(task.input_length(4), task.answer_length(4), "none", "slots"),
        *(task.input_length(4) + task.answer_length(4), "accuracy"),
    )
    assert measure.means(cell, measured[2:]) == [longer]


def test_scores_are_those_of_the_table_although_nothing_is_left_to_measure(tmp_path):
    """After an interruption before the scores, or if a table was moved away and measured again."""
    workdir = epath.Path(tmp_path / "fire")
    workdir.mkdir()
    for sequences, right in ((4, 8), (8, 4)):
        measure, cell = of_a_run(workdir, lengths=(2, 4), sequences=sequences)
        measured = [row(measure, cell, length, Tally(sequences, 16, right)) for length in (2, 4)]
        write_table(workdir / FILE, LengthAccuracy, measured)
        assert compute_cells(Setting("", cast(Experiment, None), cell.run_model, measure), 7)
        (found,) = read_table(workdir / SCORES, TaskScore)
        assert (found.examples, found.value) == (2 * sequences, 100 * right / 16)


def test_a_mean_of_fewer_lengths_is_replaced(tmp_path):
    workdir = epath.Path(tmp_path / "fire")
    workdir.mkdir()
    even = ("even", (2,))
    for positions, lengths in (even, *(("plain", (2, 4, 9)[:n]) for n in (1, 2, 3))):
        measure, cell = of_a_run(workdir, positions=positions)
        measured = [row(measure, cell, length, Tally(4, 16, length)) for length in lengths]
        write_table(workdir / FILE, LengthAccuracy, measured)
        measure.finish(cell)
    found = [row.split for row in read_table(workdir / SCORES, TaskScore)]
    assert found == [
        "length 2, even positions",
        "lengths 2 to 4 (2 measured), plain positions",
        "length 9, plain positions",
    ]


def test_the_means_of_a_renamed_run_are_replaced(tmp_path):
    for name, lengths in (("old", (2,)), ("new", (2, 4))):
        workdir = epath.Path(tmp_path / name)
        if name == "new":
            (tmp_path / "old").rename(workdir)
        workdir.mkdir(exist_ok=True)
        measure, cell = of_a_run(workdir)
        measured = [row(measure, cell, length, Tally(4, 16, length)) for length in lengths]
        write_table(workdir / FILE, LengthAccuracy, measured)
        measure.finish(cell)
    found = [(row.run, row.split) for row in read_table(workdir / SCORES, TaskScore)]
    assert found == [("new", "lengths 2 to 4 (2 measured), plain positions")]


def test_rows_of_two_settings_of_lengths_are_combined_once(tmp_path, monkeypatch, capsys):
    files = [
        f"configs/{name}.gin" for name in ("synthetic/reverse_string", "positions/nope", "encoder")
    ]
    run, top = epath.Path(tmp_path / "run"), epath.Path(tmp_path / "top")
    run.mkdir()
    (run / "config.gin").write_text(load_experiment(files).text())
    also = "--also=--gin.EVAL_LENGTHS=(50,60)"
    command = Accuracies(cli.parse(["evaluate", str(run), "--gin.EVAL_LENGTHS=(5,6)", also]))
    plain, _ = command.settings(run)
    (cell,) = plain.measure.plan(plain.run_model, 3)
    measured = [plain.measure.row(cell, n, 8, 50.0, math.nan) for n in (5, 6, 50, 60)]
    write_table(run / FILE, LengthAccuracy, measured)
    monkeypatch.setattr(evaluate, "write_figure", lambda *_: None)
    command.combine([(str(run), 3)], str(top))
    assert [row.length for row in rows(top)] == [5, 6, 50, 60]
    assert "ReverseString, slots, encoder: " in capsys.readouterr().out


@pytest.mark.ci
def test_each_length_is_measured_once_and_reported(runs, capsys, monkeypatch):
    asked = ["evaluate", str(runs), "--sequences=4"]
    assert cli.main([*asked, "--lengths=2,5"]) == 0
    first = rows(runs / "slots")
    assert [row.key for row in first] == [
        ("slots", "fire", "", 3, "ReverseString", "slots", "even", length) for length in (2, 5)
    ]
    assert {row.layout for row in rows(runs)} == {"slots", "autoregressive"}
    (score,) = read_table(epath.Path(runs) / "generated" / SCORES, TaskScore)
    assert (score.decoding, score.examples) == ("greedy", 8)
    assert (runs / "length_accuracy.png").exists() and (runs / "slots/length_accuracy.csv").exists()
    measured = []
    of_lengths = length_accuracy.length_accuracies

    def watched(task, lengths, *arguments, **more):
        measured.append(list(lengths))
        return of_lengths(task, lengths, *arguments, **more)

    monkeypatch.setattr(length_accuracy, "length_accuracies", watched)
    assert cli.main([*asked, "--lengths=2,5,7"]) == 0
    assert measured == [[7], [7]] and rows(runs / "slots")[:2] == first
    assert cli.main([*asked, "--lengths=2"]) == 0
    assert {row.length for row in rows(runs)} == {2, 5, 7}, "the combined table loses no rows"
    assert cli.main([*asked, "--lengths=2", "--positions=plain"]) == 0
    assert {row.positions for row in rows(runs / "slots")} == {"even", "plain"}
    also = "--also=--gin.RandomizedPositions.evaluation=random"
    assert cli.main([*asked, "--lengths=2", also, "--follow"]) == 0
    kinds = [
        {(row.variant, row.positions) for row in rows(folder) if row.length == 2}
        for folder in (runs / "slots", runs)
    ]
    assert kinds[1] == {("", "even"), ("random", "random")}
    assert kinds[0] == kinds[1] | {("", "plain")}
    capsys.readouterr()
    assert cli.main([*asked, "--lengths=2", also, "--positions=plain"]) == 2
    assert "--positions=plain and the changes to RandomizedPositions" in capsys.readouterr().err
    for change, told in (
        (".Synthetic.task=@OddsFirst()", "Synthetic.task was ReverseString in training"),
        (".Synthetic.max_length=9", "Synthetic.max_length was 7 in training, but is now 9"),
    ):
        assert cli.main([*asked, "--lengths=2", f"--gin{change}"]) == 2
        assert told in capsys.readouterr().err
    assert cli.main([*asked, also.replace("random", "even"), "--lengths=2"]) == 2
    assert "changes nothing for any of these runs: it has no effect" in capsys.readouterr().err
    assert cli.main(["evaluate", f"{runs}/slots", "--lengths=5", "--sequences=9"]) == 2
    assert "has 4 exercises of length 5, not 9" in capsys.readouterr().err
    # 64 positions are too few for 2 x 40 tokens; a readable length is measured nevertheless.
    assert cli.main([*asked, "--lengths=5,40", "--dry_run"]) == 0
    assert "is not scored at length 40" in capsys.readouterr().out
    assert cli.main([*asked, "--lengths=40"]) == 2
    assert "too small for 80 tokens" in capsys.readouterr().err
    report = runs.parent / "report"
    assert cli.main(["report", str(runs), f"--output={report}"]) == 0
    told = (report / "report.md").read_text()
    assert "## Accuracy against length" in told and "Loss against length" not in told
    assert (report / "length_accuracy_map_trained.svg").exists()
    assert not (report / "length_accuracy_map.svg").exists(), "no length is beyond training"


@pytest.mark.ci
def test_a_run_on_a_task_has_no_text(runs, capsys):
    run = str(runs / "slots")
    for verb in (["sweep", run], ["generate", run, "--prompt=a"], ["export", run, "--output=x"]):
        assert cli.main(verb) == 2
        assert "was trained on the task ReverseString, not on text" in capsys.readouterr().err


def test_a_run_on_text_has_no_task(tmp_path, monkeypatch, capsys):
    run = str(Sweeps(tmp_path / "runs", monkeypatch).folder / "fire")
    assert cli.main(["evaluate", run]) == 2
    assert "use `fire-lm sweep`" in capsys.readouterr().err
    assert cli.main(["evaluate", run, "--lengths=3-1"]) == 2
    assert "'3-1' is not a range of at most 100,000 numbers" in capsys.readouterr().err


@pytest.mark.parametrize(
    "encoding, resampling, new_tokens",
    [
        (NoPE, Resampling(), 12),  # one program serves answers of 9 to 12 tokens
        (NoPE, RandomizedPositions(64, evaluation="plain"), 12),
        (NoPE, RandomizedPositions(64, evaluation="even"), 10),
        (functools.partial(ALiBi, interpolate=True), Resampling(), 10),
        (functools.partial(Learned, max_length=29), Resampling(), 10),
        (functools.partial(Learned, max_length=31), Resampling(), 12),
    ],
)
def test_a_model_that_continues_rightly_scores_100(monkeypatch, encoding, resampling, new_tokens):
    """`generate` is replaced by a function that knows the answers and checks its arguments."""
    task = DecimalAddition()
    samples = fixed_samples(task, 4, 0, range(3))
    model = build_decoder(
        size_tiny(), encoding, 32, train_length=16, resampling=resampling, share_position=True
    )
    given = []

    def perfect(model, params, prompts, lengths, *, new_tokens):
        given.append((prompts, lengths, new_tokens))
        truth = np.stack([sample.answer for sample in samples]) + FIRST_SYMBOL
        return type("Found", (), {"tokens_BKT": truth[:, None]})()

    monkeypatch.setattr(exercise_answers, "generate", perfect)
    said = generated_answers(model, {}, task)(samples, 4)
    np.testing.assert_array_equal(said, np.stack([sample.answer for sample in samples]))
    prompts, lengths, asked = given[0]
    assert (asked, prompts.dtype) == (new_tokens, np.int32) and task.answer_length(4) == 10
    for row, length, sample in zip(prompts, lengths, samples, strict=True):
        symbols = [*(sample.inputs + FIRST_SYMBOL)]
        np.testing.assert_array_equal(row[:length], [0, *symbols, 1])
        assert not row[length:].any()


def test_lengths_are_those_that_generation_accepts(capsys):
    """Generated symbols need positions, also the last one, which a training row does not contain.

    A length that generation refused would end the measurement of all lengths.
    """
    task = ReverseString()
    model = build_decoder(size_tiny(), Learned, 4, train_length=81, share_position=True)
    accepted = []
    for length in (38, 39, 40, 41):
        prompts = np.zeros((1, length + 2), np.int32)
        with contextlib.suppress(UserError):
            check_prompts(model, prompts, np.array([length + 2]), length, None)
            accepted.append(length)
    data = Synthetic(task, max_length=40, layout="autoregressive")
    taken = exercise_lengths(model, data, [38, 39, 40, 41], "runs/learned")
    assert list(taken) == accepted == [38, 39]
    assert (
        "runs/learned is not scored at lengths 40, 41: length 82 is beyond"
        in capsys.readouterr().out
    )
    slots = dataclasses.replace(data, layout="slots")
    assert exercise_lengths(model, slots, [39, 40, 41], "runs/learned") == (39, 40)


@pytest.mark.parametrize(
    "binding, told",
    [
        ("Recall.keys=1024", "ids, but the model's embedding has only"),
        ("Synthetic.layout='autoregressive'", "Synthetic.layout was slots in training, but is now"),
    ],
)
def test_what_the_model_was_not_trained_for_is_refused(monkeypatch, binding, told):
    """Otherwise, ids beyond the embedding would make the model return NaN."""
    files = ["configs/synthetic/recall.gin", "configs/positions/nope.gin"]
    trained, asked = (load_experiment(files, given) for given in ((), (binding,)))
    monkeypatch.setattr(evaluate, "saved_experiment", lambda _: trained)
    command = evaluate.Accuracies(cli.parse(["evaluate", "RUN", "--lengths=64"]))
    workdir = epath.Path("runs/recall")
    model = trained.model
    command.measure_of(trained, workdir).check(RunModel(workdir, "nope", "", model))
    with pytest.raises(UserError, match=told):
        command.measure_of(asked, workdir).check(RunModel(workdir, "nope", "", model))


def test_a_task_is_called_by_what_it_is_set_to():
    assert ModularArithmetic().label == "ModularArithmetic"
    assert ModularArithmetic(modulus=7).label == "ModularArithmetic(modulus=7)"


@pytest.mark.slow
def test_a_resumed_run_draws_the_exercises_that_it_would_have_drawn(tmp_path):
    """A run that loses its last checkpoint repeats exercises and positions to the bit."""
    more = ["--gin.TRAIN_LENGTH=16", "--gin.TRAIN_STEPS=6", "--gin.Checkpointing.save_every=3"]
    more += ["--gin.RandomizedPositions.evaluation='random'"]
    workdir = tmp_path / "run"
    trained(workdir, *more)
    whole, lines = saved_state(workdir, 6), logged(workdir)
    shutil.rmtree(workdir / "checkpoints" / "6")
    trained(workdir, *more)
    again = saved_state(workdir, 6)
    assert again.keys() == whole.keys() and logged(workdir) == lines
    for name, value in whole.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)
    begun_at_4 = saved_state(workdir, 3)
    assert any((begun_at_4[name] != value).any() for name, value in whole.items())
