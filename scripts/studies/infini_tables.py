"""The tables of docs/infini_attention.md, from docs/evidence/infini."""

from __future__ import annotations

from command import EVIDENCE
from etils import epath

from fire_lm.reporting.differences import Sample, difference
from fire_lm.reporting.page import Table
from fire_lm.results import LengthAccuracy, read_rows
from fire_lm.results.tables import read_table

_ARMS = {
    "window": "RoPE, window of a segment in each layer",
    "chunk": "RoPE, segments without a memory",
    "infini": "RoPE, memory, linear rule",
    "infini_delta": "RoPE, memory, delta rule",
    "rope": "RoPE, attention to all",
    "fire_g": "FIRE-G, attention to all",
    "fox": "FoX, attention to all",
}


def samples() -> dict[tuple[str, int, int], Sample]:
    """Return the losses by arm, length of training and length of evaluation, one for each seed."""
    values: dict[tuple[str, int, int], dict[str, float]] = {}
    for row in read_rows(epath.Path(EVIDENCE / "infini" / "length_sweep.csv")):
        _, trained, seed = row.run.rsplit("-", 2)
        values.setdefault((row.encoding, int(trained), row.length), {})[seed] = row.nll
    return {key: Sample(of_seeds) for key, of_seeds in values.items()}


def losses() -> str:
    """Return the mean losses, and the difference from the window at the longest length."""
    by_arm, rows = samples(), []
    lengths = sorted({length for _, _, length in by_arm})
    for trained in sorted({trained for _, trained, _ in by_arm}):
        for arm, name in _ARMS.items():
            if (arm, trained, lengths[-1]) not in by_arm:
                continue
            of_arm = [by_arm[arm, trained, length] for length in lengths]
            seeds = of_arm[-1].values.keys()
            window = by_arm["window", trained, lengths[-1]].values
            other = Sample({seed: window[seed] for seed in seeds})
            apart = difference(of_arm[-1], other)
            tested = f"{apart.value:+.3f} ± {apart.half_width:.3f}" if arm != "window" else ""
            means = [f"{sample.mean:.3f}" for sample in of_arm]
            rows.append([str(trained), name, str(len(seeds)), *means, tested])
    header = ["trained at", "", "seeds", *map(str, lengths), f"minus window at {lengths[-1]}"]
    return Table("", header, rows).markdown()


def passkey() -> str:
    """Return the mean accuracies in percent, and the difference from the window."""
    values: dict[tuple[str, int], dict[str, float]] = {}
    for row in read_table(epath.Path(EVIDENCE / "infini" / "length_accuracy.csv"), LengthAccuracy):
        _, seed = row.run.rsplit("-", 1)
        values.setdefault((row.encoding, row.length), {})[seed] = row.accuracy
    by_arm = {key: Sample(of_seeds) for key, of_seeds in values.items()}
    lengths = sorted({length for _, length in by_arm})
    rows = []
    for arm, name in _ARMS.items():
        of_arm = [by_arm[arm, length] for length in lengths if (arm, length) in by_arm]
        if of_arm:
            seeds = " / ".join(f"{value:.0f}" for value in of_arm[-1].values.values())
            rows.append([name, *(f"{sample.mean:.1f}" for sample in of_arm), seeds])
    header = ["", *map(str, lengths), f"each seed at {lengths[-1]}"]
    return Table("", header, rows).markdown()
