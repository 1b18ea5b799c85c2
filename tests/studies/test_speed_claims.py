"""What the documentation says about speed on CPUs follows from docs/evidence/speed/cpu.txt."""

import re
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[2]


def measured() -> str:
    return (ROOT / "docs" / "evidence" / "speed" / "cpu.txt").read_text()


def test_one_arena_of_memory():
    line = r"^(quickstart|che/encoder).* threads' arenas +(\d+) .* one arena +(\d+) "
    ratios: dict[str, list[float]] = {}
    for name, before, after in re.findall(line, measured(), flags=re.MULTILINE):
        ratios.setdefault(name, []).append(int(after) / int(before))
    fire, rope = mean(ratios["quickstart"]), mean(ratios["che/encoder"])
    told = " ".join((ROOT / "docs" / "performance.md").read_text().split())
    assert f"trains {fire:.2f} times as fast with FIRE" in told
    assert f"the encoder of the synthetic tasks {rope:.2f} times with RoPE" in told
    assert f": {fire:.2f} times as fast" in (ROOT / "CHANGELOG.md").read_text()


def test_one_draw_for_a_batch():
    line = r"^resampling/random_2048.gin +(\d+) +che/random_2048.gin +(\d+)$"
    ratios = [int(b) / int(a) for a, b in re.findall(line, measured(), flags=re.MULTILINE)]
    assert len(ratios) == 2 and round(mean(ratios)) == 2
    header = (ROOT / "configs" / "che" / "random_2048.gin").read_text()
    assert "FIRE trains twice as fast as with" in header
