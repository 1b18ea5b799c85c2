"""`fire-lm report` over real runs, and over folders that are not (yet) runs."""

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from etils import epath
from gin_files import CONFIGS
from sample_results import TEXT, facts, loss_row
from sample_run import command, write_text
from test_report import Page

from fire_lm.cli import main
from fire_lm.errors import UserError
from fire_lm.reporting.gather import gather, newest, of_losses
from fire_lm.reporting.page import as_markdown
from fire_lm.reporting.report import report_sections
from fire_lm.results import SweepRow, read_table
from fire_lm.results.folder import Results, joined, write_results
from fire_lm.results.tables import PositionLoss

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def test_arms_of_other_folders_of_results_are_not_averaged(tmp_path):
    for name, seed in (("mini", 0), ("large", 1)):
        part = Results(runs=[facts("fire", seed)])
        write_results(epath.Path(tmp_path) / name, part)
    found = gather([str(tmp_path / "mini"), str(tmp_path / "large")])
    assert set(found.arms()) == {"fire of mini", "fire of large"}
    for name, seed in (("a/report", 0), ("b/report", 1)):
        write_results(epath.Path(tmp_path) / name, Results(runs=[facts("fire", seed)]))
    reports = gather([str(tmp_path / name / "report") for name in ("a", "b")])
    assert set(reports.arms()) == {"fire of a/report", "fire of b/report"}
    with pytest.raises(UserError, match="same name"):
        shutil.copytree(tmp_path / "mini", tmp_path / "again")
        gather([str(tmp_path / "mini"), str(tmp_path / "again")])


def test_the_newest_step_that_is_wholly_scored_is_shown():
    run = dataclasses.replace(facts("fire", 0), step=3000)

    def row(step, length, **other):
        return dataclasses.replace(loss_row(run, length, 2.0), step=step, **other)

    whole = [row(step, length) for step in (1000, 2000) for length in (64, 128)]
    begun, arxiv = row(3000, 64), row(1000, 64, dataset="arxiv")
    shown = newest([*whole, begun, arxiv], {"fire-seed0": "fire"}, lambda row: row.dataset)
    assert [(r.dataset, r.step, r.length) for r in shown] == [
        ("embedded", 2000, 64), ("embedded", 2000, 128), ("arxiv", 1000, 64),
    ]  # fmt: skip
    other = [dataclasses.replace(one, run="fire-seed1") for one in whole[:2]]
    arms = {"fire-seed0": "fire", "fire-seed1": "fire"}
    same = newest([*whole, *other], arms, lambda row: row.dataset)
    assert {row.step for row in same} == {1000}, "the newest that both seeds have"
    apart = newest([*whole, *other], {**arms, "fire-seed1": "b"}, lambda row: row.dataset)
    assert {(row.run, row.step) for row in apart} == {("fire-seed0", 2000), ("fire-seed1", 1000)}
    longer = row(1000, 8192)
    usual = newest([*whole, longer], arms, lambda row: row.dataset)
    assert {r.step for r in usual} == {2000}, "one longer sweep hides no newer step"
    third = [row(3000, length) for length in (64, 128)]
    usual = newest([*whole, longer, *third], arms, lambda row: row.dataset)
    assert {r.step for r in usual} == {3000}
    alone = newest([longer, *third], arms, lambda row: row.dataset)
    assert {r.step for r in alone} == {3000}
    text = as_markdown("", report_sections(Results(runs=[run], losses=shown)))
    assert "fire-seed0 at 2,000 of 3,000" in text and "fire-seed0 at 1,000 of 3,000" in text


def test_losses_by_position_are_those_of_the_checkpoint_whose_losses_are_shown():
    """Each sweep has them at its longest length only, and the last of these sweeps is longer."""
    run = dataclasses.replace(facts("fire", 0), step=1000)
    lengths = {250: 1024, 500: 1024, 750: 1024, 1000: 2048}
    losses = [
        dataclasses.replace(loss_row(run, length, 2.0), step=step)
        for step, longest in lengths.items()
        for length in (512, 1024, 2048)
        if length <= longest
    ]
    positions = [
        PositionLoss(run.run, "fire", "", step, *TEXT, longest, 0, 15, 256, 2.0, 0.1)
        for step, longest in lengths.items()
    ]
    shown = newest(losses, {run.run: "fire"}, lambda row: row.dataset)
    assert {row.step for row in shown} == {1000}
    assert [row.step for row in of_losses(positions, shown)] == [1000]
    assert [row.step for row in of_losses(positions, losses[:2])] == [250]
    windows = [dataclasses.replace(row, protocol="sliding window") for row in shown]
    assert of_losses(positions, windows) == []


