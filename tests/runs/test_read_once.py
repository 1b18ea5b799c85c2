"""How often a training command parses gin files: each of them once, whatever it asks of them."""

from __future__ import annotations

import collections

import pytest
from sample_run import command
from test_finetuning_on_pairs import faq

from fire_lm import training
from fire_lm.cli import main
from fire_lm.config import files
from fire_lm.experiment import load_experiment
from fire_lm.runs.saved import save_config

__all__ = ["faq"]  # a fixture
SOURCE = ["configs/runs/quickstart.gin", "configs/positions/fire.gin"]


@pytest.fixture
def parsed(monkeypatch):
    """Count the files that are parsed, and start runs without training them."""
    counts: collections.Counter[str] = collections.Counter()
    parse = files.parse_file

    def counting(text: str, name: str):
        counts[name] += 1
        return parse(text, name)

    def started(run, workdir, *, once_held, after_first_step, **more):
        once_held()
        after_first_step(0)

    monkeypatch.setattr(files, "parse_file", counting)
    monkeypatch.setattr(training, "pretrain", started)
    return counts


def test_pretraining_reads_each_file_once(parsed, tmp_path):
    """It starts, and then resumes, for which it reads the saved configuration as well."""
    run = tmp_path / "run"
    for saved in ([], [str(run / "config.gin")]):
        parsed.clear()
        assert main(command(tmp_path, run)) == 0
        assert set(parsed) > {*SOURCE, "configs/base.gin", *saved}
        assert set(parsed.values()) == {1}, parsed


def test_finetuning_reads_each_file_once(parsed, tmp_path, faq):
    """The configuration of the source, or later of the run itself, describes the model."""
    source, run = tmp_path / "source", tmp_path / "run"
    save_config(load_experiment(SOURCE, ["TRAIN_LENGTH=32"]), source)
    words = ["finetune", f"--pairs={faq}", f"--gin.INIT_FROM={source}", f"--workdir={run}"]
    for saved in (source, run):
        parsed.clear()
        assert main(words) == 0
        config = str(saved / "config.gin")
        assert parsed.pop(config) <= 2, "itself, and the description of the model in it"
        assert set(parsed.values()) == {1}, parsed
