"""The parts of pages in docs/ that programs of this folder write, each between two comments."""

from __future__ import annotations

from command import ROOT

DOCS = ROOT / "docs"
_END = "<!-- end -->"


def _begin(writer: str) -> str:
    return f"<!-- written by scripts/studies/{writer} -->"


def part(page: str, writer: str) -> str:
    """Return what a page has between the comments of a writer, such as "drift_figure.py"."""
    return (DOCS / page).read_text().partition(_begin(writer))[2].partition(_END)[0].strip()


def write(page: str, writer: str, text: str) -> None:
    before, begin, rest = (DOCS / page).read_text().partition(_begin(writer))
    if not begin:
        raise ValueError(f"docs/{page} has no line {_begin(writer)}")
    whole = f"{before}{begin}\n\n{text}\n\n{_END}{rest.partition(_END)[2]}"
    (DOCS / page).write_text(whole)
