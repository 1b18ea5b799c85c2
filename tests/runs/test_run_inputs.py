"""What a run needs later: found from any folder, in a moved run, and never another file."""

import contextlib
import functools
import hashlib
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from sample_run import command, write_text
from sample_vocabulary import MODEL
from training_experiments import experiment_of

import fire_lm
from fire_lm.checkpoints.manifest import write_manifest
from fire_lm.cli import main, parse
from fire_lm.cli.evaluate import Accuracies
from fire_lm.cli.sweep import Sweep
from fire_lm.data import TextData, tokens
from fire_lm.data.blocks import manifest as manifests
from fire_lm.errors import UserError
from fire_lm.experiment import Experiment, load_experiment
from fire_lm.runs import input_files, saved
from fire_lm.runs.resuming import Start
from fire_lm.runs.saved import read_saved, save_config
from fire_lm.storage import place

PROMPT = "that test has a cat"
FILES = ["configs/runs/quickstart.gin", "configs/positions/rope.gin"]
NAMED = ["VOCABULARY='my.model'", "VOCAB_SIZE=64", "DATA_DIR='text'"]


def other_vocabulary() -> bytes:
    """Return the sample model with `e` and `a` exchanged, so that their ids have other texts."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(Path(MODEL).read_bytes())
    e, a = model.pieces[4], model.pieces[5]
    e.piece, a.piece = a.piece, e.piece
    return bytes(model.SerializeToString())


OWN, OTHER = Path(MODEL).read_bytes(), other_vocabulary()
SHA_OWN, SHA_OTHER = (hashlib.sha256(content).hexdigest() for content in (OWN, OTHER))


@functools.cache
def own_config() -> Experiment:
    return load_experiment(FILES, NAMED)


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Two folders: `a` has a run that began there and its vocabulary, `b` another file of its name.

    The current folder is `b`.
    """
    for name, content in (("a", OWN), ("b", OTHER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "my.model").write_bytes(content)
    monkeypatch.chdir(tmp_path / "a")
    save_config(own_config(), "run")
    monkeypatch.chdir(tmp_path / "b")
    tokens._sentencepiece.cache_clear()  # keyed by the path
    return tmp_path


def ids_of(vocabulary: bytes) -> list[int]:
    from sentencepiece import SentencePieceProcessor

    return list(SentencePieceProcessor(model_proto=vocabulary).EncodeAsIds(PROMPT))


def encoded(run: Path | str) -> list[int]:
    return fire_lm.open_run(str(run)).encode(PROMPT).tolist()


def test_another_file_of_the_name_changes_nothing(started):
    assert ids_of(OWN) != ids_of(OTHER)
    assert encoded(started / "a/run") == ids_of(OWN)


def test_a_moved_run_needs_no_other_file(started):
    (started / "a/my.model").unlink()
    (started / "a/run").rename(started / "moved")
    assert encoded(started / "moved") == ids_of(OWN)


@pytest.mark.ci
def test_without_a_copy_the_original_is_found(started, monkeypatch):
    monkeypatch.chdir(started / "a")
    monkeypatch.setattr(input_files, "LARGEST_COPY", 10)
    save_config(own_config(), "large")
    monkeypatch.chdir(started / "b")
    assert not (started / "a/large/vocabulary").exists()
    assert encoded(started / "a/large") == ids_of(OWN)
    (started / "a/my.model").write_bytes(OTHER)
    for verb in (["generate", "--prompt=a"], ["export", "--output=x"]):
        assert refused([*verb, str(started / "a/large")]) == SHA_OTHER, verb
    with pytest.raises(UserError, match=f"{SHA_OWN}.* {SHA_OTHER}"):
        Sweep(parse(["sweep", "RUN"])).settings(place(started / "a/large"))
    (started / "a/my.model").unlink()
    with pytest.raises(UserError, match=f"{started}/a/my.model does not exist"):
        encoded(started / "a/large")


def refused(arguments: list[str]) -> str:
    """Return the SHA-256 that a command finds in place of that of the run's vocabulary."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        assert main(arguments) == 2
    first, *rest = said.getvalue().strip().splitlines()
    assert f"of SHA-256 {SHA_OWN}" in first and len(rest) == 1, said.getvalue()
    return first.split()[-1]


@pytest.mark.ci
def test_a_damaged_copy_is_not_read(started):
    (started / "a/run/vocabulary/my.model").write_bytes(OTHER)
    assert encoded(started / "a/run") == ids_of(OWN)  # the original's
    (started / "a/my.model").write_bytes(OTHER)
    with pytest.raises(UserError, match=f"{SHA_OWN}.* {SHA_OTHER}"):
        encoded(started / "a/run")


def test_the_command_line_cannot_name_another_vocabulary(started):
    arguments = ["generate", str(started / "a/run"), "--prompt=a"]
    assert refused([*arguments, "--gin.VOCABULARY=my.model"]) == SHA_OTHER


def save_position(workdir: Path, header: dict[str, object]) -> None:
    """Write a checkpoint that consists of a data position."""
    folder = workdir / "checkpoints" / "5"
    (folder / "position").mkdir(parents=True)
    content = io.BytesIO()
    np.savez_compressed(content, header=np.array(json.dumps(header)))
    (folder / "position" / "process_0000_of_0001").write_bytes(content.getvalue())
    (folder / "position" / "commit_success.txt").write_text("")  # Orbax adds it
    write_manifest(place(folder))


@pytest.mark.ci
@pytest.mark.parametrize("largest_copy", [10, 2**26])
def test_a_resumed_run_keeps_its_vocabulary(started, monkeypatch, largest_copy):
    """It is started again in another folder, where another file has its name."""
    monkeypatch.setattr(input_files, "LARGEST_COPY", largest_copy)
    monkeypatch.chdir(started / "a")
    save_config(own_config(), "again")
    save_position(Path("again"), {})
    for folder in ("b", "a", "b"):
        monkeypatch.chdir(started / folder)
        run = f"{started}/a/again"
        vocabulary = Start(own_config(), run, read_saved(run)).run.data.vocabulary
        assert vocabulary.startswith(f"{started}/a/")
        save_config(own_config(), started / "a/again")
        assert encoded(started / "a/again") == ids_of(OWN)


@pytest.mark.ci
def test_a_run_without_a_checkpoint_starts_over_with_the_file_as_it_is(started, monkeypatch):
    monkeypatch.chdir(started / "a")
    Path("my.model").write_bytes(OTHER)
    config = own_config()
    assert Start(config, "run", read_saved("run")).run is config.train
    save_config(config, "run")
    assert encoded("run") == ids_of(OTHER)


@pytest.mark.ci
def test_hugging_face_vocabularies_are_copied_as_folders(started, monkeypatch):
    monkeypatch.chdir(started / "a")
    folder = Path("gpt")
    folder.mkdir()
    files = {"tokenizer.json": "{}", "config.json": '{"eos_token_id": 0}'}
    for name, content in files.items():
        (folder / name).write_text(content)
    (folder / "model.safetensors").write_text("large")
    blocks = ["configs/data/blocks.gin"]
    save_config(load_experiment([*FILES, *blocks], ["VOCABULARY='hf:gpt'", "DATA_DIR='x'"]), "hub")
    shutil.rmtree(folder)
    copy = started / "a/hub/vocabulary/gpt"
    assert {path.name: path.read_text() for path in copy.iterdir()} == files
    assert fire_lm.open_run("hub").data.vocabulary == f"hf:{copy}"


def test_relative_data_is_that_of_training(started, capsys):
    """The folder of the run's start comes before the current folder."""
    run, own = started / "a/run", started / "a/text"

    def data_dir() -> str:
        data = fire_lm.open_run(str(run)).settings.data
        assert isinstance(data, TextData)
        return data.data_dir

    assert data_dir() == str(own), "a message names the path that was looked for"
    (started / "b/text").mkdir()
    assert data_dir() == "text"
    assert f"{own} does not exist: {started}/b/text is read" in capsys.readouterr().err
    own.mkdir()
    assert data_dir() == str(own)


@pytest.mark.ci  # imports TensorFlow
def test_a_run_in_a_bucket_has_its_vocabulary_there(started, bucket, monkeypatch):
    monkeypatch.chdir(started / "a")
    save_config(own_config(), bucket.url("runs/x"))
    (started / "a/my.model").unlink()
    assert bucket.objects["runs/x/vocabulary/my.model"] == OWN
    assert encoded(bucket.url("runs/x")) == ids_of(OWN)


def test_blocks_of_another_vocabulary_are_not_scored(started):
    """Blocks that are opened without a vocabulary state it in their manifest."""
    stated = manifests.Identity("x:1.0.0", "x", "my.model", SHA_OTHER, 64, None, 1)
    (started / "b/blocks").mkdir()
    manifests.write(str(started / "b/blocks"), manifests.Manifest(stated, {"validation": ()}))
    flags = ["length_sweep.data=@Blocks()", "Blocks.path=blocks", "Blocks.vocabulary=''"]
    arguments = parse(["sweep", "RUN", *(f"--gin.{flag}" for flag in flags)])
    with pytest.raises(UserError, match=f"{SHA_OWN}, not with that of the blocks .*{SHA_OTHER}"):
        Sweep(arguments).settings(place(started / "a/run"))


def test_a_finetuned_run_reads_the_vocabulary_of_its_source(started):
    """Its name is that of the original, which other sources may share, or else that of the copy."""
    flags = ["--gin_file=configs/finetune/base.gin", "--gin.TASK=a", "--gin.TARGET_LENGTH=9"]
    arguments = ["finetune", *flags, f"--gin.INIT_FROM={started}/a/run"]
    config = experiment_of(arguments)
    assert config.macro("VOCABULARY") == str(started / "a/my.model")
    save_config(config, started / "tuned")
    (started / "a/my.model").unlink()
    moved = experiment_of(arguments).macro("VOCABULARY")
    assert moved == str(started / "a/run/vocabulary/my.model")
    shutil.rmtree(started / "a")
    assert encoded(started / "tuned") == ids_of(OWN)


@pytest.mark.ci
def test_a_resumed_run_may_name_the_same_file_otherwise(started, monkeypatch):
    """A path of the same file, from another folder, is no other experiment."""
    run = str(started / "a/run")
    for name in ("../a/my.model", str(started / "a/my.model"), str(started / "a/run/../my.model")):
        config = load_experiment(FILES, [f"VOCABULARY='{name}'", NAMED[1], "DATA_DIR='../a/text'"])
        Start(config).check_same_experiment(read_saved(run))
    config = load_experiment(FILES, NAMED[:2] + ["DATA_DIR='../b/text'"])
    with pytest.raises(UserError, match="DATA_DIR: 'text' -> '../b/text'"):
        Start(config).check_same_experiment(read_saved(run))
    config = load_experiment(FILES, ["VOCABULARY='../b/my.model'", *NAMED[1:]])
    with pytest.raises(UserError, match="VOCABULARY: 'my.model' -> '../b/my.model'"):
        Start(config).check_same_experiment(read_saved(run))


ENCODING = """
import dataclasses
from fire_lm.positions.nope import NoPE

@dataclasses.dataclass(frozen=True)
class Own(NoPE):
    pass
"""


@pytest.mark.ci
def test_modules_of_the_user_are_named_and_compared(started, monkeypatch, capsys):
    """A missing module is no damage, and a changed one is reported once."""
    source = started / "a/own_encoding.py"
    source.write_text(ENCODING)
    monkeypatch.chdir(started / "a")
    monkeypatch.syspath_prepend(str(started / "a"))
    load = [*NAMED, "POSITION=@Own", "ENCODING='own'"]
    save_config(load_experiment(FILES[:1], load, imports=["own_encoding"]), "run_2")
    assert encoded(started / "a/run_2") == ids_of(OWN) and not capsys.readouterr().err
    source.write_text(f"{ENCODING}# changed")
    assert encoded(started / "a/run_2") == encoded(started / "a/run_2")
    assert capsys.readouterr().err.count("own_encoding.py) has changed since") == 1
    monkeypatch.delitem(sys.modules, "own_encoding")
    saved._loaded.cache_clear()
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(started / "a")])
    with pytest.raises(UserError) as error:
        encoded(started / "a/run_2")
    said = str(error.value).splitlines()[-1]
    where = f"add the folder that contains it to PYTHONPATH; the run was started with {source}"
    assert said == where, said


