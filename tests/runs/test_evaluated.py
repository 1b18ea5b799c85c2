"""Changes to a run's configuration on the command line of a verb that evaluates the run."""

import argparse

import pytest

from fire_lm.cli import parse
from fire_lm.config import UnusedBinding
from fire_lm.experiment import load_config
from fire_lm.runs.evaluated import configuration
from fire_lm.runs.saved import save_config
from fire_lm.storage import place
from fire_lm.sweeps.length_settings import LengthSetting
from fire_lm.sweeps.settings import resolved

FILES = ["configs/runs/quickstart.gin", "configs/positions/rope.gin"]
VERBS = {
    "sweep": ["sweep", "RUN"],
    "generate": ["generate", "RUN", "--prompt=a"],
    "export": ["export", "RUN", "--output=x"],
    "evaluate": ["evaluate", "RUN"],
    "tasks": ["evaluate", "RUN", "--gin_file=configs/tasks/base.gin", "--gin.TASK=a",
              "--gin.TARGET_LENGTH=9"],
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    save_config(load_config(FILES), folder / "text")
    task = ["configs/synthetic/reverse_string.gin", FILES[1]]
    save_config(load_config(task), folder / "task")
    return folder


def configured(verb: str, runs, *bindings: str):
    arguments = parse([*VERBS[verb], *(f"--gin.{one}" for one in bindings)])
    return configuration(arguments, place(runs / ("task" if verb == "evaluate" else "text")))


@pytest.mark.parametrize(
    "verb, binding",
    [
        ("sweep", "TRAIN_STEPS=5"),
        ("sweep", "AdamW.warmup_steps=5"),
        ("sweep", "pretrain.seed=1"),
        ("generate", "SEED=1"),
        ("generate", "EVAL_LENGTHS=64,128"),
        ("export", "length_sweep.stride=3"),
        ("evaluate", "BATCH_SIZE=3"),
        ("evaluate", "length_sweep.split='test'"),
        ("tasks", "SEED=1"),
    ],
)
def test_a_binding_that_the_verb_does_not_use_is_refused(verb, binding, runs):
    name = binding.partition("=")[0]
    with pytest.raises(UnusedBinding, match=f"does not use {name}, so this binding has no effect"):
        configured(verb, runs, binding)


@pytest.mark.parametrize(
    "verb, binding, text",
    [
        ("sweep", "EVAL_LENGTHS=64,128", "EVAL_LENGTHS = (64, 128)"),
        ("sweep", "DATA_DIR=elsewhere", "DATA_DIR = 'elsewhere'"),
        ("sweep", "TextData.tfds_name='a:1.0.0'", "TextData.tfds_name = 'a:1.0.0'"),
        ("sweep", "RoPE.scaling=@YaRN()", "RoPE.scaling = @YaRN()"),
        ("generate", "RoPE.scaling=@YaRN()", "RoPE.scaling = @YaRN()"),
        ("generate", "VOCABULARY=bytes", "VOCABULARY = 'bytes'"),
        ("evaluate", "EVAL_LENGTHS=4,5", "EVAL_LENGTHS = (4, 5)"),
        ("tasks", "evaluate.examples=3", "evaluate.examples = 3"),
        ("tasks", "EVAL_LENGTHS=64,128", "EVAL_LENGTHS = (64, 128)"),
    ],
)
def test_a_binding_that_the_verb_uses_is_accepted(verb, binding, text, runs):
    assert text in configured(verb, runs, binding)[0].text()


def test_files_may_contain_bindings_for_other_verbs(runs, tmp_path):
    (tmp_path / "more.gin").write_text("TRAIN_STEPS = 5\n")
    arguments = parse(["sweep", "RUN", f"--gin_file={tmp_path}/more.gin"])
    assert configuration(arguments, place(runs / "text"))[0].macro("TRAIN_STEPS") == 5


def test_an_also_without_effect_is_skipped_and_reported(runs):
    arguments: argparse.Namespace = parse(["sweep", "RUN", "--also=--gin.TRAIN_STEPS=5"])
    found, idle = resolved(LengthSetting, arguments, place(runs / "text"))
    assert len(found) == 1 and "sweep does not use TRAIN_STEPS" in idle["--gin.TRAIN_STEPS=5"]
