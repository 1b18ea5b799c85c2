"""`fire-lm finetune --pairs=FILE`, and the page's own task: configuration, training, evaluation."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import seqio
from sample_run import command, write_text
from training_experiments import experiment_of

from fire_lm.cli import main
from fire_lm.data import Pairs
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.measures.task_scores import TextEvaluation
from fire_lm.results import TaskScore, read_table
from fire_lm.runs.resuming import Start
from fire_lm.runs.saved import read_saved, save_config

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ("configs/runs/quickstart.gin", "configs/positions/rope.gin")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Save the configuration of a run to finetune, trained at length 32."""
    workdir = tmp_path_factory.mktemp("runs") / "source"
    save_config(load_experiment(SOURCE, ["TRAIN_LENGTH=32"]), workdir)
    return workdir


@pytest.fixture(scope="module")
def faq(tmp_path_factory):
    file = tmp_path_factory.mktemp("pairs") / "faq.jsonl"
    lines = [
        json.dumps({"inputs": f"{letter} of {n}:", "targets": letter * (n % 3 + 1)})
        for n, letter in enumerate("ab" * 30)
    ]
    file.write_text("\n".join(lines))
    return file


def config_of(faq, source, *flags, workdir=""):
    given = ["finetune", f"--pairs={faq}", f"--gin.INIT_FROM={source}", *flags]
    return experiment_of(given, workdir)


def test_the_file_determines_the_target_length_and_its_hash_is_recorded(source, faq):
    config = config_of(faq, source)
    run = config.train
    assert run.data == Pairs(
        file=str(faq), target_length=4, vocabulary="bytes",
        sha256=hashlib.sha256(faq.read_bytes()).hexdigest(),
    )  # fmt: skip
    assert (run.data.name, run.train_length, run.batch_size) == ("faq", 32, 16)
    assert (run.encoding, run.train_steps) == ("rope", 1000)
    summary = run.data.note(run.train_length)
    assert re.search(r"5[0-9] pairs to train on, [1-9] to validate \(a share of 0.05", summary)
    assert summary.endswith("by a hash of the input)")
    given = config_of(faq, source, "--gin.TARGET_LENGTH=9", "--gin.Pairs.validation_share=0.5")
    assert given.train.data.target_length == 9
    assert load_experiment(SOURCE).train.data.note(32) == ""
    given = config_of(faq, source, "--gin.TRAIN_LENGTH=11", "--gin.TARGET_LENGTH=3")
    short = given.train.data.note(11)
    assert "50 inputs have more than 7 tokens and are truncated (head); 20 targets do not" in short


def test_the_share_that_an_error_suggests_is_used(source, tmp_path):
    few = tmp_path / "few.jsonl"
    few.write_text("".join(json.dumps({"inputs": c, "targets": c}) + "\n" for c in "abcde"))
    with pytest.raises(UserError, match="too few examples: with 5 pairs") as told:
        config_of(few, source)
    advice = str(told.value).rpartition("set ")[2]
    assert "5 pairs" not in (note := config_of(few, source, advice).train.data.note(32)), note
    with pytest.raises(UserError, match="validation_share 0.001, the split 'validation' is empty"):
        config_of(few, source, "--gin.Pairs.validation_share=0.001").train.data.note(32)


def test_the_flag_stands_for_a_gin_file_and_a_macro(source, faq):
    """So `fire-lm preflight` and `python -m tpu finetune` read pairs as well."""
    flags = ["--gin_file=configs/finetune/pairs.gin", f"--gin.PAIRS={faq}"]
    arguments = ["finetune", *flags, f"--gin.INIT_FROM={source}"]
    assert experiment_of(arguments) == config_of(faq, source)


def test_the_finetuned_run_is_evaluated_on_its_validation_pairs(source, faq, tmp_path):
    (tmp_path / "config.gin").write_text(config_of(faq, source, "--gin.TRUNCATION=tail").text())
    files = [str(tmp_path / "config.gin"), "configs/tasks/pairs.gin"]
    asked: TextEvaluation = load_experiment(files).task
    assert asked.data.file == str(faq) and asked.data.sha256 and asked.loss
    assert asked.data.truncation == "tail" and asked.lengths == (32 - 4 - 1,)
    assert asked.context_length(asked.lengths[0]) == 32, "what a table of positions can hold"
    assert load_experiment(files, ["EVAL_LENGTHS=(8,)"]).task.lengths == (8,)