def test_what_is_no_run_is_told(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "is neither a run (no config.gin)" in capsys.readouterr().err
    assert main(["report"]) == 2
    assert "RUN" in capsys.readouterr().err
    assert main(["report", str(tmp_path), str(tmp_path / "b")]) == 2
    assert "several runs need --output=DIR" in capsys.readouterr().err
    (tmp_path / "config.gin").write_text("")
    assert main(["report", str(tmp_path), f"--output={tmp_path}"]) == 2
    assert "a report might overwrite" in capsys.readouterr().err


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Train and score two encodings and a second seed, whose log ends early and is truncated."""
    folder = tmp_path_factory.mktemp("runs")
    data_dir = write_text(tmp_path_factory.mktemp("text") / "data")
    for name, position, more in (
        ("fire", "fire", []),
        ("alibi", "alibi", []),
        ("fire-1", "fire", ["--gin.SEED=1"]),
    ):
        assert main(command(data_dir, folder / name, *more, position=position)) == 0
    begun = folder / "fire-1"
    lines = (begun / "metrics.jsonl").read_text().splitlines(keepends=True)
    (begun / "metrics.jsonl").write_text("".join(lines[:9]) + lines[9][:40])
    sweep = ["--gin.EVAL_LENGTHS=32,64,128", "--gin.length_sweep.tokens=4096"]
    assert main(["sweep", str(folder / "fire"), str(folder / "alibi"), *sweep,
                 f"--output={folder.parent / 'combined'}"]) == 0  # fmt: skip
    return folder


@pytest.mark.ci
def test_a_report_of_real_runs(runs, capsys):
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    assert main(["report", str(runs)]) == 0
    said = capsys.readouterr().out
    assert str(runs / "report" / "index.html") in said
    for path, content in before.items():
        assert path.read_bytes() == content, "a report changes no run"
    text = (runs / "report" / "report.md").read_text()
    assert "fire-1 (9 of 12)" in text and "Unfinished when this report was written" in text
    rows = {row.run: row for row in read_table(runs / "report" / "length_sweep.csv", SweepRow)}
    assert set(rows) == {"fire", "alibi"}
    names = {path.stem for path in (runs / "report").glob("*.svg")}
    assert {"training", "learned_fire", "biases_fire", "attention_alibi"} <= names
    assert any(name.startswith("losses_") for name in names)
    assert any(name.startswith("positions_") for name in names)
    learned = [
        json.loads(line) for line in (runs / "fire" / "metrics.jsonl").read_text().splitlines()
    ]
    assert f"L {learned[-1]['L/layer_0']:.4g}" in text

    assert "computing biases and attention scores of fire@12" in said
    assert main(["report", str(runs)]) == 0
    assert "computing biases" not in capsys.readouterr().out, "known from the report before"
    assert (runs / "report" / "report.md").read_text() == text
    assert main(["report", str(runs / "report"), f"--output={runs.parent / 'again'}"]) == 0
    again = runs.parent / "again" / "report.md"
    assert again.read_text().splitlines()[1:] == text.splitlines()[1:], "from its files alone"


@pytest.mark.ci
def test_a_limited_number_of_checkpoints_is_probed(runs, tmp_path, monkeypatch):
    """Copies of runs are arms of their own. Known biases are kept in addition."""
    for name in ("alibi", "fire"):
        shutil.copytree(runs / name, tmp_path / name)
        shutil.copytree(runs / name, tmp_path / f"{name}-copy")
    monkeypatch.setattr("fire_lm.reporting.probes.MOST_DRAWN", 1)
    first = gather([str(tmp_path)])
    assert {row.run for row in first.biases} == {"fire"}
    assert {row.run for row in first.scores} == {"alibi"}
    shutil.rmtree(tmp_path / "fire")
    other = gather([str(tmp_path)], before=first)
    assert {row.run for row in other.biases} == {"fire-copy"}
    shutil.copytree(runs / "fire", tmp_path / "fire")
    both = joined([first, other])
    assert {row.run for row in gather([str(tmp_path)], before=both).biases} == {"fire", "fire-copy"}


@pytest.mark.ci
def test_a_report_against_a_run(runs, tmp_path):
    one, other = str(runs / "fire"), str(runs / "alibi")
    assert main(["report", one, f"--against={other}", f"--output={tmp_path}"]) == 0
    text = (tmp_path / "report.md").read_text()
    assert f"Comparison with {other}" in text and "| fire - alibi |" in text


def browse(page: Path, size: str, screenshot: Path) -> str:
    """Return Chromium's console messages; it must at least have taken a screenshot of the page."""
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
        "--disable-background-networking --disable-component-update --enable-logging=stderr"
    )
    said = subprocess.run(
        [CHROMIUM or "", *flags.split(), f"--window-size={size}", f"--screenshot={screenshot}",
         f"--user-data-dir={screenshot}.profile", page.as_uri()],
        capture_output=True, text=True, timeout=120,
    ).stderr  # fmt: skip
    assert screenshot.stat().st_size > 20_000, said
    return "\n".join(line for line in said.splitlines() if "CONSOLE" in line)


