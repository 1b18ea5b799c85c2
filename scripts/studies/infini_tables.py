"""The tables of docs/infini_attention.md, from docs/evidence/infini."""

from __future__ import annotations

import numpy as np
from command import EVIDENCE
from etils import epath

from fire_lm.reporting.differences import Sample, difference
from fire_lm.reporting.page import Table
from fire_lm.results import LengthAccuracy, PositionLoss, SweepRow, read_table

_STARTS = (0, 64, 256, 1024, 2048)  # positions where a column begins

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
    """Return the losses by arm, length of training and length of evaluation, one for each run.

    Runs of different arms are independent, even if they have the same seed.
    """
    values: dict[tuple[str, int, int], dict[str, float]] = {}
    for row in read_table(epath.Path(EVIDENCE / "infini" / "length_sweep.csv"), SweepRow):
        _, trained, _ = row.run.rsplit("-", 2)
        values.setdefault((row.encoding, int(trained), row.length), {})[row.run] = row.nll
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
            apart = difference(of_arm[-1], by_arm["window", trained, lengths[-1]])
            tested = f"{apart.value:+.3f} ± {apart.half_width:.3f}" if arm != "window" else ""
            means = [f"{sample.mean:.3f}" for sample in of_arm]
            rows.append([str(trained), name, str(of_arm[-1].runs), *means, tested])
    header = ["trained at", "", "seeds", *map(str, lengths), f"minus window at {lengths[-1]}"]
    return Table("", header, rows).markdown()


def positions() -> str:
    """Return the mean losses by position of models trained at 256, in rows of 4,096 tokens."""
    sums: dict[tuple[str, int], dict[str, list[tuple[float, int]]]] = {}
    for row in read_table(epath.Path(EVIDENCE / "infini" / "position_losses.csv"), PositionLoss):
        first = max(start for start in _STARTS if start <= row.first)
        of_seeds = sums.setdefault((row.encoding, first), {})
        of_seeds.setdefault(row.run, []).append((row.nll, row.tokens))
    by_arm = {
        key: [sum(n * x for x, n in own) / sum(n for _, n in own) for own in of_seeds.values()]
        for key, of_seeds in sums.items()
    }
    rows = [
        [name, *(f"{np.mean(by_arm[arm, first]):.3f}" for first in _STARTS)]
        for arm, name in _ARMS.items()
        if (arm, 0) in by_arm
    ]
    ends = [*(first - 1 for first in _STARTS[1:]), 4095]
    header = ["", *(f"{first} to {end}" for first, end in zip(_STARTS, ends, strict=True))]
    return Table("", header, rows).markdown()


def accuracies() -> dict[tuple[str, int], Sample]:
    """Return the accuracies in percent by arm and length, one for each run."""
    values: dict[tuple[str, int], dict[str, float]] = {}
    for row in read_table(epath.Path(EVIDENCE / "infini" / "length_accuracy.csv"), LengthAccuracy):
        values.setdefault((row.encoding, row.length), {})[row.run] = row.accuracy
    return {key: Sample(of_runs) for key, of_runs in values.items()}


def passkey() -> str:
    """Return the mean accuracies in percent, and those of each seed at the longest length."""
    by_arm = accuracies()
    lengths = sorted({length for _, length in by_arm})
    rows = []
    for arm, name in _ARMS.items():
        of_arm = [by_arm[arm, length] for length in lengths if (arm, length) in by_arm]
        if of_arm:
            seeds = " / ".join(f"{value:.0f}" for value in of_arm[-1].values.values())
            rows.append([name, *(f"{sample.mean:.1f}" for sample in of_arm), seeds])
    header = ["", *map(str, lengths), f"each seed at {lengths[-1]}"]
    return Table("", header, rows).markdown()
