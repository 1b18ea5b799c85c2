"""`fire-lm report --list`: what the paper has, and which of it has been run."""

from pathlib import Path

import pytest
from etils import epath

from fire_lm import cli
from fire_lm.experiment import load_config
from fire_lm.reporting import paper_rows
from fire_lm.results import SweepRow, write_rows

QUICKSTART = ["configs/runs/quickstart.gin", "configs/positions/fire.gin"]


def line(said: str, model: str) -> str:
    (found,) = (line for line in said.splitlines() if line.split(" ")[0] == model)
    return found


def listed(capsys: pytest.CaptureFixture[str], *runs: Path) -> str:
    assert cli.main(["report", "--list", *map(str, runs)]) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def no_evidence(monkeypatch, tmp_path):
    monkeypatch.setattr(paper_rows, "EVIDENCE", tmp_path / "evidence")


def make_run(folder: Path, files: list[str], *bindings: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.gin").write_text(load_config(files, bindings).text())
    return folder


def score(path: Path, run: str, encoding: str, dataset: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    words = (run, encoding, "", 10, dataset, "validation", "concat", "full", 64)
    write_rows(epath.Path(path), [SweepRow(*words, 1, 64, 64, 2.0, 0.1, 7.4, 2.9)])


def test_the_papers_numbers_and_what_cannot_be_computed_yet(capsys):
    said = listed(capsys)
    fire = line(said, "base_fire")
    assert "2048" in fire and "3.054" in fire and "3.056" in fire and fire.endswith("  not yet")
    assert "SCROLLS, GLUE, NarrativeQA: not yet" in fire
    assert "3.10  " in line(said, "base_fire_s"), "in the paper's own digits"
    curve = line(said, "base_512_rope").split()
    assert curve == ["base_512_rope", "Fig.", "6", "512", "-", "-", "-", "not", "yet"]


def test_runs_are_found_at_their_scale(tmp_path, capsys):
    runs = tmp_path / "runs"
    score(make_run(runs / "a", QUICKSTART) / "length_sweep.csv", "a", "fire", "embedded")
    make_run(runs / "b", ["configs/paper/base_512_rope.gin", "configs/scales/mini.gin"])
    make_run(runs / "c", ["configs/paper/large_fire.gin"], "DATA_DIR=gs://BUCKET/c4", "SEED=7")
    blocks = ["configs/paper/base_t5.gin", "configs/data/blocks.gin"]
    score(make_run(runs / "d", blocks) / "length_sweep.csv", "d", "t5", "c4")
    make_run(runs / "e", ["configs/paper/base_rope_yarn.gin", "configs/scales/gpu.gin"])
    said = listed(capsys, runs)
    assert line(said, "base_fire").endswith("  mini (embedded, 64)")
    assert line(said, "base_512_rope").endswith("  mini (not scored, 16)")
    assert line(said, "large_fire").endswith("  paper (not scored, 2048)")
    assert line(said, "base_t5").endswith("  paper (c4, 2048)")
    assert line(said, "base_rope_yarn").endswith("  gpu (not scored, 2048)")
    assert said.count("  not yet\n") == 29 - 5
    both = listed(capsys, runs / "a", make_run(tmp_path / "f", ["configs/paper/base_fire.gin"]))
    assert line(both, "base_fire").endswith("  mini (embedded, 64); paper (not scored, 2048)")


@pytest.mark.parametrize(
    "binding",
    [
        "TRAIN_LENGTH=128",
        "size_tiny.num_layers=4",
        "ENCODING=mine",
        "TextData.tfds_name=arxiv:1.0.0",
    ],
)
def test_a_run_of_another_experiment_is_no_row(binding, tmp_path, capsys):
    said = listed(capsys, make_run(tmp_path / "run", QUICKSTART, binding))
    assert said.count("  not yet\n") == 29


def test_evidence_counts(tmp_path, capsys):
    """By the run's name where it is a row's, with or without its seed; else by its encoding."""
    folder = tmp_path / "evidence"
    score(folder / "mini" / "length_sweep.csv", "kerple", "kerple_log", "embedded")
    score(folder / "gpu" / "length_sweep.csv", "base_512_fire-1", "fire", "c4_part")
    said = listed(capsys)
    assert line(said, "base_kerple").endswith("  mini (embedded, 64)")
    assert line(said, "base_512_fire").endswith("  gpu (c4_part, 128)")
    assert said.count("  not yet\n") == 29 - 2


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["report"], "RUN"),
        (["report", "--list", "/nowhere/run"], "/nowhere/run"),
        (["report", "--lst"], "--list"),
    ],
)
def test_bad_usage(arguments, told, capsys):
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err.strip()
    assert told in said and len(said.splitlines()) <= 2
