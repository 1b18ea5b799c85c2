"""What the command line refuses before it computes or writes anything, and its messages."""

import json
import os
import time
from pathlib import Path

import pytest
from dry_runs import QUICKSTART, prepare

from fire_lm.cli import main

PRETRAIN = ("pretrain", "--dry_run", *QUICKSTART)
SWEEP = ("sweep", "runs/fire", "--dry_run")


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("refusals")
    before = Path.cwd()
    os.chdir(folder)
    prepare(folder)
    (folder / "file").write_text("")
    (folder / "folder.gin").mkdir()
    os.mkfifo(folder / "pipe.gin")
    (folder / "dangling.gin").symlink_to("nowhere.gin")
    (folder / "circle.gin").symlink_to("circle.gin")
    (folder / "utf16.gin").write_bytes("SEED = 3\n".encode("utf-16"))
    held = folder / "data" / "c4" / "en" / "3.1.0"
    held.mkdir(parents=True)
    told = {"splits": [{"name": "train"}, {"name": "validation"}]}
    (held / "dataset_info.json").write_text(json.dumps(told))
    os.chdir(before)
    return folder


@pytest.fixture
def folder(shared, monkeypatch) -> Path:
    """Change to the shared folder, which tests must not modify, and return it."""
    monkeypatch.chdir(shared)
    return shared


def refused(arguments: tuple[str, ...] | list[str], capsys) -> str:
    """Return the message with which a command is refused."""
    assert main(list(arguments)) == 2
    message: str = capsys.readouterr().err
    assert "Traceback" not in message and len(message.strip().splitlines()) <= 5
    assert len(message) < 2000 and all(c == "\n" or c.isprintable() for c in message)
    return message


# What a sweep cannot do with any checkpoint or any text.
SCORING = [
    ("EVAL_LENGTHS=0", "EVAL_LENGTHS is (0,): set lengths of 2"),
    ("EVAL_LENGTHS=[]", "EVAL_LENGTHS is (): set lengths of 2"),
    ("EVAL_LENGTHS=1e-400", "EVAL_LENGTHS is (0,): set lengths of 2"),
    ("EVAL_LENGTHS=64,1", "set lengths of 2"),
    ("length_sweep.position_bins=-1", "position_bins is -1: it must be 0 or more"),
    ("length_sweep.tokens_per_batch=0", "tokens_per_batch is 0: it must be 1 or more"),
    ("length_sweep.tokens=0", "tokens is 0: it must be 1 or more"),
    ("length_sweep.stride=0", "stride is 0: it must be 1 or more"),
    ("length_sweep.protocols=nope", "no protocol 'nope': choose from full, last256, sliding"),
    ("length_sweep.protocols=[]", "length_sweep.protocols is empty"),
    ("TextData.shuffle_buffer=-1", "shuffle_buffer must be at least 1, not -1"),
    ("TextData.mixture=(('a', -1),)", "the rate of a must be positive and finite, not -1.0"),
    ("DATA_DIR=b'x'", "expects str, got b'x'"),
    ("DATA_DIR=\"''\"", "DATA_DIR is empty"),
]  # fmt: skip


@pytest.mark.parametrize("binding, told", SCORING)
def test_a_dry_run_refuses_what_no_sweep_can_do(folder, binding, told, capsys):
    assert told in refused([*PRETRAIN, f"--gin.{binding.replace(chr(34), '')}"], capsys)
    assert told in refused([*SWEEP, f"--gin.{binding.replace(chr(34), '')}"], capsys)
    quoted = binding if "'" not in binding or '"' in binding else f'"{binding}"'
    assert told in refused([*SWEEP, f"--also=--gin.{quoted}"], capsys)


