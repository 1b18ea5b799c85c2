"""`fire-lm evaluate` with a task of inputs and targets: prompts, answers, files, scores."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from etils import epath
from sample_pairs import pairs
from sample_run import command, write_text
from sample_vocabulary import MODEL

from fire_lm.cli import main
from fire_lm.data import TextToText
from fire_lm.data.task_examples import Example, TaskExamples
from fire_lm.data.tokens import decode, encode
from fire_lm.errors import RunFailed, UserError
from fire_lm.generation import Beam, Sample, generate
from fire_lm.measures import RunModel
from fire_lm.measures.answers import Answerer, generated, input_digest, prompt
from fire_lm.measures.prediction_scores import prediction_scores, resampled
from fire_lm.measures.predictions import Prediction, predictions_file, read_predictions
from fire_lm.measures.ranking import ranked
from fire_lm.measures.task_scores import TextEvaluation
from fire_lm.models import build_decoder, size_tiny
from fire_lm.positions.fire import FIRE
from fire_lm.positions.resampling import RandomizedPositions
from fire_lm.results import TaskScore, read_table
from fire_lm.sharding import MeshShape, make_mesh

__all__ = ["pairs"]  # a fixture
DATA = TextToText("pairs", 6)


def example(number, text="abcdefghij", **changed):
    ids = encode(DATA, text)
    return Example(
        **{"id": f"q{number}", "tokens": ids, "input_length": len(ids), "answers": ("a", "b"),
           "choices": (), "target": ["a", "b"], "fields": {}} | changed
    )  # fmt: skip


def prediction(number, text="a", **changed):
    return Prediction(
        **{"id": f"q{number}", "prediction": text, "answers": ("a", "b"), "truncated": False,
           "input_tokens": 10, "logprob": -1.5} | changed
    )  # fmt: skip


def test_examples_are_read_with_their_references(pairs):
    (task,) = DATA.task_examples(split="validation", longest=3)
    assert task.name == "pairs" and len(task.examples) == 30
    first = {one.id: one for one in task.examples}["7"]
    assert first.answers == ("bbbb", "never") and first.target == ["bbbb", "never"]
    assert decode(DATA, first.tokens) == "b x" and first.input_length == len("b x4:")
    assert task.prediction("bbbb", first.fields) == "bbbb"
    (metric,) = task.metrics
    assert metric([first.target] * 2, ["never", "b"]) == {"exact": 50.0}
    (ended,) = TextToText("pairs_ended", 6).task_examples(split="validation", longest=3)
    assert [one.input_length for one in ended.examples] == [
        one.input_length for one in task.examples
    ]


def test_each_task_of_a_mixture_is_evaluated(pairs):
    found = TextToText("pairs_both", 6).task_examples(split="validation", longest=30)
    assert [task.name for task in found] == ["pairs", "pairs_short"]


def test_what_cannot_be_evaluated_is_refused(pairs):
    import tensorflow as tf

    pairs.add("pairs_twice", lambda rows: rows.map(lambda row: {**row, "id": tf.constant("x")}))
    pairs.add("pairs_none", keep=lambda row: row["targets"] == "")
    for name, words in (("pairs_twice", "have the id x"), ("pairs_none", "is empty")):
        with pytest.raises(UserError, match=words):
            TextToText(name, 6).task_examples(split="validation", longest=9)
    with pytest.raises(UserError, match="has no split 'test'"):
        DATA.task_examples(split="test", longest=9)


def test_postprocessing_sees_the_whole_example_of_a_users_task(pairs):
    def with_input(text, example=None, is_target=False):
        return f"{example['inputs_pretokenized'].decode()} {text}"

    pairs.add("pairs_with_input", postprocess=with_input)
    (task,) = TextToText("pairs_with_input", 6).task_examples(split="validation", longest=3)
    first = {one.id: one for one in task.examples}["7"]
    assert first.target == "b x4: bbbb" and task.prediction("b", first.fields) == "b x4: b"


def test_an_example_whose_target_cannot_be_postprocessed_is_left_out(pairs):
    def of_some(text, example=None, is_target=False):
        return example["no such field" if "b" in text else "id"]

    pairs.add("pairs_of_some", postprocess=of_some)
    (task,) = TextToText("pairs_of_some", 6).task_examples(split="validation", longest=3)
    assert len(task.examples) == 25 and len(task.lost) == 5
    assert task.lost["7"] == "KeyError: 'no such field'"
    pairs.add("pairs_of_none", postprocess=lambda text, example, is_target: example["nothing"])
    with pytest.raises(UserError, match="fails on every .* the first error is KeyError: 'nothing'"):
        TextToText("pairs_of_none", 6).task_examples(split="validation", longest=3)


@pytest.mark.parametrize(
    "truncation, kept", [("head", "abcd"), ("tail", "ghij"), ("middle", "abij")]
)
def test_a_prompt_is_what_a_row_of_training_begins_with(truncation, kept):
    """A prompt is token 0, the input and its end; an input of 5 tokens has 4 of the text."""
    data = TextToText("pairs", 6, truncation=truncation)
    ids = prompt(data, example(0), 5)
    assert ids.tolist() == [0, *encode(DATA, kept), 1]
    assert prompt(data, example(0), 11).tolist() == [0, *encode(DATA, "abcdefghij"), 1]


def test_a_half_written_line_is_left_out_and_a_damaged_one_told(tmp_path):
    examples = [example(number) for number in range(3)]
    file = epath.Path(tmp_path / "p.jsonl")
    lines = [prediction(number, "é\n").line() for number in range(2)]
    file.write_bytes(lines[0] + lines[1][:-9])
    assert list(read_predictions(file, examples, str)) == ["q0"]
    assert read_predictions(file, examples, str)["q0"] == prediction(0, "é\n")
    file.write_bytes(lines[0][5:] + lines[1])
    with pytest.raises(RunFailed, match="line 1, is damaged"):
        read_predictions(file, examples, str)
    others = {"answers": ("c",), "id": "other", "input_tokens": 11, "input_digest": "other"}
    for name, value in others.items():
        file.write_bytes(prediction(0, **{name: value}).line())
        with pytest.raises(UserError, match=r"for other data\nmove .* and the rows of"):
            read_predictions(file, examples, str)


def test_the_digest_of_an_input_covers_what_the_model_reads():
    """It does not depend on the other lengths, for which more of the input was kept."""
    settings = TextEvaluation(DATA, (8,))
    whole = input_digest(settings, example(0), 8)
    assert whole == input_digest(settings, example(0, tokens=encode(DATA, "abcdefgh")), 8)
    assert whole == input_digest(settings, example(0, choices=("a",)), 8)
    assert whole != input_digest(settings, example(0, "abcdefxhij"), 8)
    ranking = dataclasses.replace(settings, rank=True)
    of_choices = {input_digest(ranking, example(0, choices=(c,)), 8) for c in "ab"}
    assert len(of_choices) == 2


def failing(targets, predictions):
    """A user's metric that fails on one answer."""
    if "b" in predictions:
        raise ValueError("no b, please")
    return {"exact": 100.0 * sum(p in t for t, p in zip(targets, predictions, strict=True))
            / len(targets)}  # fmt: skip


