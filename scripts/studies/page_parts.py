"""The parts of docs/frozen_normaliser.md that scripts of this folder write, in two comments."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "frozen_normaliser.md"
_END = "<!-- end -->"


def _begin(script: str) -> str:
    return f"<!-- written by scripts/studies/{script} -->"


def written_by(script: str) -> str:
    """Return what the page has between the comments of a script."""
    return PAGE.read_text().partition(_begin(script))[2].partition(_END)[0].strip()


def write(script: str, text: str) -> None:
    before, begin, rest = PAGE.read_text().partition(_begin(script))
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{_END}{rest.partition(_END)[2]}")
