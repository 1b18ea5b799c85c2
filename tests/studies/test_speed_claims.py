"""What the documentation says about speed on CPUs follows from docs/evidence/speed/cpu.txt."""

import re
from statistics import mean

from command import EVIDENCE, ROOT
from study_pairs import page


def measured() -> str:
    return (EVIDENCE / "speed" / "cpu.txt").read_text()


def test_one_arena_of_memory():
    line = r"^(quickstart|che/encoder).* threads' arenas +(\d+) .* one arena +(\d+) "
    ratios: dict[str, list[float]] = {}
    for name, before, after in re.findall(line, measured(), flags=re.MULTILINE):
        ratios.setdefault(name, []).append(int(after) / int(before))
    fire, rope = mean(ratios["quickstart"]), mean(ratios["che/encoder"])
    told = page("performance.md")
    assert f"trains {fire:.2f} times as fast with FIRE" in told
    assert f"the encoder of the synthetic tasks {rope:.2f} times with RoPE" in told
    assert f": {fire:.2f} times as fast" in (ROOT / "CHANGELOG.md").read_text()


def test_one_draw_for_a_batch():
    line = r"^resampling/random_2048.gin +(\d+) +che/random_2048.gin +(\d+)$"
    ratios = [int(b) / int(a) for a, b in re.findall(line, measured(), flags=re.MULTILINE)]
    assert len(ratios) == 2 and all(1.9 < ratio < 2.1 for ratio in ratios)
    header = (ROOT / "configs" / "che" / "random_2048.gin").read_text()
    assert "FIRE trains twice as fast as with" in header
