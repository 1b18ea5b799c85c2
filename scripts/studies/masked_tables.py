"""The tables of docs/masked.md, from docs/evidence/masked.

A run is named by its grid: `rope-seed0-resampling-beta-log-n-training`.
"""

from __future__ import annotations

from typing import NamedTuple

from command import EVIDENCE
from etils import epath

from fire_lm.measures.masked_accuracy import MaskedAccuracyRow
from fire_lm.reporting.differences import Sample, difference
from fire_lm.reporting.page import Table
from fire_lm.results.tables import read_table

_LOG_N = "-log-n-training"
_POSITIONS = {
    "": "0, 1, 2, ...",
    "-resampling-random-2048": "random",
    "-resampling-exponential": "equal mean, exponential",
    "-resampling-beta": "equal mean, beta",
}
_ENCODINGS = {
    "rope": "RoPE",
    "fire": "FIRE",
    "fire-g": "FIRE-G",
    "kerple-log": "KERPLE",
    "alibi": "ALiBi",
    "t5": "T5",
    "sinusoidal": "sinusoidal",
}
_FAR = 512  # the length at which the post of 2023 tested


class Arm(NamedTuple):
    encoding: str
    positions: str
    log_n: bool

    def __str__(self) -> str:
        return _POSITIONS[self.positions] + ", log n" * self.log_n


def arm_of(run: str) -> tuple[Arm, str]:
    """Return the arm of a run and its seed."""
    log_n = run.endswith(_LOG_N)
    encoding, _, rest = run.removesuffix(_LOG_N).partition("-seed")
    seed, dash, positions = rest.partition("-")
    return Arm(encoding, dash + positions, log_n), seed


def samples(quantity: str = "accuracy") -> dict[tuple[Arm, int], Sample]:
    """Return the values of a quantity by arm and length, one for each seed."""
    values: dict[tuple[Arm, int], dict[str, float]] = {}
    path = epath.Path(EVIDENCE / "masked" / "masked_accuracy.csv")
    for row in read_table(path, MaskedAccuracyRow):
        arm, seed = arm_of(row.run)
        if row.quantity == quantity:
            values.setdefault((arm, row.length), {})[f"{row.run} {seed}"] = row.value
    return {key: Sample(of_runs) for key, of_runs in values.items()}


def far() -> str:
    """Return the mean accuracies at eight times the training length: encodings by positions."""
    by_arm = samples()
    ways = [(positions, log_n) for positions in _POSITIONS for log_n in (False, True)]
    rows = []
    for encoding, name in _ENCODINGS.items():
        arms = [Arm(encoding, *way) for way in ways]
        cells = [f"{by_arm[arm, _FAR].mean:.1f}" if (arm, _FAR) in by_arm else "" for arm in arms]
        if any(cells):
            seeds = max(by_arm[arm, _FAR].runs for arm in arms if (arm, _FAR) in by_arm)
            rows.append([name, str(seeds), *cells])
    header = ["", "seeds", *(str(Arm("", *way)) for way in ways)]
    return Table("", header, rows).markdown()


def by_length(encoding: str) -> str:
    """Return the accuracies of an encoding, and the difference from its plain arm at 512."""
    by_arm = samples()
    lengths = sorted({length for _, length in by_arm})
    plain = by_arm[Arm(encoding, "", False), _FAR]
    rows = []
    for positions in _POSITIONS:
        for log_n in (False, True):
            arm = Arm(encoding, positions, log_n)
            cells = [
                f"{sample.mean:.1f}" + (f" ± {sample.spread:.1f}" if sample.spread else "")
                for sample in (by_arm[arm, length] for length in lengths)
            ]
            apart = difference(by_arm[arm, _FAR], plain)
            tested = f"{apart.value:+.1f} ± {apart.half_width:.1f}"
            rows.append([str(arm), *cells, "" if by_arm[arm, _FAR] is plain else tested])
    header = [_ENCODINGS[encoding], *map(str, lengths), f"minus the first row at {_FAR}"]
    return Table("", header, rows).markdown()