def test_a_metric_that_fails_on_one_example_scores_the_others(capsys):
    task = TaskExamples("t", [example(n) for n in range(4)], lambda text, fields: text, [failing])
    found = {f"q{n}": text for n, text in enumerate(("a", "b", "x", "a"))}
    score = prediction_scores(task, found)["exact"]
    assert score.value == pytest.approx(200 / 3) and score.examples == 3
    assert 10 < score.stderr < 40
    said = capsys.readouterr().out
    assert "fails on example q1: no b, please" in said and "on 1 of 4 examples" in said


def test_a_metric_may_return_what_seqio_defines():
    """The values are numbers or objects such as seqio's Scalar and Text."""

    def of_seqio(targets, predictions):
        found = failing(targets, predictions)["exact"]
        return {"exact": SimpleNamespace(value=found), "first": SimpleNamespace(textdata="a")}

    task = TaskExamples("t", [example(n) for n in range(4)], lambda text, fields: text, [of_seqio])
    found = {f"q{n}": text for n, text in enumerate(("a", "b", "x", "a"))}
    scores = prediction_scores(task, found)
    assert list(scores) == ["exact"] and scores["exact"].value == pytest.approx(200 / 3)
    assert 10 < scores["exact"].stderr < 40
    only_text = lambda targets, predictions: {"first": "a"}  # noqa: E731
    with pytest.raises(RunFailed, match="the metrics of t return no number"):
        prediction_scores(dataclasses.replace(task, metrics=[only_text]), found)


def test_the_bootstrap_finds_the_error_of_a_mean():
    values = np.random.default_rng(1).normal(50, 20, 400).tolist()
    mean = lambda targets, predictions: {"mean": float(np.mean(predictions))}  # noqa: E731
    assert resampled(mean, "mean", values, values) == pytest.approx(20 / 400**0.5, rel=0.25)


def test_an_unknown_standard_error_is_reported(capsys):
    """The metric needs both labels, as ROC AUC does, and some resamples contain only one."""

    def both(targets, predictions):
        if len(set(targets)) < 2:
            raise ValueError("only one label")
        return {"both": 50.0}

    assert np.isnan(resampled(both, "both", ["a", "b"], ["a", "b"]))
    said = capsys.readouterr().out
    assert "the standard error of both is unknown" in said and "only one label" in said


