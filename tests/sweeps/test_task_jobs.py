"""`fire-lm evaluate` on downstream tasks as a job: its settings, and next to a run in training."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from etils import epath
from sample_pairs import pairs
from sample_run import command, write_text

from fire_lm.checkpoints import available_steps
from fire_lm.cli import main, parse
from fire_lm.cli.evaluate import Tasks
from fire_lm.data.task_examples import Example, TaskExamples
from fire_lm.data.tokens import encode
from fire_lm.errors import RunFailed, UserError
from fire_lm.experiment import load_experiment
from fire_lm.measures import task_scores
from fire_lm.measures.task_scores import TextEvaluation
from fire_lm.results import TaskScore, read_table
from fire_lm.sweeps import command as sweeps_command
from fire_lm.sweeps import schedule
from fire_lm.sweeps.claims import claimed
from fire_lm.sweeps.command import compute_cells

__all__ = ["pairs"]  # a fixture
TESTS = Path(__file__).resolve().parents[1]
TASK = ["--gin_file=configs/tasks/base.gin", "--import=pair_tasks", "--gin.TASK=pairs",
        "--gin.TARGET_LENGTH=6", "--gin.EVAL_LENGTHS=(4, 16)"]  # fmt: skip
PI = "--also=--gin.ALiBi.interpolate=True"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, epath.Path]:
    """Save the configurations of two runs, without checkpoints."""
    found = {}
    for name in ("alibi", "learned"):
        files = ["configs/runs/quickstart.gin", f"configs/positions/{name}.gin"]
        found[name] = epath.Path(tmp_path_factory.mktemp(name))
        text = load_experiment(files, ["TRAIN_LENGTH=16"]).text()
        (found[name] / "config.gin").write_text(text)
    return found


def asked(run: epath.Path, *flags: str) -> list[tuple[str, str, str]]:
    """Return (variant, truncation, decoding) of each setting."""
    found: list[tuple[str, str, str]] = []
    for one in Tasks(parse(["evaluate", str(run), *TASK, *flags])).settings(run):
        assert isinstance(one.measure, TextEvaluation)
        truncation = one.measure.data.truncation
        found.append((one.run_model.variant, truncation, one.measure.decoding))
    return found


def test_variants_and_other_ways_of_answering_are_settings(saved):
    beam = "--also=--gin.evaluate.method=@Beam() --gin.TRUNCATION=tail"
    assert asked(saved["alibi"], PI, beam, "--also=--gin.EVAL_LENGTHS=(8,)") == [
        ("", "head", "greedy"),
        ("interpolate", "head", "greedy"),
        ("", "tail", "beam-4"),
        ("", "head", "greedy"),
    ]


@pytest.mark.parametrize(
    "flags, words",
    [
        (
            ["--also=--gin.evaluate.batch_size=3"],
            "changes nothing for any of these runs: it has no effect",
        ),
        (["--also=--gin.TextToText.shuffle_buffer=3"], "no effect"),
        (["--also=--gin.RoPE.scaling=@YaRN()"], "uses RoPE"),
        (["--also=--gin.EVAL_LENGTHS=(8,)", "--lengths=4"], "no effect"),
        ([PI, "--also=--gin.ALiBi.interpolate=True"], "it is equivalent to --also"),
    ],
)
def test_an_also_without_effect_is_refused(saved, flags, words):
    with pytest.raises(UserError, match=words):
        Tasks(parse(["evaluate", "x", *TASK, *flags])).check([saved["alibi"]])


def test_other_examples_of_one_name_are_refused(saved):
    elsewhere = "--also=--gin.TextToText.data_dir=/elsewhere"
    with pytest.raises(UserError, match="other examples that are also called pairs"):
        asked(saved["alibi"], elsewhere)
    for apart in ("evaluate.suite=b", "TRUNCATION=tail", "ALiBi.interpolate=True"):
        assert len(asked(saved["alibi"], f"{elsewhere} --gin.{apart}")) == 2


def stub_answers(monkeypatch) -> None:
    """Answer each input by itself; the inputs of `data_dir` differ, but not the references."""

    def examples_of(data, split, longest):
        texts = ["abc", "bcd"] if not data.data_dir else ["cba", "dcb"]
        examples = [
            Example(f"{n}", encode(data, text), 3, (right,), (), [right], {"text": text})
            for n, (text, right) in enumerate(zip(texts, ["abc", "bcd"], strict=True))
        ]
        exact = lambda targets, given: {  # noqa: E731
            "exact": 50.0 * sum(g in t for t, g in zip(targets, given, strict=True))
        }
        return [TaskExamples("pairs", examples, lambda text, fields: text, [exact])]

    def generated(answerer, examples):
        yield [answerer.prediction(e, e.fields["text"], 0.0) for e in examples]

    monkeypatch.setattr(task_scores, "examples_of", examples_of)
    monkeypatch.setattr(task_scores, "generated", generated)
    monkeypatch.setattr(sweeps_command, "read_params", lambda *_: None)


def test_two_data_sets_of_one_name_are_evaluated_as_two_suites(saved, tmp_path, monkeypatch):
    """Their answers are kept apart, although the references and the lengths are the same."""
    shutil.copytree(saved["alibi"], run := epath.Path(tmp_path / "run"))
    stub_answers(monkeypatch)
    elsewhere = "--also=--gin.TextToText.data_dir=/elsewhere --gin.evaluate.suite=b"
    arguments = parse(["evaluate", str(run), *TASK, elsewhere, "--lengths=8"])
    for setting in Tasks(arguments).settings(run):
        assert compute_cells(setting, 1)
    assert {row.suite: row.value for row in rows_of(run)} == {"": 100.0, "b": 0.0}
    name = "pairs.validation.plain.1.8.6.head.greedy"
    assert sorted(lines_of(run)) == [f"{name}.b.jsonl", f"{name}.jsonl"]


def test_answers_to_other_inputs_of_the_same_length_are_not_reused(saved, tmp_path, monkeypatch):
    """A killed evaluation has no rows yet; predictions of older versions have no digest."""
    shutil.copytree(saved["alibi"], run := epath.Path(tmp_path / "run"))
    stub_answers(monkeypatch)
    arguments = [parse(["evaluate", str(run), *TASK, "--lengths=8", *data]) for data in
                 ([], ["--gin.TextToText.data_dir=/elsewhere"])]  # fmt: skip
    ours, others = [Tasks(one).settings(run)[0] for one in arguments]
    assert compute_cells(ours, 1)
    with pytest.raises(UserError, match="line 1: the task has no example '0' with these"):
        compute_cells(others, 1)
    (run / "task_scores.csv").unlink()
    with pytest.raises(UserError, match="line 1: the task has no example '0' with these"):
        compute_cells(others, 1)
    (file,) = (run / "predictions").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(line.pop("input_digest") for line in lines)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert compute_cells(ours, 1) and [row.value for row in rows_of(run)] == [100.0]


def test_the_answers_of_a_suite_of_fire_lm_are_found_under_their_name_without_a_suite(saved):
    asked_for = parse(["evaluate", "x", *TASK, "--gin.evaluate.suite=scrolls"])
    (one,) = Tasks(asked_for).settings(saved["alibi"])
    _, file = one.measure.plan(one.run_model, 1)[0].work
    assert file.name == "pairs.validation.plain.1.4.6.head.greedy.jsonl", "as in older versions"


@pytest.mark.parametrize(
    "run, flags, words",
    [
        ("alibi", ["--also=--gin.evaluate.split=test"], "has no split 'test'"),
        ("alibi", ["--also=--gin.EVAL_LENGTHS=(1,)"], "EVAL_LENGTHS contains 1"),
        ("alibi", ["--gin.EVAL_LENGTHS=()"], "EVAL_LENGTHS is empty"),
        ("alibi", ["--also=--gin.TRUNCATION=both"], "'both'"),
        ("alibi", ["--also=--gin.evaluate.rank=True"], "does not list the allowed answers"),
        ("alibi", ["--also=--gin.TASK=nothing"], "nothing"),
        ("alibi", ["--also=--gin.ALiBi.no=1"], "has no parameter no"),
        ("alibi", ["--also=x"], "'x' is neither --gin_file=FILE nor"),
        ("learned", ["--lengths=12"], "length 19 is beyond the 16 positions"),
    ],
)
def test_a_dry_run_refuses_what_the_run_refuses(saved, run, flags, words, monkeypatch, capsys):
    monkeypatch.setattr(schedule, "choose_step", lambda *_: 1)
    told = []
    for more in (["--dry_run"], []):
        assert main(["evaluate", str(saved[run]), *TASK, *flags, *more]) == 2
        told.append(capsys.readouterr().err)
    assert words in told[0] and told[0] == told[1]


def test_tokens_that_the_model_does_not_know_are_refused(saved, tmp_path):
    text = (saved["alibi"] / "config.gin").read_text()
    assert "VOCAB_SIZE = 384" in text
    (tmp_path / "config.gin").write_text(text.replace("VOCAB_SIZE = 384", "VOCAB_SIZE = 100"))
    with pytest.raises(UserError, match="token 1.., but the model.s vocabulary has only 100"):
        asked(epath.Path(tmp_path))


def test_a_learned_table_is_evaluated_at_the_lengths_that_it_has(saved):
    (one,) = Tasks(parse(["evaluate", "x", *TASK])).settings(saved["learned"])
    assert [cell.key[3] for cell in one.measure.plan(one.run_model, 1)] == [4]


def test_a_claimed_cell_is_left_to_its_process(saved):
    """It is skipped before the checkpoint is read: there is none here."""
    run = saved["alibi"]
    (one,) = Tasks(parse(["evaluate", "x", *TASK])).settings(run)
    shorter, longer = one.measure.plan(one.run_model, 1)
    with claimed(run, shorter.claim), claimed(run, longer.claim):
        assert not compute_cells(one, 1)
    with claimed(run, shorter.claim), pytest.raises(RunFailed, match="checkpoint"):
        compute_cells(one, 1)


def process(*arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    changes = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": path}
    return subprocess.Popen(
        [sys.executable, "-m", "fire_lm", *arguments],
        env=os.environ | changes,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def lines_of(run: Path) -> dict[str, list[bytes]]:
    """Return the complete lines of each file of predictions."""
    return {
        file.name: [line for line in file.read_bytes().splitlines(True) if line.endswith(b"\n")]
        for file in sorted((run / "predictions").glob("*"))
    }


def rows_of(run: Path) -> list[TaskScore]:
    return read_table(epath.Path(run) / "task_scores.csv", TaskScore)


@pytest.mark.slow
def test_a_finetuning_is_followed_by_evaluators_that_are_killed(tmp_path, capsys):
    """In the end, its rows equal those of one evaluation made afterwards."""
    source, run = tmp_path / "source", tmp_path / "run"
    text = write_text(tmp_path / "text")
    assert main(command(text, source, "--gin.TRAIN_STEPS=5", position="alibi")) == 0
    bindings = {"INIT_FROM": source, "TASK": "pairs", "TARGET_LENGTH": 6, "TRAIN_LENGTH": 16,
                "BATCH_SIZE": 8, "TRAIN_STEPS": 300, "AdamW.learning_rate": 0.003,
                "TextToText.shuffle_buffer": 20, "Checkpointing.save_every": 100,
                "Checkpointing.keep_every": 1}  # fmt: skip
    trained = [f"--gin.{name}={value}" for name, value in bindings.items()]
    train = ["finetune", "--gin_file=configs/finetune/base.gin", "--import=pair_tasks", *trained]
    asked = [*TASK, PI, "--gin.evaluate.batch_size=2"]
    follow = ["evaluate", str(run), "--follow", *asked]
    evaluator = process(*follow)  # before the run exists
    trainer = process(*train, f"--workdir={run}")
    killed_at: dict[str, list[bytes]] = {}
    while not killed_at:
        assert evaluator.poll() is None, evaluator.communicate()[0]
        found = lines_of(run)
        if any(0 < len(lines) < 30 for lines in found.values()) and len(found) > 1:
            evaluator.kill()
            evaluator.communicate()
            killed_at = lines_of(run)
        time.sleep(0.002)
    assert any(0 < len(lines) < 30 for lines in killed_at.values())
    both = [process(*follow) for _ in range(2)]
    said = [one.communicate(timeout=600)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    told = trainer.communicate(timeout=60)[0]
    assert trainer.returncode == 0, told
    assert any("of 30 predictions" in one for one in said), "it goes on mid-dataset"

    steps = available_steps(run)
    assert steps == [100, 200, 300]
    rows, files = rows_of(run), lines_of(run)
    assert sorted((row.step, row.variant, row.input_length) for row in rows) == [
        (step, variant, length)
        for step in steps
        for variant in ("", "interpolate")
        for length in (4, 16)
    ]
    assert [row.step for row in rows] == sorted(row.step for row in rows)
    for name, lines in files.items():
        assert len(lines) == len({json.loads(line)["id"] for line in lines}) == 30, name
        assert killed_at.get(name, lines)[:1] == lines[:1]
    # Everything exists: nothing is computed again, and the follower ends at once.
    capsys.readouterr()
    assert main(follow) == 0 and "100" in capsys.readouterr().out
    assert lines_of(run) == files
    (run / "task_scores.csv").unlink()
    for file in (run / "predictions").iterdir():
        file.unlink()
    assert main(["evaluate", f"{run}@all", *asked]) == 0
    key = {row.key: row for row in rows}
    assert {row.key: row for row in rows_of(run)} == key
    assert {n: sorted(lines) for n, lines in lines_of(run).items()} == {
        n: sorted(lines) for n, lines in files.items()
    }
