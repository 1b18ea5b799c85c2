"""`fire_lm.open_run`: a trained run from Python."""

import errno
import fcntl
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from sample_run import STEPS
from sample_vocabulary import MODEL

import fire_lm
from fire_lm.data import Blocks, TextData
from fire_lm.data.tokens import decode, encode
from fire_lm.errors import UserError
from fire_lm.measures import LengthSweep
from fire_lm.models import token_losses


@pytest.fixture
def workdir(trained):
    return trained / "finished"


@pytest.fixture(scope="module")
def run(trained):
    return fire_lm.open_run(str(trained / "finished"))


def test_the_examples_of_the_documentation(workdir):
    """The examples of docs/python.md, on this run, agree with each other and with training."""
    page = (Path(__file__).parents[2] / "docs/python.md").read_text()
    first, second = re.findall("```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(first.replace("runs/quickstart/fire", str(workdir)), names)
    run, logits, losses = names["run"], names["logits"], names["losses"]
    exec(second, names)
    model, params, positions = names["model"], names["params"], names["positions"]
    text = run.encode("def main():")
    assert logits.shape == (len(text) + 1, model.vocab_size)
    np.testing.assert_allclose(logits, names["logits"][0], rtol=1e-4, atol=1e-5)
    theirs = token_losses(model, params, text[None], positions[:, :-1])[0][0]
    np.testing.assert_allclose(losses, theirs, rtol=1e-4, atol=1e-5)
    assert names["attention"].weights.shape == (2, len(text) + 1, len(text) + 1)


def test_ids_are_as_good_as_text_and_libraries_warn_of_nothing(workdir, caplog):
    run = fire_lm.open_run(str(workdir))
    model, _ = run.restore()
    assert not caplog.records, "warnings of libraries"
    logits = run.logits("def main():")
    np.testing.assert_array_equal(run.logits(run.encode("def main():").tolist()), logits)
    assert run.logits([]).shape == (1, model.vocab_size) and run.losses("").shape == (0,)
    found = run.attention("def main():", -1)
    assert found.weights.shape == (2, len(logits), len(logits))
    np.testing.assert_allclose(found.weights.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    "text, words",
    [
        ("\ud800", "half of a surrogate pair"),
        ([1.5], "must be a str or a list of ids"),
        ([[1], [2]], "must be a str or a list of ids"),
        ([3, 384], "the token id 384, but the model's embedding has only 384"),
        ([-1, 3], "the token id -1: it must be 0 or more"),
    ],
)
def test_what_is_no_text_is_refused(run, text, words):
    with pytest.raises(UserError, match=words):
        run.losses(text)


def test_what_a_run_says_of_itself(workdir):
    run = fire_lm.open_run(f"{workdir}@5")
    assert (run.name, run.encoding, run.step, run.steps) == ("finished", "fire", 5, [5, 10, STEPS])
    assert run.settings.train_steps == STEPS and isinstance(run.data, TextData)
    assert isinstance(run.experiment.sweep, LengthSweep)
    assert run.metrics()[-1]["step"] == STEPS and not run.rows().losses and run.writer == ""
    newest = fire_lm.open_run(str(workdir)).restore()[1]["embedding"]
    assert not np.array_equal(run.restore()[1]["embedding"], newest), "another step"


def test_a_file_system_without_locks_has_no_writer(workdir, monkeypatch):
    def refuse(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert fire_lm.open_run(str(workdir)).writer == ""


@pytest.mark.parametrize("name, told", [("nowhere", "contains no run"), ("x@y", "a step number")])
def test_there_is_no_run(tmp_path, name, told):
    with pytest.raises(UserError, match=told):
        fire_lm.open_run(str(tmp_path / name))


def test_a_step_that_is_not_there(workdir):
    with pytest.raises(UserError, match=r"has no checkpoint 7: choose one of \[5, 10, 12\]"):
        fire_lm.open_run(f"{workdir}@7").restore()


def test_who_is_training_it(workdir, tmp_path):
    from fire_lm.training.lock import only_writer

    copy = shutil.copytree(workdir, tmp_path / "copy")
    run = fire_lm.open_run(str(copy))
    with only_writer(str(copy)):
        assert run.writer.startswith("process ")
    assert run.writer == ""


@pytest.mark.parametrize("text", ["", "fire and rope", "naïve – 火", " two  spaces\n"])
@pytest.mark.parametrize("vocabulary", ["bytes", MODEL])
def test_ids_are_those_of_training(text, vocabulary):
    from fire_lm.data import vocabularies

    data = TextData("", vocabulary=vocabulary)
    ids = encode(data, text)
    assert ids.dtype == np.int32
    assert ids.tolist() == list(vocabularies.load(vocabulary).encode(text))
    if vocabulary == "bytes":
        assert decode(data, [0, *ids, 1]) == text


@pytest.mark.parametrize(
    "vocabulary, told", [("", "set Blocks.vocabulary"), ("nowhere.model", "no vocabulary file")]
)
def test_a_vocabulary_that_is_not_there(vocabulary, told):
    with pytest.raises(UserError, match=told):
        encode(Blocks("blocks", vocabulary=vocabulary), "text")


def test_variables_that_would_change_results_do_not_apply(workdir, monkeypatch, capsys):
    """Generation with 64-bit integers would end with a TypeError."""
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    jax.config.update("jax_enable_x64", True)
    try:
        fire_lm.open_run(workdir)
        assert not jax.config.jax_enable_x64
    finally:
        jax.config.update("jax_enable_x64", False)
    assert "JAX_ENABLE_X64=1 of the environment" in capsys.readouterr().err
