"""The tables and figures of docs/ are those of docs/evidence, and the evidence is complete."""

import re

import docs_tables
import page_parts
import pytest
from command import EVIDENCE, ROOT
from etils import epath
from overprinting import overprinted, saved
from study_pairs import lines_of, results_of

from fire_lm.results import SweepRow, read_table

__all__ = ["saved"]  # a fixture
AGAIN = "run .venv/bin/python scripts/studies/docs_tables.py"
PARTS = [(page, name) for page, tables in docs_tables.TABLES.items() for name in tables]
ENCODINGS = {"fire", "fire_s", "fire_g", "rope", "alibi", "kerple_log", "t5", "nope", "learned"}


def stale() -> list[tuple[str, str]]:
    """Return the parts of pages that are not what the evidence gives."""
    return [
        (page, name)
        for page, name in PARTS
        if page_parts.part(page, docs_tables.writer(name)) != docs_tables.TABLES[page][name]()
    ]


def test_the_pages_are_current(monkeypatch):
    assert stale() == [], AGAIN
    table = page_parts.part("frozen_normaliser.md", docs_tables.writer("frozen"))
    assert len(table.splitlines()) == 2 + 7 and table in (ROOT / "README.md").read_text()
    part = page_parts.part

    def changed(page: str, writer: str) -> str:
        return part(page, writer).replace("1.8", "1.9", 1)

    monkeypatch.setattr(page_parts, "part", changed)
    assert ("results.md", "mini") in stale(), "a changed number is seen"


def test_every_figure_of_a_page_is_in_the_evidence():
    for page in (ROOT / "docs").glob("*.md"):
        for name in re.findall(r"\]\((evidence/[^)]+)\)", page.read_text()):
            assert (ROOT / "docs" / name).exists(), f"{page.name}: {name}"


@pytest.mark.ci
def test_the_figures_are_current_and_legible(saved):
    drawn = {path: path.read_text() == svg for path, svg in docs_tables.figures()}
    again = f"{AGAIN} figures"
    assert [str(path) for path, same in drawn.items() if not same] == [], again
    others = {EVIDENCE / name for name in ("budgets", "drift_probes")}
    assert drawn.keys() == {p for p in EVIDENCE.glob("*/*.svg") if p.parent not in others}
    assert [label for image in saved for label in overprinted(image)] == []


def test_evidence_names_no_path_of_the_machine_that_made_it():
    """Runs are named as in the commands of docs/results.md, below `runs/`."""
    for file in EVIDENCE.rglob("*"):
        if file.suffix in (".csv", ".json"):
            found = re.search(r"[\"']/\w[^\"'\s]*", file.read_text())
            assert found is None, f"{file}: {found}"


def test_every_arm_has_the_same_seeds_text_and_lengths():
    rows = read_table(epath.Path(EVIDENCE / "mini/length_sweep.csv"), SweepRow)
    assert {row.encoding for row in rows} == ENCODINGS
    for encoding in ENCODINGS:
        own = [row for row in rows if row.encoding == encoding]
        assert len({row.run for row in own}) == 3 and {row.step for row in own} == {1000}
        lengths = {64} if encoding == "learned" else {64, 128, 256, 512, 1024}
        assert {row.length for row in own} == lengths
    assert len({(row.tokens, row.bytes, row.dataset, row.protocol) for row in rows}) == 1


@pytest.mark.parametrize("study", ["fire_ablations", "family", "frozen", "scalings", "rope_base"])
def test_every_line_of_a_study_has_three_seeds(study):
    lines = lines_of(study).values()
    assert {point.runs for line in lines for point in line.points.values()} == {3}
    assert len({results_of(study).texts.of(row) for row in results_of(study).losses}) == 1


def test_every_arm_had_the_same_search():
    """The learning rate was searched on another seed; the best at the training length was used."""
    searched: dict[str, dict[str, float]] = {}
    for row in read_table(epath.Path(EVIDENCE / "mini/search.csv"), SweepRow):
        assert (row.length, row.step) == (64, 1000)
        searched.setdefault(row.encoding, {})[row.run.rpartition("rate-")[2]] = row.nll
    assert set(searched) == ENCODINGS
    encoding_of = {run.run: run.encoding for run in results_of("mini").runs}
    chosen = {
        encoding_of[setting.run]: setting.value
        for setting in results_of("mini").settings
        if setting.name == "AdamW.learning_rate"
    }
    for encoding, losses in searched.items():
        assert set(losses) == {"2e-3", "4e-3", "8e-3"}, encoding
        best = min(losses, key=lambda rate: losses[rate])
        assert float(chosen[encoding]) == float(best), encoding
