"""The files of configs/positions/: one plain file for each class of encoding, and its variants."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from fire_lm.positions import encodings

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
TEXTS = {path.stem: path.read_text() for path in sorted((CONFIGS / "positions").glob("*.gin"))}
NAMES = list(TEXTS)


def _plainest_file(encoding: str) -> str:
    """Return the file that uses this class, if possible alone, and has the fewest settings."""

    def settings(use: str) -> dict[str, int]:
        return {
            name: len(re.findall(rf"^(\w+/)?{encoding}\.\w+ =", text, re.MULTILINE))
            for name, text in TEXTS.items()
            if re.search(rf"^{use} = @{encoding}$", text, re.MULTILINE)
        }

    found = settings("POSITION") or settings(r"[\w/]+\.(encoding|second)")
    assert found, f"configs/positions/ has no file for {encoding}"
    return min(found, key=lambda name: found[name])


def layers(name: str, least: int = 4) -> int:
    """Return the number of layers of a small model with this file's schedule."""
    return 6 if name == "gemma" else least


CLASSES = list(dict.fromkeys(_plainest_file(encoding) for encoding in encodings()))
# One that acts at each point (bias, rotation, embedding), and one that does nothing.
ONE_OF_EACH_KIND = ("fire", "rope", "learned", "nope")
# Variants whose structure or whose code is their own: encodings that alternate, an MLP that has no
# form common to all queries, a bias that stops depending on the query's position or never does,
# scaled positions, a frequency that depends on the input's length, heads that differ, options of
# attention, two encodings in one layer.
OWN_CODE = (
    *("fire_and_rope", "nope_every_4th", "fire_gelu", "fire_frozen", "fire_t", "alibi_pi"),
    *("rope_dynamic_ntk", "rope_yarn", "t5_per_layer", "nape", "p_rope"),
    *("fire_sink", "fire_ssmax", "swan", "fox_fire"),
)
IN_CI = (*CLASSES, *OWN_CODE)


def tier(
    name: str, quick: Collection[str] = ONE_OF_EACH_KIND, ci: Collection[str] = IN_CI
) -> tuple[pytest.MarkDecorator, ...]:
    """Return the mark of an encoding's test: none in the quick tier, "slow" where only in --all."""
    if name in quick:
        return ()
    return (pytest.mark.ci if name in ci else pytest.mark.slow,)


def by_tier(quick: Collection[str] = ONE_OF_EACH_KIND, ci: Collection[str] = IN_CI) -> list[Any]:
    """Return all names for parametrize, with their marks."""
    return [pytest.param(name, marks=tier(name, quick, ci)) for name in NAMES]