@pytest.mark.parametrize(
    "binding, told",
    [
        ("TRAIN_LENGTH=1", "TRAIN_LENGTH is 1: it must be 2 or more"),
        ("INIT_FROM=nope@x", "'nope@x': a step number must follow the @"),
        ("FIRE.init_c=1e-300", "FIRE.init_c is 1e-300, which is 0.0 in float32"),
        ("FIRE.init_L=1e300", "FIRE.init_L is 1e+300, which is inf in float32"),
        ("FIRE.hidden_layers=99", "FIRE.hidden_layers is 99: it must be 16 or less"),
        ("ENCODING=''", "ENCODING is '': as a name in tables"),
        ("ENCODING='a\\nb'", "ENCODING is 'a\\nb': as a name in tables"),
        ("ENCODING=" + "e" * 300, "as a name in tables"),
    ],
    ids=lambda value: value[:30],
)
def test_a_dry_run_refuses_what_pretrain_cannot_do(folder, binding, told, capsys):
    started = time.monotonic()
    assert told in refused([*PRETRAIN, f"--gin.{binding}"], capsys)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--also=--gin.length_sweep.split=nope"], "no split 'nope', only train, validation"),
        (["--gin.length_sweep.split=nope"], "no split 'nope', only train, validation"),
        (["--also=--gin.EVAL_LENGTHS=8192"], "longer than a row of text"),
        (["--output=file"], "--output=file is not a folder"),
        (["--output=file/below"], "--output=file/below cannot be created: "),
        (["--output=http://x"], "http://x is neither a local path nor a gs:// path"),
        (["--output=s3://x"], "s3://x is neither a local path nor a gs:// path"),
    ],
)
def test_a_dry_run_of_a_sweep_refuses_what_the_sweep_would(folder, arguments, told, capsys):
    assert told in refused([*SWEEP, "--gin.DATA_DIR=data", *arguments], capsys)


def test_a_checkpoint_in_a_bucket_of_another_kind_is_refused(capsys):
    assert "s3://x/run@100 is neither a local" in refused(["sweep", "s3://x/run@100"], capsys)


def test_dry_runs_that_can_work_still_do(folder, capsys):
    good = ["--gin.DATA_DIR=data", "--also=--gin.length_sweep.split=train", "--output=new/folder"]
    assert main([*SWEEP, *good]) == 0
    assert main([*SWEEP, "--gin.DATA_DIR=nowhere", "--gin.length_sweep.split=test"]) == 0
    assert not (folder / "new").exists()
    assert capsys.readouterr().err == ""


def test_a_report_looks_at_its_folder_before_it_reads_runs(folder, monkeypatch, capsys):
    monkeypatch.setattr("fire_lm.cli.report.gather", lambda *_, **__: pytest.fail("runs are read"))
    assert "--output=file is not a folder" in refused(["report", "runs", "--output=file"], capsys)
    assert "cannot be created: " in refused(["report", "runs", "--output=file/below"], capsys)
    for name in ("file", "file/below", "nowhere"):
        told = refused(["report", name], capsys)
        assert f"{name} is neither a run (no config.gin)" in told and "--output" not in told


def test_a_bucket_without_a_name_is_refused(folder, capsys):
    assert "gs://" in refused(["report", "runs", "--against=gs://"], capsys)