def test_a_run_that_was_not_finetuned_is_evaluated_on_pairs_too(faq):
    files = [*SOURCE, "configs/tasks/pairs.gin"]
    bindings = [f"PAIRS={faq}", "TARGET_LENGTH=4", "EVAL_LENGTHS=(27,)"]
    asked: TextEvaluation = load_experiment(files, bindings).task
    assert asked.data == Pairs(file=str(faq), target_length=4)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--pairs=/nowhere.jsonl"], "there is no file /nowhere.jsonl"),
        (["--pairs={faq}", "--gin_file=configs/finetune/base.gin", "--gin.TASK=x"],
         "would not be read, because another gin file chooses the examples"),
        (["--pairs={faq}", "--gin.TRAIN_LENGTH=5"], "a row of 5 tokens leaves no room"),
        (["--pairs={faq}", f"--gin_file={SOURCE[0]}"], "omit the run file"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(flags, words, source, faq, tmp_path, capsys):
    more = [f"--gin.INIT_FROM={source}", f"--workdir={tmp_path}", "--dry_run"]
    code = main(["finetune", *(flag.replace("{faq}", str(faq)) for flag in flags), *more])
    said = capsys.readouterr().err.strip()
    assert code == 2 and words in said and len(said.splitlines()) <= 2, said


def test_a_changed_file_is_refused_at_resume(source, faq, tmp_path, capsys):
    changed = tmp_path / "faq.jsonl"
    changed.write_bytes(faq.read_bytes())
    flags = [f"--pairs={changed}", f"--gin.INIT_FROM={source}", f"--workdir={tmp_path / 'run'}"]
    save_config(config_of(changed, source), tmp_path / "run")
    with changed.open("a") as lines:
        lines.write('\n{"inputs": "a", "targets": "b"}\n')
    for more in ([], ["--allow_config_change"]):
        assert main(["finetune", *flags, *more]) == 2
        said = capsys.readouterr().err.strip()
        assert f"{changed} has changed since the run in {tmp_path / 'run'} started" in said, said
        assert len(said.splitlines()) == 1


def test_a_run_on_pairs_resumes_without_its_source(faq, tmp_path):
    """The source had the vocabulary; the run has a copy. The file of pairs may move, too."""
    vocabulary = Path(seqio.__file__).parent / "test_data" / "sentencepiece" / "sentencepiece.model"
    model = shutil.copy(vocabulary, tmp_path / "own.model")
    of_source = ["TRAIN_LENGTH=32", f"VOCABULARY='{model}'", "VOCAB_SIZE=1000"]
    save_config(load_experiment(SOURCE, of_source), tmp_path / "source")
    begun, run = config_of(faq, tmp_path / "source"), tmp_path / "run"
    save_config(begun, run)
    shutil.rmtree(tmp_path / "source")
    Path(model).unlink()
    moved = shutil.copy(faq, tmp_path / faq.name)
    again = config_of(moved, tmp_path / "source", workdir=run)
    assert again.macro("TARGET_LENGTH") == begun.macro("TARGET_LENGTH")
    saved = read_saved(run)
    Start(again, str(run), saved).check_same_experiment(saved)


def code_on(page: str, start: str) -> str:
    """Return the block of Python code that begins with `start`."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    (block,) = (block for block in blocks if block.startswith(start))
    return block


@pytest.mark.ci
def test_pairs_and_the_pages_own_task_are_trained_on_and_evaluated(
    faq, tmp_path, monkeypatch, capsys
):
    source, on_pairs, own = (tmp_path / name for name in ("source", "faq", "capitals"))
    assert main(command(write_text(tmp_path / "text"), source, "--gin.TRAIN_STEPS=5")) == 0
    training = ["--gin.TRAIN_STEPS=4", "--gin.AdamW.learning_rate=0.003",
                f"--gin.INIT_FROM={source}"]  # fmt: skip
    assert main(["finetune", f"--pairs={faq}", *training, f"--workdir={on_pairs}"]) == 0
    assert "pairs to train on" in capsys.readouterr().out
    assert main(["evaluate", str(on_pairs), "--gin_file=configs/tasks/pairs.gin"]) == 0
    rows = read_table(on_pairs / "task_scores.csv", TaskScore)
    assert [(row.task, row.metric) for row in rows] == [
        ("faq", "exact_match"), ("faq", "f1"), ("faq", "loss"),
    ]  # fmt: skip
    assert 1 < rows[2].value < 7 and rows[2].stderr > 0
    assert len(list((on_pairs / "predictions").iterdir())) == 1
    capsys.readouterr()
    assert main(["sweep", str(on_pairs)]) == 2
    assert "use `fire-lm evaluate`" in capsys.readouterr().err

    # The page's module, in a package outside the repository, and its commands.
    code = code_on("finetuning.md", '"""Tasks of my_package')
    assert len(code.splitlines()) <= 40
    package = tmp_path / "code" / "my_package"
    package.mkdir(parents=True)
    (package / "tasks.py").write_text(code)
    for split, lines in (("train", 40), ("validation", 6)):
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        text = "".join(f"Where is {n}?\tin {n % 3}\n" for n in range(lines))
        (folder / f"capitals-{split}.tsv").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.chdir(tmp_path)  # the page's paths are relative
    task = ["--gin_file=configs/finetune/base.gin", "--import=my_package.tasks",
            "--gin.TASK=capitals", "--gin.TARGET_LENGTH=8"]  # fmt: skip
    assert main(["finetune", *task, *training, f"--workdir={own}"]) == 0
    evaluation = ["--gin_file=configs/tasks/base.gin", "--gin.EVAL_LENGTHS=24"]
    assert main(["evaluate", str(own), *evaluation]) == 0
    rows = read_table(own / "task_scores.csv", TaskScore)
    assert [(row.task, row.metric, row.examples) for row in rows] == [("capitals", "exact", 6)]
