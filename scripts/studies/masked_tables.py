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


def by_length(encoding: str) -> str:
    """Return the mean accuracies of an encoding, and the difference from its plain arm.

    Arms of the same seeds start from the same weights, but their positions differ from the first
    step, so they are not paired.
    """
    by_arm = samples()
    lengths = sorted({length for _, length in by_arm})
    plain = by_arm[Arm(encoding, "", False), _FAR]
    rows = []
    for positions in _POSITIONS:
        for log_n in (False, True):
            arm = Arm(encoding, positions, log_n)
            if (arm, _FAR) not in by_arm:
                continue
            of_lengths = [by_arm[arm, length] for length in lengths]
            cells = [f"{sample.mean:.1f} ± {sample.spread:.1f}" for sample in of_lengths]
            apart = difference(by_arm[arm, _FAR], plain)
            tested = f"{apart.value:+.1f} ± {apart.half_width:.1f}"
            rows.append([str(arm), *cells, "" if by_arm[arm, _FAR] is plain else tested])
    header = ["", *map(str, lengths), f"minus the first row at {_FAR}"]
    return Table("", header, rows).markdown()
