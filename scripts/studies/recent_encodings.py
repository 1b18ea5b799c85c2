"""The encodings of 2024 to 2026 beside FIRE and FIRE-G, from docs/evidence/recent*."""

from __future__ import annotations

import functools

from command import EVIDENCE
from etils import epath

from fire_lm.reporting.differences import Difference, difference
from fire_lm.reporting.length_sweep import families
from fire_lm.reporting.page import Table
from fire_lm.reporting.series import Series
from fire_lm.results.folder import read_results

LENGTHS = (64, 256, 1024)
REFERENCES = {"fire": "FIRE", "fire_g": "FIRE-G"}
RECENT = (
    *("rnope_swa", "swan", "bam", "fox_kerple", "fox", "fox_fire", "pope"),
    *("fire_sink", "dape_fire", "fire_ssmax", "rope_ssmax"),
)


@functools.cache
def lines(study: str) -> dict[str, Series]:
    """Return the losses of each arm of a study, which are comparable, by the arm's name."""
    (family,) = families(read_results(epath.Path(EVIDENCE / study)))
    return {line.name: line for line in family.lines}


def apart(study: str, arm: str, reference: str, length: int) -> Difference:
    """Return the difference between the losses of two arms at a length."""
    by_arm = lines(study)
    return difference(by_arm[arm].points[length], by_arm[reference].points[length])


def differences(study: str) -> str:
    """Return the differences from FIRE and FIRE-G at 1, 4 and 16 times the training length.

    ± is half the 95 % interval over seeds and text, as if it were the only comparison.
    """
    rows = []
    for arm in (arm for arm in RECENT if arm in lines(study)):
        of_arm = (apart(study, arm, one, length) for one in REFERENCES for length in LENGTHS)
        rows.append([arm, *(f"{each.value:+.3f} ± {each.half_width:.3f}" for each in of_arm)])
    header = [f"minus {name}, at {length}" for name in REFERENCES.values() for length in LENGTHS]
    return Table("", ["", *header], rows).markdown()
