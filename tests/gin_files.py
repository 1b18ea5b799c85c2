"""The files of configs/positions/: one plain file for each class of encoding, and its variants."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fire_lm.positions import encodings

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
TEXTS = {path.stem: path.read_text() for path in sorted((CONFIGS / "positions").glob("*.gin"))}
NAMES = list(TEXTS)


def _plainest_file(encoding: str) -> str:
    """Return the file that uses only this class and has the fewest settings."""
    settings = {
        name: len(re.findall(rf"^{encoding}\.\w+ =", text, re.MULTILINE))
        for name, text in TEXTS.items()
        if re.search(rf"^POSITION = @{encoding}$", text, re.MULTILINE)
    }
    assert settings, f"configs/positions/ has no file for {encoding}"
    return min(settings, key=lambda name: settings[name])


CLASSES = [_plainest_file(encoding) for encoding in encodings()]
# One that acts at each point (bias, rotation, embedding), and one that does nothing.
ONE_OF_EACH_KIND = ("fire", "rope", "learned", "nope")
# For parametrize: the quick tests run one of each kind, the ci tier all.
QUICK_THEN_ALL = [
    name if name in ONE_OF_EACH_KIND else pytest.param(name, marks=pytest.mark.ci) for name in NAMES
]
