"""scripts/studies/paper_rows.py: the rows of the paper, and which of them have been run."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import paper_rows
import pytest
from command import refusing
from etils import epath
from sample_results import facts
from training_experiments import experiment_of

from fire_lm.experiment import load_experiment
from fire_lm.results import SweepRow, TaskScore, merge_table, write_table
from fire_lm.results.folder import RunFacts
from fire_lm.runs.resuming import Start

QUICKSTART = ["configs/runs/quickstart.gin", "configs/positions/fire.gin"]


def line(said: str, model: str) -> str:
    (found,) = (line for line in said.splitlines() if line.split(" ")[0] == model)
    return found


def listed(*runs: Path) -> str:
    return paper_rows.listing(list(map(str, runs))) + "\n"


@pytest.fixture(autouse=True)
def no_evidence(monkeypatch, tmp_path):
    monkeypatch.setattr(paper_rows, "EVIDENCE", tmp_path / "evidence")


def make_run(folder: Path, files: list[str], *bindings: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.gin").write_text(load_experiment(files, bindings).text())
    return folder


def score(path: Path, run: str, encoding: str, dataset: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    words = (run, encoding, "", 10, dataset, "validation", "concat", "full", 64)
    write_table(epath.Path(path), SweepRow, [SweepRow(*words, 1, 64, 64, 2.0, 0.1, 7.4, 2.9)])


def test_the_papers_numbers():
    said = listed()
    fire = line(said, "base_fire")
    assert "2048" in fire and "3.054" in fire and "3.056" in fire and fire.endswith("  not yet")
    assert "3.10  " in line(said, "base_fire_s"), "in the paper's own digits"
    curve = line(said, "base_512_rope").split()
    assert curve == ["base_512_rope", "Fig.", "6", "512", "-", "-", "not", "yet"]


def finetuned(said: str, model: str) -> dict[str, list[str]]:
    """Return the columns after the suite, by suite."""
    lines = [line for line in said.splitlines() if line.split(" ")[0] == f"finetuned/{model}"]
    columns = [re.split(" {2,}", line) for line in lines]
    return {suite: rest for _, _, suite, *rest in columns}


def make_finetuned(folder: Path, source: Path, data_set: str, *more: str) -> Path:
    """Write the configuration of a run as `fire-lm finetune` does."""
    files = [f"configs/finetune/{data_set}.gin", *(name for name in more if "=" not in name)]
    bindings = [f"INIT_FROM={source}", *(name for name in more if "=" in name)]
    arguments = [f"--gin_file={file}" for file in files] + [f"--gin.{b}" for b in bindings]
    config = Start(experiment_of(["finetune", *arguments])).experiment
    folder.mkdir(parents=True)
    (folder / "config.gin").write_text(config.text())
    return folder


def score_task(run: Path, suite: str, task: str, **changed: Any) -> None:
    fields: dict[str, Any] = {
        "variant": "", "step": 5, "split": "validation", "input_length": 504, "target_length": 8,
        "truncation": "head", "decoding": "greedy", "context_length": 513, "metric": "f1",
        "examples": 9, "value": 1.0, "stderr": 0.1, "encoding": "fire",
    }  # fmt: skip
    row = TaskScore(run=run.name, suite=suite, task=f"fire_lm:{task}", **(fields | changed))
    merge_table(epath.Path(run) / "task_scores.csv", TaskScore, [row])


def test_the_next_command_of_a_finetuned_row(tmp_path):
    """First the pretraining is listed, then finetuning on each data set, then its evaluation."""
    said = listed()
    rows = finetuned(said, "base_fire")
    assert rows["scrolls"] == ["25.64", "0 of 7", "pretrain base_fire"]
    assert rows["narrative_qa"] == ["8.705", "0 of 7", "pretrain base_fire"]
    assert rows["glue_super_glue"] == ["71.14", "0 of 15", "pretrain base_fire"]
    assert finetuned(said, "base_rope_pi")["scrolls"][-1] == "pretrain base_rope"
    assert said.count("\nfinetuned/") == 40
    runs = tmp_path / "runs"
    fire = make_run(runs / "fire", QUICKSTART)
    assert finetuned(listed(runs), "base_fire")["scrolls"][-1] == ("finetune scrolls_gov_report")
    report = make_finetuned(runs / "report", fire, "scrolls_gov_report")
    assert finetuned(listed(runs), "base_fire")["scrolls"][1:] == [
        "mini 0 of 7", "evaluate report",
    ]  # fmt: skip
    score_task(report, "scrolls", "scrolls_gov_report")
    story = make_finetuned(runs / "story", fire, "scrolls_narrative_qa")
    for length in (512, 2048):
        score_task(story, "narrative_qa", "scrolls_narrative_qa", input_length=length)
    rows = finetuned(listed(runs), "base_fire")
    assert rows["scrolls"][1:] == ["mini 1 of 7", "finetune scrolls_summ_screen_fd"]
    assert rows["narrative_qa"][1:] == ["mini 2 of 7", "evaluate story"]
    for length in (4096, 8192, 16384, 24576, 32768):
        score_task(story, "narrative_qa", "scrolls_narrative_qa", input_length=length)
    assert finetuned(listed(story), "base_fire")["narrative_qa"][1:] == [
        "mini 7 of 7", "-",
    ]  # fmt: skip


def test_what_does_not_count_for_a_finetuned_row(tmp_path):
    """Other tasks, models, variants and samples do not count; a finetuned run is no pretraining."""
    files = ["configs/paper/base_rope.gin", "configs/scales/mini.gin"]
    rope = make_run(tmp_path / "rope", files)
    interpolated = make_finetuned(
        tmp_path / "runs" / "pi", rope, "scrolls_qasper", "configs/positions/rope_pi.gin",
        "TRAIN_LENGTH=256",
    )  # fmt: skip
    others: list[dict[str, Any]] = [
        {"variant": "yarn"}, {"split": "validation, 9 drawn"}, {"suite": "mine"},
    ]  # fmt: skip
    for changed in others:
        fields = {"suite": "scrolls", "task": "scrolls_qasper", "encoding": "rope_pi"} | changed
        score_task(interpolated, **fields)
    score_task(interpolated, "scrolls", "scrolls_quality", encoding="rope_pi")
    make_finetuned(tmp_path / "runs" / "wide", rope, "scrolls_qasper", "size_tiny.num_layers=4")
    said = listed(tmp_path / "runs")
    assert finetuned(said, "base_rope_pi")["scrolls"][1] == "mini 0 of 7"
    assert finetuned(said, "base_rope")["scrolls"][1] == "0 of 7"
    assert line(said, "base_rope_pi").endswith("  not yet"), "no continued pretraining"


def test_runs_are_found_at_their_scale(tmp_path):
    runs = tmp_path / "runs"
    score(make_run(runs / "a", QUICKSTART) / "length_sweep.csv", "a", "fire", "embedded")
    make_run(runs / "b", ["configs/paper/base_512_rope.gin", "configs/scales/mini.gin"])
    make_run(runs / "c", ["configs/paper/large_fire.gin"], "DATA_DIR=gs://BUCKET/c4", "SEED=7")
    blocks = ["configs/paper/base_t5.gin", "configs/data/blocks.gin"]
    score(make_run(runs / "d", blocks) / "length_sweep.csv", "d", "t5", "c4")
    make_run(runs / "e", ["configs/paper/base_rope_yarn.gin", "configs/scales/gpu.gin"])
    said = listed(runs)
    assert line(said, "base_fire").endswith("  mini (embedded, 64)")
    assert line(said, "base_512_rope").endswith("  mini (not scored, 16)")
    assert line(said, "large_fire").endswith("  paper (not scored, 2048)")
    assert line(said, "base_t5").endswith("  paper (c4, 2048)")
    assert line(said, "base_rope_yarn").endswith("  gpu (not scored, 2048)")
    assert said.count("  not yet\n") == 29 - 5
    both = listed(runs / "a", make_run(tmp_path / "f", ["configs/paper/base_fire.gin"]))
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
def test_a_run_of_another_experiment_is_no_row(binding, tmp_path):
    said = listed(make_run(tmp_path / "run", QUICKSTART, binding))
    assert said.count("  not yet\n") == 29


def test_evidence_counts(tmp_path):
    """Every folder counts, and its runs by their encodings, sizes and training lengths."""

    def ran(study: str, encoding: str, dataset: str, **changed: Any) -> None:
        run = dataclasses.replace(facts(encoding, 0), **changed)
        folder = tmp_path / "evidence" / study
        score(folder / "length_sweep.csv", run.run, encoding, dataset)
        write_table(epath.Path(folder) / "runs.csv", RunFacts, [run])

    ran("mini", "kerple_log", "embedded")
    ran("short", "fire", "embedded", train_length=16)
    ran("on_a_gpu", "fire", "c4_part", train_length=128, model="8 layers x 512")
    ran("tuned", "rope_yarn", "embedded", train_length=256)
    ran("ablations", "fire_gelu", "embedded")
    ran("of_another_size", "alibi", "embedded", model="4 layers x 96")
    (tmp_path / "evidence" / "preflight").mkdir()
    said = listed()
    assert line(said, "base_kerple").endswith("  mini (embedded, 64)")
    assert line(said, "base_512_fire").endswith("  gpu (c4_part, 128); mini (embedded, 16)")
    assert line(said, "base_rope_yarn").endswith("  mini (embedded, 256)")
    assert line(said, "base_fire_gelu").endswith("  mini (embedded, 64)")
    assert said.count("  not yet\n") == 29 - 4


def test_a_path_that_is_no_run_is_refused(capsys):
    assert refusing(lambda runs: print(paper_rows.listing(runs)), ["/nowhere/run"]) == 2
    said = capsys.readouterr().err.strip()
    assert "/nowhere/run" in said and len(said.splitlines()) <= 2
