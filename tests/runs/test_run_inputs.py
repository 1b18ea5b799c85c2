"""A run's vocabulary: found from any folder, in a moved run, and never another file of its name."""

import hashlib
import shutil
from pathlib import Path

import pytest
from sample_run import command, write_text
from sample_vocabulary import MODEL

import fire_lm
from fire_lm.cli import main

GENERATE = ["--prompt=that test has a cat", "--new_tokens=4"]


def other_vocabulary() -> bytes:
    """Return the sample model with `e` and `a` exchanged, so that ids have other texts."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(Path(MODEL).read_bytes())
    a, b = model.pieces[4], model.pieces[5]
    a.piece, b.piece = b.piece, a.piece
    return bytes(model.SerializeToString())


OTHER = other_vocabulary()
SHA = {
    name: hashlib.sha256(content).hexdigest()
    for name, content in (("own", Path(MODEL).read_bytes()), ("other", OTHER))
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run, `run`, and its relative inputs, `my.model` and `text`."""
    folder = tmp_path_factory.mktemp("a")
    write_text(folder / "text")
    shutil.copy(MODEL, folder / "my.model")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        vocabulary = ("--gin.VOCABULARY=my.model", "--gin.VOCAB_SIZE=64")
        assert main(command(Path("text"), "run", *vocabulary, position="rope")) == 0
    return folder


@pytest.fixture
def place(trained, tmp_path, monkeypatch):
    """A copy of that folder, and another current folder, which has another `my.model`."""
    shutil.copytree(trained, tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "my.model").write_bytes(OTHER)
    monkeypatch.chdir(tmp_path / "b")
    return tmp_path


def generated(run: Path, capsys) -> str:
    capsys.readouterr()
    assert main(["generate", str(run), *GENERATE]) == 0
    return capsys.readouterr().out


@pytest.mark.ci
def test_another_file_of_the_same_name_changes_nothing(place, trained, capsys, monkeypatch):
    monkeypatch.chdir(place / "a")
    expected = generated(place / "a/run", capsys)
    ids = fire_lm.open_run("run").encode("that test has a cat").tolist()
    monkeypatch.chdir(place / "b")
    assert generated(place / "a/run", capsys) == expected
    assert fire_lm.open_run(place / "a/run").encode("that test has a cat").tolist() == ids
    # A run is a folder: it works elsewhere, without the file that it was trained with.
    (place / "a/my.model").unlink()
    (place / "a/run").rename(place / "b/moved")
    assert generated(place / "b/moved", capsys) == expected
