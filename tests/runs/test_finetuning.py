"""`fire-lm finetune`: another run's model, a task of inputs and targets, the same training loop."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from etils import epath
from sample_pairs import pairs
from sample_run import command, saved_state, write_text
from sample_vocabulary import MODEL
from training_experiments import experiment_of

from fire_lm.checkpoints.manifest import write_manifest
from fire_lm.cli import main
from fire_lm.data import TextData
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.runs.run import open_run
from fire_lm.runs.saved import check_same_vocabulary
from fire_lm.runs.saved import save_config as save
from fire_lm.training import Finetuning

__all__ = ["pairs"]  # a fixture
BASE = "--gin_file=configs/finetune/base.gin"
TASK = ("--import=pair_tasks", "--gin.TASK=pairs", "--gin.TARGET_LENGTH=8")
SOURCE = ("configs/runs/quickstart.gin", "configs/positions/fire.gin")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Save the configuration of a run to finetune, trained at length 32."""
    workdir = tmp_path_factory.mktemp("runs") / "source"
    save(load_experiment(SOURCE, ["TRAIN_LENGTH=32", "FIRE.width=8"]), workdir)
    return workdir


def read(*flags, workdir=""):
    return experiment_of(["finetune", BASE, *TASK, *flags], workdir)


def test_the_recipe_is_the_papers(source):
    """The values are those of Tables 10 and 12."""
    suite = ("--gin_file=configs/finetune/suite.gin", "--gin.DATA_DIR=x")
    run = read(f"--gin.INIT_FROM={source}@5", *suite).train
    assert isinstance(run, Finetuning) and run.init_from == f"{source}@5"
    assert (run.batch_size, run.train_length, run.train_steps) == (128, 8192, 25_000)
    assert (run.model.dropout, run.model.attention_dropout) == (0.1, 0.1)
    rates = [float(run.schedule()(step)) for step in (0, 1, 12_000, 24_999)]
    assert rates == pytest.approx([1e-5] * 4)


def test_model_vocabulary_and_name_are_the_sources(source):
    config = read(f"--gin.INIT_FROM={source}")
    run = config.train
    assert run.encoding == "fire" and run.data.vocabulary == "bytes"
    assert (
        run.model.encodings[0].width == 8
        and run.model.size == load_experiment(SOURCE).train.model.size
    )
    assert config.kind == "finetune" and "pretrain." not in config.text()


def test_length_and_batch_are_the_sources_unless_they_are_given(source, tmp_path):
    """With the paper's 128 rows of 8192 tokens, a run of the quick start needs 61 GB."""
    run = read(f"--gin.INIT_FROM={source}").train
    assert (run.batch_size, run.train_length) == (16, 32)
    run = read(f"--gin.INIT_FROM={source}", "--gin.TRAIN_LENGTH=64").train
    assert (run.batch_size, run.train_length) == (16, 64)
    # A run that has started keeps its own, even if its file did not state them.
    save(read(f"--gin.INIT_FROM={source}", "--gin.TRAIN_LENGTH=8192"), tmp_path / "begun")
    run = read(f"--gin.INIT_FROM={source}", workdir=tmp_path / "begun").train
    assert (run.batch_size, run.train_length) == (16, 8192)


def test_files_and_bindings_win_over_the_source(source):
    rope = "--gin_file=configs/positions/rope_pi.gin"
    run = read(f"--gin.INIT_FROM={source}", rope, "--gin.build_decoder.dropout=0.3").train
    assert run.encoding == "rope_pi" and run.model.dropout == 0.3
    assert type(run.model.encodings[0]).__name__ == "RoPE"


def test_the_source_may_be_bound_without_its_macro(source):
    bound = "--gin.finetune.init_from=%START", f"--gin.START={source}@5"
    assert read(*bound).train.init_from == f"{source}@5"
    run = read(f"--gin.finetune.init_from={source}@5").train
    assert run.init_from == f"{source}@5" and run.model.encodings[0].width == 8


def test_what_is_saved_loads_alone(source, tmp_path):
    config = read(f"--gin.INIT_FROM={source}")
    (tmp_path / "config.gin").write_text(config.text())
    assert load_experiment([str(tmp_path / "config.gin")]) == config