def test_a_binding_given_twice_is_told(folder, capsys):
    assert main([*PRETRAIN, "--gin.SEED=1", "--gin.TRAIN_STEPS=500", "--gin.SEED=2"]) == 0
    shown = capsys.readouterr()
    assert "SEED = 2\n" in shown.out
    assert shown.err == "fire-lm: only the last of repeated bindings applies: --gin.SEED=2\n"
    assert main([*PRETRAIN, "--gin.SEED=1", "--gin.SEED=1", "--gin.TRAIN_STEPS=500"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--gin_search_paths=configs,/nope"], "--gin_search_paths: there is no folder /nope"),
        (["--gin_search_paths=file"], "--gin_search_paths: there is no folder file"),
        (["--gin_file=folder.gin"], "'folder.gin' is not a gin file: it is a folder"),
        (
            ["--gin_file=configs/runs"],
            "'configs/runs' is not a gin file: it is a folder, with c4_125m.gin",
        ),
        (["--gin_file=pipe.gin"], "'pipe.gin' is not a gin file: it is a device or a pipe"),
        (
            ["--gin_file=dangling.gin"],
            "'dangling.gin' is not a gin file: it is a link to nowhere.gin, which does",
        ),
        (
            ["--gin_file=circle.gin"],
            "'circle.gin' is not a gin file: it is a link to circle.gin, which does",
        ),
        (["--gin_file=utf16.gin"], "utf16.gin: it is not UTF-8 text"),
        (["--gin_file=s3://x/a.gin"], "s3://x/a.gin is neither a local path nor a gs:// path"),
        (["--workdir=s3://x"], "s3://x is neither a local path nor a gs:// path"),
        (["--gin.pretrain.model=@build_decoder"], "Did you mean @build_decoder()?"),
        (["--gin.length_sweep.model=%POSITION"], "expects Decoder, got @FIRE"),
        (["--gin_file=" + "x" * 5000], "x...x"),
        (["--gin." + "x" * 5000 + "=3"], "x...x"),
        (["--gin.SEED=@" + "x" * 5000], "x...x"),
        (["--gin.SEED=" + "1" * 5000], "1...: SEED sets"),
        (["--gin.EVAL_LENGTHS=" + ",".join(["1"] * 3000)], ": set lengths of 2"),
        (["--workdir=a\0b"], r"--workdir contains the character '\x00'"),
        (["--workdir=\x1b[31m"], r"--workdir contains the character '\x1b'"),
        (["--gin.DATA_DIR=\x1b[31m"], r"--gin.DATA_DIR contains the character '\x1b'"),
        (["--gin.DATA_DIR=\udcff"], r"--gin.DATA_DIR contains the character '\udcff'"),
        (["--\x1b[31m"], r"unknown argument --\x1b[31m"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_places_and_words_that_cannot_be(folder, arguments, told, capsys):
    assert told in refused([*PRETRAIN, *arguments], capsys)


@pytest.mark.parametrize("verb", ["\x1b[31m", "x" * 5000, "a\nb"], ids=ascii)
def test_words_are_shortened_and_escaped_in_every_verb(folder, verb, capsys):
    refused([verb], capsys)
    refused(["sweep", verb], capsys)
    refused([*SWEEP, f"--also={verb}"], capsys)
    refused(["report", verb], capsys)
    refused(["report", "runs", f"--against={verb}"], capsys)
    refused(["preflight", f"--slice={verb}"], capsys)
    refused(["bench", "attention", f"--encodings={verb}"], capsys)


def test_a_byte_order_mark_is_no_text(folder, tmp_path, capsys):
    (tmp_path / "seed.gin").write_bytes(b"\xef\xbb\xbfSEED = 3\n")
    assert main([*PRETRAIN, f"--gin_file={tmp_path / 'seed.gin'}"]) == 0
    assert "SEED = 3\n" in capsys.readouterr().out


DAMAGE = {
    "empty": lambda good: b"",
    "nulls": lambda good: b"\0" * len(good),
    "half": lambda good: good[: len(good) // 2],
    "a few lines": lambda good: good[:400],
    "not UTF-8": lambda good: b"\xff\xfe" + good,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_configuration_of_a_run_is_named(tmp_path, monkeypatch, damage, capsys):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    (tmp_path / "new").mkdir()
    file = tmp_path / "runs" / "fire" / "config.gin"
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    for command in (
        ["pretrain", *QUICKSTART, "--workdir=runs/fire"],
        ["pretrain", *QUICKSTART, "--workdir=new", "--gin.INIT_FROM=runs/fire"],
        SWEEP,
        ["report", "runs/fire"],
        ["report", "new", "--against=runs/fire"],
    ):
        told = refused(command, capsys)
        assert "runs/fire/config.gin" in told and "move it away" in told, command