# Logs whether a page is wider than its window, how many boxes can be scrolled, and how many have a
# wrong cue.
MEASURE = """<script>const drawn = () => new Promise(requestAnimationFrame);
addEventListener('load', async () => {
  await drawn(); await drawn();  // a scroll timeline begins with the frame after its layout
  const wide = [...document.querySelectorAll('.wide')].map(box => {
    const inside = box.querySelector('.scrolls');
    const cued = box.querySelector('.cue').getBoundingClientRect().height > 5;
    return [inside.scrollWidth > inside.clientWidth, cued]; });
  console.log('PAGE ' + (document.documentElement.scrollWidth > innerWidth) + ' ' +
    wide.filter(([over, cued]) => over).length + ' ' +
    wide.filter(([over, cued]) => over !== cued).length); });</script>"""


@pytest.mark.ci
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)")
def test_nothing_is_cut_without_a_cue(tmp_path):
    """At the width of a desktop nothing scrolls; at that of a phone, what scrolls has a cue."""
    evidence = CONFIGS.parent / "docs" / "evidence" / "mini"
    assert main(["report", str(evidence), f"--output={tmp_path}"]) == 0
    page, measured = tmp_path / "index.html", tmp_path / "measured.html"
    measured.write_text(page.read_text().replace("</body>", f"{MEASURE}</body>"))

    def found(width: int) -> list[str]:
        said = browse(measured, f"{width},3000", tmp_path / f"{width}.png")
        return re.findall(r"PAGE (\w+) (\d+) (\d+)", said)[0]

    assert found(1366) == ("false", "0", "0")
    beyond, scrolled, wrong = found(390)
    assert (beyond, wrong) == ("false", "0") and int(scrolled) >= 4
    measured.write_text(measured.read_text().replace("animation-timeline: --across", ""))
    assert found(390)[2] != "0", "a page without its cue is seen"


@pytest.mark.ci
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)")
def test_the_page_opens_without_errors(tmp_path):
    evidence = CONFIGS.parent / "docs" / "evidence" / "mini"
    assert main(["report", str(evidence), f"--output={tmp_path}"]) == 0
    for size in ("1280,3000", "390,3000"):
        assert browse(tmp_path / "index.html", size, tmp_path / f"{size}.png") == ""
    broken = tmp_path / "broken.html"
    script = "<script>throw new Error('seen')</script>"
    broken.write_text((tmp_path / "index.html").read_text().replace("</body>", f"{script}</body>"))
    assert "seen" in browse(broken, "1280,3000", tmp_path / "broken.png")
    assert len(Page(broken.read_text()).images) >= 10
