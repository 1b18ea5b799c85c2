"""Apache Beam writes the same data set as our own writer; it runs in an environment of its own.

`scripts/test --all` makes that environment (extra `cache`) and passes the path of its Python.
"""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sample_run import write_text

from fire_lm import cli
from fire_lm.data import TextData
from fire_lm.data.blocks.writer import write_blocks

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("FIRE_LM_BEAM_PYTHON")


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


in_beams_environment = pytest.mark.skipif(
    not PYTHON, reason="FIRE_LM_BEAM_PYTHON names no Python with the extra `cache`"
)


def fire_lm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PYTHON), "-m", "fire_lm", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.slow
@in_beams_environment
def test_beam_writes_the_same_files(tmp_path):
    data_dir = write_text(tmp_path / "data")
    command = ["corpus", "blocks", f"--data_dir={data_dir}", f"--output={tmp_path / 'beam'}"]
    options = ["--runner=DirectRunner", "--runner_options=--direct_num_workers=1", "--parts=3"]
    done = fire_lm(*command, *options)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "train: 53 documents" in done.stdout
    write_blocks(TextData(str(data_dir)), str(tmp_path / "here"), parts=3)
    assert files(tmp_path / "beam") == files(tmp_path / "here")


@pytest.mark.slow
@in_beams_environment
def test_a_worker_that_fails_is_told_plainly(tmp_path):
    data_dir = write_text(tmp_path / "data")
    for file in (data_dir / "c4/en/3.1.0").glob("*-train.tfrecord-00001-*"):
        file.write_bytes(file.read_bytes()[:-9])
    command = ["corpus", "blocks", f"--data_dir={data_dir}", f"--output={tmp_path / 'beam'}"]
    done = fire_lm(*command, "--runner=DirectRunner", "--parts=3")
    assert done.returncode == 1, done.stderr[-3000:]
    told = f"fire-lm: Reading c4/en:3.1.0 in {data_dir} failed: "
    assert done.stderr.splitlines()[-1].startswith(told)
    assert not (tmp_path / "beam/manifest.json").exists()


@pytest.mark.slow
@in_beams_environment
def test_beam_writes_a_data_set_of_the_same_documents(tmp_path):
    """Text and JSON with equal, empty and undecodable documents give the same data and counts."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a", "b"):
        lines = (json.dumps({"text": "word " * (n % 30 + 1) + name * (n % 7)}) for n in range(90))
        (source / f"{name}.jsonl").write_text("\n".join(lines))
    for name, content in {
        "c": b"a file",
        "d": b"caf\xe9",
        "e": b" ",
        "f": b" ",
        "g": b"a file",
        "a.jsonl:1": b"named as a line of another",
    }.items():
        (source / (name if ":" in name else f"{name}.txt")).write_bytes(content)
    printed = {}
    for where, *runner in (["here"], ["beam", "--runner=DirectRunner"]):
        command = ["corpus", f"--from={source}", "--name=mine", "--validation_percent=30"]
        done = fire_lm(*command, f"--data_dir={tmp_path / where}", *runner)
        assert done.returncode == 0, done.stderr[-3000:]
        printed[where] = done.stdout.replace(str(tmp_path / where), "")
    assert printed["beam"] in printed["here"] and "1 not UTF-8" in printed["here"]
    for split in ("train", "validation"):
        here, beam = (examples(tmp_path / where, split) for where in ("here", "beam"))
        assert here == beam and len(here) > 9


def examples(data_dir: Path, split: str) -> list[tuple[bytes, bytes]]:
    """Return the text and source of each example, in order."""
    from fire_lm.data.quiet_tensorflow import tfds

    found = tfds.builder("mine", data_dir=data_dir).as_dataset(split, shuffle_files=False)
    return [(each["text"], each["source"]) for each in found.as_numpy_iterator()]


@pytest.mark.slow
@in_beams_environment
def test_a_damaged_file_ends_beam_plainly(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "good.txt").write_text("good")
    (source / "cut.txt.gz").write_bytes(gzip.compress(b"some words")[:-4])
    command = ["corpus", f"--from={source}", f"--data_dir={tmp_path / 'data'}", "--name=mine"]
    done = fire_lm(*command, "--runner=DirectRunner")
    assert done.returncode == 1 and not list(tmp_path.glob("data/mine/1.0.0*"))
    told = "fire-lm: cut.txt.gz: the file is truncated or damaged"
    assert done.stderr.splitlines()[-1].startswith(told)
    assert done.stderr.rstrip().endswith("end-of-stream marker was reached)")
    for option, told in (
        ("--direct_num_workers=abc", "argument --direct_num_workers: invalid int value: 'abc'"),
        ("--direct_num_worker=2", "DirectRunner has no option --direct_num_worker"),
    ):
        done = fire_lm(*command, "--runner=DirectRunner", f"--runner_options={option}")
        assert done.returncode == 2 and told in done.stderr and "usage:" not in done.stderr
        assert done.stderr.count("\n") < 6, done.stderr
    done = fire_lm(*command, "--runner=DirctRunner")
    assert done.returncode == 2 and "--runner=DirctRunner: Unexpected pipeline" in done.stderr


@pytest.mark.parametrize(
    "raised, told",
    [
        ("fire_lm.errors.RunFailed: a.gz: cut (x) [while running 'A/B/C']", "a.gz: cut (x)"),
        ("Trace\nfire_lm.errors.RunFailed: a: b\nmore", "a: b"),
        ("Pipeline has errors: \nMissing project.\nMissing region.",
         "Pipeline has errors: Missing project. Missing region."),
        ("One line\nand another", "One line"),
        ("Ends so:", "Ends so:"),
    ],
)  # fmt: skip
def test_what_beam_raises_is_told_in_a_line(raised, told):
    from fire_lm.data.beam_workers import _reason

    assert _reason(RuntimeError(raised)) == told


def test_without_beam_it_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    (tmp_path / "a.txt").write_text("a text")
    for command in (["--from", str(tmp_path), "--name=mine"], ["blocks", f"--output={tmp_path}"]):
        command = ["corpus", *command, f"--data_dir={tmp_path / 'data'}", "--runner=DirectRunner"]
        assert cli.main(command) == 2
        assert (
            "pip install -e '.[cache]'` in the checkout, or omit --runner"
            in capsys.readouterr().err
        )
    assert cli.main([*command[:-1], "--runner=DataflowRunner"]) == 2
    assert "pip install -e '.[dataflow]'` in the checkout, or omit" in capsys.readouterr().err
    assert cli.main(["corpus", f"--data_dir={tmp_path}", "--runner=DirectRunner"]) == 2
    assert "--runner applies only to your documents: add --from" in capsys.readouterr().err
