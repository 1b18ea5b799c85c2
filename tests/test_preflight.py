"""The paper's runs compiled for the slices they were made for, on a machine without a TPU.

What the compiler says (memory, collectives) is pinned, so that a change that costs more is seen.
Nothing here runs on a TPU.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from preflight_run import Run, preflight

GOLDEN = Path(__file__).parent / "golden" / "preflight"
TOLERANCE = 0.05
HELP = """
The compiled program takes other memory or collectives than before. If this commit means that (the
model, its layout, the compiler's version), say so in it with the numbers, and write the new ones:
UPDATE_GOLDEN=1 scripts/test --ci -- tests/test_preflight.py"""
PAPER = [
    ("c4_125m", "fire", "v4-256"),
    ("c4_350m", "rope", "v4-512"),
    ("c4_125m", "fire", "2xv4-128"),
]


def figures(report: dict[str, Any]) -> dict[str, Any]:
    """What is pinned of each program: bytes of memory, and number and bytes of collectives."""
    return {
        name: {
            "memory": {kind: program[kind] for kind in ("arguments", "temporary")},
            **{
                kind: dict(zip(("number", "bytes"), found, strict=True))
                for kind, found in program["collectives"].items()
            },
        }
        for name, program in report["programs"].items()
    }


def check(found: dict[str, Any], golden: dict[str, Any]) -> None:
    """Equal but for `TOLERANCE` of each number."""
    assert flat(found) == pytest.approx(flat(golden), rel=TOLERANCE), HELP


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, float]:
    leaves: dict[str, float] = {}
    for name, value in tree.items():
        path = f"{prefix}/{name}"
        leaves |= flat(value, path) if isinstance(value, dict) else {path: value}
    return leaves


def passed(run: Run) -> dict[str, Any]:
    assert run.code == 0 and run.report is not None, run.err[-2000:] + run.out
    assert run.report["passed"] and not run.report["failures"]
    return run.report


@pytest.mark.ci
@pytest.mark.parametrize("run, position, slice_", PAPER)
def test_a_run_of_the_paper_takes_what_it_took(run, position, slice_, tmp_path):
    """The training step and the sweep at 8192."""
    report = passed(preflight(tmp_path, slice_, run, position))
    assert list(report["programs"]) == ["training step", "sweep at 8192"]
    golden, found = GOLDEN / f"{run}_{position}_{slice_}.json", figures(report)
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(json.dumps(found, indent=1) + "\n")
    check(found, json.loads(golden.read_text()))