@pytest.mark.ci
def test_the_text_of_a_task_is_that_of_training(started, monkeypatch):
    """The path of the text is part of the names of results, so it is checked, not replaced."""
    (started / "a/hay.txt").write_text("hay " * 99)
    (started / "b/hay.txt").write_text("straw " * 99)
    monkeypatch.chdir(started / "a")
    files = ["configs/synthetic/passkey.gin", FILES[1]]
    save_config(load_experiment(files, ["Passkey.text='hay.txt'"]), "task")
    arguments = parse(["evaluate", "RUN", "--lengths=128"])
    assert Accuracies(arguments).settings(place("task"))
    monkeypatch.chdir(started / "b")
    with pytest.raises(UserError, match=r"b/hay.txt has SHA-256 .*\nrun this command in .*/a"):
        Accuracies(arguments).settings(place(started / "a/task"))


@pytest.mark.ci
def test_a_moved_run_generates_resumes_and_is_swept(tmp_path, monkeypatch, capsys):
    """The text, the losses and the steps are those of the folder in which the run began."""
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    write_text(Path("text"))
    Path("my.model").write_bytes(OWN)
    more = ["--gin.VOCABULARY=my.model", "--gin.VOCAB_SIZE=64", "--gin.EVAL_LENGTHS=32"]
    train = command(Path("text"), "run", *more, "--gin.TRAIN_STEPS=5", position="rope")
    assert main(train) == 0
    shutil.copytree("run", "whole")
    generate = [f"--prompt={PROMPT}", "--new_tokens=4"]

    def generated(run: str) -> str:
        capsys.readouterr()
        tokens._sentencepiece.cache_clear()
        assert main(["generate", run, *generate]) == 0
        return capsys.readouterr().out

    def swept(run: str) -> str:
        assert main(["sweep", run]) == 0
        return Path(run, "length_sweep.csv").read_text().replace("whole", "run")

    text, losses = generated("whole"), swept("whole")
    Path("my.model").write_bytes(OTHER)
    assert main([*train, "--gin.TRAIN_STEPS=6"]) == 0, "a run resumes with its copy"
    assert "is not the vocabulary of run" in capsys.readouterr().err
    Path("my.model").unlink()
    (tmp_path / "b").mkdir()
    shutil.move("run", tmp_path / "b" / "run")
    monkeypatch.chdir(tmp_path / "b")
    assert generated("run@5") == text
    assert main(["sweep", "run@5"]) == 0
    assert Path("run/length_sweep.csv").read_text() == losses
