"""The files of configs/positions/: one plain file for each class of encoding, and its variants."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fire_lm.positions import encodings

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
TEXTS = {path.stem: path.read_text() for path in sorted((CONFIGS / "positions").glob("*.gin"))}
NAMES = list(TEXTS)


def _plain_file(encoding: str) -> str:
    """The name of the first file with this class and no setting of it."""
    for name, text in TEXTS.items():
        settings = re.findall(r"^(\w+)\.\w+ =", text, re.MULTILINE)
        if f"POSITION = @{encoding}\n" in text and set(settings) <= {"build_decoder"}:
            return name
    raise AssertionError(f"configs/positions/ has no plain file for {encoding}")


CLASSES = [_plain_file(encoding) for encoding in encodings()]
# For parametrize: the classes in the fast tests, all other files in the ci tier.
CLASSES_THEN_VARIANTS = [
    name if name in CLASSES else pytest.param(name, marks=pytest.mark.ci) for name in NAMES
]
