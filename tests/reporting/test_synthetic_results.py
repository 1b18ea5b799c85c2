"""docs/synthetic_results.md agrees with our measurements on synthetic tasks."""

import statistics
from pathlib import Path

import pytest
from etils import epath

from fire_lm.cli import main
from fire_lm.reporting.length_accuracy import AccuracyLine, accuracy_lines
from fire_lm.results.folder import read_results

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "fire_lm" / "reporting" / "evidence" / "synthetic"
PAGE = ROOT / "docs" / "synthetic_results.md"
TASKS = {"ReverseString", "DuplicateString"}
PLAIN = {"nope", "rope", "alibi", "kerple_log", "fire", "fire_g", "t5"}
RANDOM = {f"{name}, random" for name in PLAIN - {"nope"}}


@pytest.fixture(scope="module")
def lines() -> dict[str, dict[str, AccuracyLine]]:
    """Return the lines of each task by the name of the encoding and, if any, `random`."""
    described = ", resampling RandomizedPositions (positions random)"
    return {
        task.removesuffix(", slots"): {
            line.name.replace(described, ", random"): line for line in of_task
        }
        for task, of_task in accuracy_lines(read_results(epath.Path(EVIDENCE))).items()
    }


def test_every_arm_was_measured_at_every_length(lines):
    assert lines.keys() == TASKS
    for of_task in lines.values():
        assert of_task.keys() == PLAIN | RANDOM
        for line in of_task.values():
            assert line.trained_lengths == [10, 20, 30, 40]
            assert len(line.longer_lengths) == 16 and max(line.longer_lengths) == 500


def test_the_page_says_what_was_measured(lines):
    page = " ".join(PAGE.read_text().split())
    reverse, duplicate = lines["ReverseString"], lines["DuplicateString"]
    slower = [line.trained for name, line in reverse.items() if name in PLAIN - {"rope", "nope"}]
    at_500 = [line.points[500].value for line in reverse.values()]
    longer = [line.longer for line in reverse.values()]
    rope, rope_random = reverse["rope"], reverse["rope, random"]
    assert (
        f"only by RoPE, which scores {rope.trained:.1f} % there; NoPE scores "
        f"{reverse['nope'].trained:.1f} %, and the others {min(slower):.0f} to {max(slower):.0f} %."
    ) in page
    assert f"are {min(longer):.1f} to {max(longer):.1f} %" in page
    assert f"every model scores {min(at_500):.1f} to {max(at_500):.1f} %." in page
    trained = [line.trained for line in duplicate.values()]
    assert f"they score {min(trained):.1f} to {max(trained):.1f} % at training lengths" in page
    assert (
        f"RoPE scores {rope_random.trained:.1f} instead of {rope.trained:.1f} % at training "
        f"lengths, FIRE {reverse['fire, random'].trained:.1f} instead of "
        f"{reverse['fire'].trained:.1f} %"
    ) in page
    assert (
        f"{rope_random.longer:.1f} instead of {rope.longer:.1f} % on reversing, and "
        f"{duplicate['rope, random'].longer:.1f} instead of {duplicate['rope'].longer:.1f} % on "
        "duplicating"
    ) in page
    means = [line.longer for of_task in lines.values() for line in of_task.values()]
    assert sorted(means)[-2:] == [duplicate["rope, random"].longer, rope_random.longer]
    changes = [
        abs(of_task[f"{name}, random"].longer - of_task[name].longer)
        for of_task in lines.values()
        for name in PLAIN - {"nope", "rope"}
    ]
    assert f"they change these means by at most {max(changes):.1f} points" in page
    for of_task in lines.values():
        others = [of_task[name].longer for name in ("alibi", "kerple_log", "t5")]
        assert max(of_task[name].longer for name in ("fire", "fire_g")) - max(others) < 0.5
    assert statistics.fmean(means) < 56


@pytest.mark.ci
def test_the_figures_are_those_of_the_report(tmp_path):
    assert main(["report", str(EVIDENCE), f"--output={tmp_path}"]) == 0
    names = {path.name for path in EVIDENCE.glob("*.svg")}
    assert len(names) == 3
    for name in names:
        assert (tmp_path / name).read_bytes() == (EVIDENCE / name).read_bytes()
        assert f"evidence/synthetic/{name})" in PAGE.read_text()
