"""Blocks written by Apache Beam are those written without it; in an environment of its own.

`scripts/test --all` makes that environment (extra `cache`) and says where its Python is.
"""

import os
import subprocess
from pathlib import Path

import pytest
from sample_run import write_text

from fire_lm import cli
from fire_lm.data import TextData, write_blocks

ROOT = Path(__file__).resolve().parent.parent
PYTHON = os.environ.get("FIRE_LM_BEAM_PYTHON")


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="FIRE_LM_BEAM_PYTHON names no Python with the extra `cache`")
def test_beam_writes_the_same_files(tmp_path):
    data_dir = write_text(tmp_path / "data")
    command = ["corpus", "blocks", f"--data_dir={data_dir}", f"--output={tmp_path / 'beam'}"]
    options = ["--runner=DirectRunner", "--runner_options=--direct_num_workers=1", "--parts=3"]
    done = subprocess.run(
        [str(PYTHON), "-m", "fire_lm", *command, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "train: 53 documents" in done.stdout
    write_blocks(TextData(str(data_dir)), str(tmp_path / "here"), parts=3)
    assert files(tmp_path / "beam") == files(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="FIRE_LM_BEAM_PYTHON names no Python with the extra `cache`")
def test_a_worker_that_fails_is_told_plainly(tmp_path):
    data_dir = write_text(tmp_path / "data")
    for file in (data_dir / "c4/en/3.1.0").glob("*-train.tfrecord-00001-*"):
        file.write_bytes(file.read_bytes()[:-9])
    command = ["corpus", "blocks", f"--data_dir={data_dir}", f"--output={tmp_path / 'beam'}"]
    done = subprocess.run(
        [str(PYTHON), "-m", "fire_lm", *command, "--runner=DirectRunner", "--parts=3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1, done.stderr[-3000:]
    assert f"fire-lm: Reading c4/en:3.1.0 in {data_dir} failed: " in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "beam/manifest.json").exists()


def test_without_beam_it_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "apache_beam", None)
    command = ["corpus", "blocks", f"--data_dir={tmp_path}", f"--output={tmp_path / 'out'}"]
    assert cli.main([*command, "--runner=DirectRunner"]) == 2
    assert "pip install 'fire-lm[cache]', or leave --runner out" in capsys.readouterr().err