def test_one_example_has_no_standard_error():
    assert np.isnan(resampled(failing, "exact", [["a"]], ["a"]))


def test_a_folder_of_ours_does_not_hide_a_users_task(pairs, tmp_path):
    """A run finetuned on a suite keeps its data_dir when another task is evaluated."""
    data = dataclasses.replace(DATA, data_dir=str(tmp_path))
    (task,) = data.task_examples(split="validation", longest=3)
    assert len(task.examples) == 30


def test_a_file_is_named_by_what_it_holds(tmp_path):
    found = predictions_file(
        epath.Path(tmp_path), "fire_lm:qasper", "validation", "", 20, 512, "beam-4"
    )
    assert found.name == "fire_lm_qasper.validation.plain.20.512.beam-4.jsonl"
    long = [
        predictions_file(epath.Path(tmp_path), "task", 20, "rank-" + "-".join(["é" * 50] * 4 + end))
        for end in (["a"], ["b"])
    ]
    assert len({file.name for file in long}) == 2
    for file in long:
        assert file.name.startswith("task.20.rank-é") and len(file.name.encode()) <= 206


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"lengths": ()}, "EVAL_LENGTHS is empty"),
        ({"lengths": (1,)}, "at least 2 tokens"),
        ({"choices": ("a",)}, "has no effect without evaluate.rank"),
        ({"examples": 0}, "1 or more"),
        ({"inputs_below": 0}, "evaluate.inputs_below is 0: it must be 1 or more"),
    ],
)
def test_wrong_settings_are_refused(changed, words):
    with pytest.raises(UserError, match=words):
        TextEvaluation(**{"data": DATA, "lengths": (8,)} | changed)


@pytest.fixture(scope="module")
def tiny():
    size = size_tiny(num_layers=1, hidden_size=16, num_heads=2, head_dim=8, mlp_size=32)
    model = build_decoder(size, FIRE, 259, train_length=16, dtype="float32")
    tokens = np.zeros((1, 1), np.int32)
    return model, jax.jit(model.init)(jax.random.key(3), tokens, tokens)["params"]


def answered(settings, tiny, examples):
    """Return the predictions of a tiny model for inputs of up to 8 tokens."""
    model, params = tiny
    answer = ranked if settings.rank else generated
    run_model = RunModel(epath.Path("run"), "fire", "", model, 16)
    answerer = Answerer(settings, run_model, params, make_mesh(MeshShape()), 8)
    return [prediction for batch in answer(answerer, examples) for prediction in batch]


@pytest.mark.parametrize(
    "method",
    [pytest.param(None, marks=pytest.mark.slow), pytest.param(Beam(2), marks=pytest.mark.ci)],
)
def test_answers_are_those_of_generation_one_by_one(tiny, method):
    model, params = tiny
    asked = TextEvaluation(DATA, (8,), batch_size=3, **({"method": method} if method else {}))
    examples = [example(n, "abcdefghij"[: 2 + n]) for n in range(7)]
    found = answered(asked, tiny, examples)
    assert sorted(one.id for one in found) == [f"q{n}" for n in range(7)]
    for one in found:
        ids = prompt(DATA, examples[int(one.id[1:])], 8)
        alone = generate(
            model, params, ids[None], [len(ids)], new_tokens=6, stop_ids=(1,),
            method=asked.method, context_length=15,
        )  # fmt: skip
        assert one.prediction == decode(DATA, alone.tokens_BKT[0, 0])
        assert one.truncated == (one.input_tokens > 7)
        assert one.logprob == pytest.approx(float(alone.logprobs_BKT[0, 0].sum()), abs=1e-4)


@pytest.mark.ci
def test_samples_do_not_depend_on_the_batch(tiny):
    found = []
    for size in (1, 3):
        asked = TextEvaluation(DATA, (8,), batch_size=size, method=Sample())
        examples = [example(n, "abcdefghij"[: 2 + n]) for n in range(5)]
        found.append({one.id: one.prediction for one in answered(asked, tiny, examples)})
    assert found[0] == found[1] and len(set(found[0].values())) > 1


@pytest.mark.ci
def test_a_model_that_diverged_is_not_ranked(tiny):
    model, params = tiny
    diverged = jax.tree.map(lambda leaf: leaf * np.nan, params)
    asked = TextEvaluation(DATA, (8,), rank=True)
    with pytest.raises(RunFailed, match="returns NaN"):
        answered(asked, (model, diverged), [example(0, "abc", choices=("a", "b"))])


def test_answers_are_not_ranked_at_positions_that_depend_on_the_length(tiny):
    """Answers of different lengths would follow the same prompt at different positions."""
    model, _ = tiny
    asked = TextEvaluation(DATA, (8,), rank=True)
    assert asked.readable_lengths(model, "run") == (8,)
    for evaluation in ("even", "random"):
        drawn = model.clone(resampling=RandomizedPositions(64, evaluation=evaluation))
        with pytest.raises(UserError, match="resampling/plain.gin, or set evaluate.rank = False"):
            asked.readable_lengths(drawn, "run")


