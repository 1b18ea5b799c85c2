"""`fire-lm preflight` of an evaluation on downstream tasks."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from environments import of_users
from sample_pairs import pairs
from sample_run import command, write_text

from fire_lm.cli import main
from fire_lm.errors import RunFailed
from fire_lm.experiment import load_experiment
from fire_lm.hardware.slices import parse_slice
from fire_lm.preflight.programs import Compiler, DoesNotFit
from fire_lm.preflight.tasks import preflight_tasks

__all__ = ["pairs"]  # a fixture
ROOT = Path(__file__).resolve().parents[2]
FILES = ["configs/runs/quickstart.gin", "configs/positions/rope.gin", "configs/tasks/base.gin"]
TASK = ["TASK=pairs", "TARGET_LENGTH=6", "EVAL_LENGTHS=(100, 1000)"]
FLAGS = ["--import=pair_tasks", *(f"--gin.{one}" for one in TASK)]


def report(*bindings: str):
    """Return the report of a preflight whose compiler is replaced."""
    config = load_experiment(FILES, [*TASK, *bindings])
    asked, model = config.task, config.model
    return preflight_tasks(Compiler(parse_slice("v4-8"), Path()), model, asked, [100, 1000], {})


def fits(batch: int):
    """Return a compile function for which batches of at most `batch` fit in memory."""

    def compile(_, model, shape, what, tokens_per_batch=None):
        if (what.batch if tokens_per_batch is None else tokens_per_batch) > batch:
            raise DoesNotFit(2**31, 2**30)
        program = SimpleNamespace(memory=2**30)
        token = SimpleNamespace(collectives={}, untimed="")
        return program if tokens_per_batch else SimpleNamespace(
            program=program, token=token, parameters=0, prompts=what
        )  # fmt: skip

    return compile


def test_prompts_are_padded_as_in_an_evaluation(monkeypatch):
    monkeypatch.setattr(Compiler, "generation", fits(8))
    found = report()
    assert list(found.programs) == ["generation at 100", "generation at 1000"]
    assert str(found.generation.prompts) == "8 x (1024 + 6), greedy"
    assert found.generation.prompts.context_length == 1 + 1000 + 6 and found.passed


@pytest.mark.parametrize(
    "kind, fitting, bindings, told",
    [
        ("generation", 2, [], "it fits with --gin.evaluate.batch_size=2: 1.00 GiB"),
        ("generation", 0, [], "a single prompt does not fit"),
        ("ranking", 4096, ["evaluate.rank=True", "evaluate.choices=('a', 'b')"],
         "it fits with --gin.evaluate.tokens_per_batch=4096: 1.00 GiB"),
        ("ranking", 0, ["evaluate.rank=True", "evaluate.choices=('a', 'b')"],
         "a single sequence does not fit: lower EVAL_LENGTHS"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_as_for_a_sweep(kind, fitting, bindings, told, monkeypatch):
    monkeypatch.setattr(Compiler, kind, fits(fitting))
    found = report(*bindings)
    words = found.failures[f"{kind} at 1000"].splitlines()
    assert words[0] == "it needs 2.00 GiB per chip, 1.00 GiB more than the usable 1.00 GiB"
    assert told in words[1] and not found.passed


def test_examples_are_checked(monkeypatch):
    def refuse(*_):
        raise RunFailed("not compiled")

    monkeypatch.setattr(Compiler, "generation", refuse)
    monkeypatch.setattr(Compiler, "ranking", refuse)
    for bindings, outcome, told in (
        ([], "ok", "pairs: first examples of the validation split, decoding greedy"),
        (["evaluate.split=test"], "FAILED", "has no split 'test'"),
        (["evaluate.rank=True"], "FAILED", "does not list the allowed answers"),
        (["TASK=nothing"], "FAILED", "nothing"),
        (["VOCAB_SIZE=100"], "FAILED", "vocabulary has only 100 ids"),
    ):
        first = report(*bindings).checks[0]
        assert (first.name, first.outcome) == ("task", outcome) and told in first.detail, first


def test_what_has_no_effect_or_cannot_work_is_refused(capsys, tmp_path):
    files = [f"--gin_file={name}" for name in FILES]
    for more, told in (
        (["--generate=1x2x3"], "--generate and --beams have no effect on an evaluation"),
        (["--allow_config_change"], "--allow_config_change has no effect on an evaluation"),
        ([f"--workdir={tmp_path}"], "contains no run (no config.gin)"),
        (["--gin.evaluate.batch_size=0"], "must be 1 or more"),
        (["--gin.evaluate.mesh=@MeshShape()", "--gin.MeshShape.data=3"], "v4-8 (4 chips) has 4"),
    ):
        assert main(["preflight", "--slice=v4-8", *files, *FLAGS, *more]) == 2
        assert told in capsys.readouterr().err


@pytest.mark.slow
def test_the_programs_of_an_evaluation_compile_for_a_slice(tmp_path):
    """A run is checked with generation and with ranking; an excess of memory is reported."""
    run, written = tmp_path / "run", tmp_path / "report.json"
    trained = command(write_text(tmp_path / "text"), run, "--gin.TRAIN_STEPS=5", position="rope")
    assert main(trained) == 0
    environment = of_users() | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    task = [f"--workdir={run}", "--gin_file=configs/tasks/base.gin", *FLAGS]

    def preflight(*more: str) -> tuple[int, str, dict]:
        command = [*(sys.executable, "-m", "fire_lm", "preflight", "--slice=v5e-8"), *task]
        done = subprocess.run(
            [*command, f"--json={written}", *more],
            cwd=ROOT, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr, json.loads(written.read_text())

    code, said, found = preflight()
    assert code == 0 and list(found["programs"]) == ["generation at 1000"]
    assert "generation of 8 x (1024 + 6), greedy" in said
    # Keys and values of one prompt per chip: one layer, 2 heads of 16, float32.
    assert found["generation"]["cache"] == 2 * (1024 + 6) * 2 * 16 * 4
    outcomes = {check["name"]: check["outcome"] for check in found["checks"]}
    assert outcomes == {"task": "ok", "checkpoint": "ok", "gathers of a new token": "ok"}
    ranked = ["--gin.evaluate.rank=True", "--gin.evaluate.choices=('aa', 'b')"]
    too_many = f"--gin.evaluate.tokens_per_batch={2**27}"
    code, said, found = preflight(*ranked, too_many)
    assert code == 1 and "this evaluation would not work on v5e-8 (8 chips)" in said
    told = found["failures"]["ranking at 1000"]
    assert "GiB more than the usable 15.75 GiB" in told
    assert "it fits with --gin.evaluate.tokens_per_batch=" in told