def test_without_a_source_macros_describe_the_model():
    flags = ["--gin_file=configs/models/125m.gin", "--gin_file=configs/positions/fire.gin",
             "--gin.VOCABULARY=bytes", "--gin.VOCAB_SIZE=384", "--gin.TRAIN_LENGTH=64",
             "--gin.BATCH_SIZE=8"]  # fmt: skip
    assert read(*flags).train.model.size.num_layers == 12


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["finetune", BASE, *TASK, "--workdir=x", "--gin.INIT_FROM=/nowhere"], "contains no run"),
        (["finetune", BASE, *TASK], "finetune needs --workdir"),
        (["finetune", f"--gin_file={SOURCE[0]}", "--workdir=x"], "do not describe finetuning"),
        (["pretrain", BASE, *TASK, "--workdir=x"], "use `fire-lm finetune`"),
        (["finetune", BASE, f"--gin_file={SOURCE[0]}", "--workdir=x"], "omit the run file"),
        (["finetune", BASE, "--gin.INIT_FROM={source}", "--workdir=x"], "uses %TASK"),
        (["finetune", BASE, *TASK, "--workdir=x"], "finetune needs --gin.INIT_FROM=RUN[@STEP]"),
        (
            ["finetune", BASE, *TASK, "--gin.TRUNCATION=front", "--dry_run",
             "--gin.INIT_FROM={source}"],
            "head",
        ),
    ],
)  # fmt: skip
def test_what_is_no_finetuning_is_refused(arguments, words, source, capsys):
    assert main([argument.replace("{source}", str(source)) for argument in arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said and len(said.splitlines()) <= 3, said


def test_another_vocabulary_than_that_of_the_model_is_refused(source, tmp_path, capsys):
    """Otherwise its ids would select rows of the embedding that were trained for other text."""
    flags = [BASE, *TASK, f"--gin.INIT_FROM={source}", f"--workdir={tmp_path / 'run'}"]
    assert main(["finetune", *flags, f"--gin.VOCABULARY={MODEL}"]) == 2
    said = capsys.readouterr().err.strip()
    assert f"{source} was trained with the vocabulary bytes, not with {MODEL}" in said
    assert said.endswith("omit --gin.VOCABULARY") and len(said.splitlines()) == 2
    moved = tmp_path / "moved.model"
    moved.write_bytes(Path(MODEL).read_bytes())
    other = tmp_path / "other"
    save(load_experiment(SOURCE, [f"VOCABULARY='{MODEL}'", "VOCAB_SIZE=384"]), other)
    check_same_vocabulary(TextData("", vocabulary=str(moved)), other)
    with pytest.raises(UserError, match="the vocabulary .*model of SHA-256 .*, not with bytes"):
        check_same_vocabulary(TextData(""), other)


def test_a_dry_run_shows_the_length_that_is_kept(source, capsys):
    flags = [BASE, *TASK, f"--gin.INIT_FROM={source}", "--gin.BATCH_SIZE=8", "--dry_run"]
    assert main(["finetune", *flags, "--gin.TRAIN_LENGTH=64"]) == 0
    shown = capsys.readouterr().out
    assert "build_decoder.train_length = 32" in shown and "batch 8 x 64" in shown


def test_a_run_directory_of_the_other_kind_is_refused(source, capsys):
    checkpoint = epath.Path(source) / "checkpoints" / "3"
    (checkpoint / "state").mkdir(parents=True)
    (checkpoint / "state" / "array").write_text("never read")
    write_manifest(checkpoint)
    for more in ([], ["--allow_config_change"]):
        flags = [BASE, *TASK, f"--gin.INIT_FROM={source}", f"--workdir={source}", *more]
        assert main(["finetune", *flags]) == 2
        assert "was created by `fire-lm pretrain`" in capsys.readouterr().err


def finetuning(source: Path, workdir: Path, *more: str) -> list[str]:
    bindings = {"INIT_FROM": source, "TRAIN_STEPS": 9, "BATCH_SIZE": 8, "TRAIN_LENGTH": 24,
                "AdamW.learning_rate": 0.003, "Checkpointing.save_every": 4,
                "TextToText.shuffle_buffer": 50, "finetune.log_every": 1}  # fmt: skip
    return [
        *("finetune", BASE, *TASK, f"--workdir={workdir}"),
        *(f"--gin.{name}={value}" for name, value in bindings.items()),
        *more,
    ]


@pytest.mark.ci
def test_a_resumed_finetuning_is_bit_equal_with_dropout(tmp_path, capsys):
    """An uninterrupted run equals one that stops after 4 steps and resumes; other seeds differ."""
    source = tmp_path / "source"
    assert main(command(write_text(tmp_path / "text"), source, "--gin.TRAIN_STEPS=5")) == 0
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    }

    def run(name: str, *more: str) -> Path:
        assert main(finetuning(source, tmp_path / name, *more)) == 0
        return tmp_path / name

    whole, seeded = run("whole"), run("seeded", "--gin.SEED=1")
    resumed = run("resumed", "--gin.TRAIN_STEPS=4")
    in_another_process = subprocess.run(
        [sys.executable, "-m", "fire_lm", *finetuning(source, resumed)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert in_another_process.returncode == 0, in_another_process.stderr
    states = [saved_state(workdir, 9) for workdir in (whole, resumed, seeded)]
    for name, array in states[0].items():
        np.testing.assert_array_equal(array, states[1][name], err_msg=name)
    assert any((states[0][name] != states[2][name]).any() for name in states[0])
    # The finetuned run records its source and can generate.
    opened = open_run(whole)
    assert opened.encoding == "fire" and opened.settings.init_from == str(source)
    assert isinstance(opened.generate("a x3:", new_tokens=4)[0].text, str)
    assert main(["sweep", str(whole)]) == 2
    assert "was trained on the task pairs, not on text" in capsys.readouterr().err
    assert main(["report", str(whole), f"--output={tmp_path / 'report'}"]) == 0
    assert "pairs, one example per row" in (tmp_path / "report" / "report.md").read_text()