@pytest.mark.ci
def test_ranking_takes_the_likeliest_choice(tiny):
    model, params = tiny
    choices = ("yes", "no", "not mentioned")
    asked = TextEvaluation(DATA, (8,), rank=True, batch_size=2)
    examples = [example(n, "abcdefgh"[n:], choices=choices) for n in range(3)]
    for one in answered(asked, tiny, examples):
        ids = prompt(DATA, examples[int(one.id[1:])], 8).tolist()
        likelihoods = {}
        for choice in choices:
            row = [*ids, *encode(DATA, choice).tolist(), 1]
            read, last = np.array([row[:-1]]), len(row) - len(ids)
            logits = jax.jit(model.apply)({"params": params}, read, np.arange(len(row) - 1)[None])
            logprobs = np.asarray(jax.nn.log_softmax(logits[0], axis=-1))[-last:]
            likelihoods[choice] = float(logprobs[np.arange(last), row[-last:]].sum())
        assert one.prediction == max(likelihoods, key=likelihoods.__getitem__)
        assert one.logprob == pytest.approx(max(likelihoods.values()), abs=1e-4)


@pytest.mark.ci
def test_a_run_is_evaluated_and_goes_on_after_a_kill(tmp_path, capsys):
    run = tmp_path / "run"
    assert main(command(write_text(tmp_path / "text"), run, "--gin.TRAIN_STEPS=5")) == 0
    arguments = [
        *("evaluate", str(run), "--gin_file=configs/tasks/base.gin", "--import=pair_tasks"),
        *("--gin.TASK=pairs", "--gin.TARGET_LENGTH=6", "--gin.EVAL_LENGTHS=(4, 16)"),
    ]
    assert main([*arguments, "--dry_run"]) == 0
    assert "2 of 2 results to compute" in capsys.readouterr().out
    assert main(arguments) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "inputs of pairs have more than 4 tokens and were truncated (head)" in said
    rows = read_table(epath.Path(run) / "task_scores.csv", TaskScore)
    assert [(r.task, r.input_length, r.context_length, r.metric, r.examples) for r in rows] == [
        ("pairs", 4, 11, "exact", 30),
        ("pairs", 16, 23, "exact", 30),
    ]
    files = sorted((run / "predictions").iterdir())
    whole = {file.name: sorted(file.read_bytes().splitlines()) for file in files}
    assert [len(lines) for lines in whole.values()] == [30, 30]
    assert {json.loads(lines[0])["truncated"] for lines in whole.values()} == {True, False}

    # Nothing is computed twice.
    before = [file.stat().st_mtime_ns for file in files]
    assert main(arguments) == 0
    assert [file.stat().st_mtime_ns for file in files] == before

    # Killed in the middle of a line, and before the rows were written.
    (run / "task_scores.csv").unlink()
    lines = files[0].read_bytes().splitlines(keepends=True)
    files[0].write_bytes(b"".join(lines[:11]) + lines[11][:20])
    assert main(arguments) == 0
    assert "already contains 11 of 30 predictions" in capsys.readouterr().out
    assert {file.name: sorted(file.read_bytes().splitlines()) for file in files} == whole
    assert read_table(epath.Path(run) / "task_scores.csv", TaskScore) == rows

    # Another sample gives another row; a run of another name keeps its rows.
    assert main([*arguments, "--gin.evaluate.examples=5", "--lengths=4"]) == 0
    again = read_table(epath.Path(run) / "task_scores.csv", TaskScore)
    assert {row.split: row.examples for row in again} == {
        "validation": 30,
        "validation, 5 drawn": 5,
    }
    shutil.move(run, tmp_path / "renamed")
    moved = [part.replace(str(run), str(tmp_path / "renamed")) for part in arguments]
    assert main(moved) == 0
    # Rows of other data are not mistaken for rows of these.
    file = next((tmp_path / "renamed" / "predictions").glob("*.validation.plain.*"))
    kept = file.read_text()
    file.write_text(kept.replace('"id": "7"', '"id": "700"'))
    assert main(moved) == 2
    assert "contains predictions for other data" in capsys.readouterr().err
    file.write_text(kept)
    for flags, words in (
        (["--sequences=3"], "--sequences applies only to synthetic tasks"),
        (["--gin.evaluate.split=test"], "has no split 'test'"),
        ([f"--gin.VOCABULARY={MODEL}"], "was trained with the vocabulary bytes, not with"),
        (["--gin.evaluate.rank=True"], "does not list the allowed answers"),
    ):
        assert main([*moved, *flags]) == 2
        assert words in capsys.readouterr().err
