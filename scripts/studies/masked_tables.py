"""The tables of docs/masked.md, from docs/evidence/masked.

A run is named by its grid, such as `rope-seed0-resampling-beta`; its one variant is log n.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from command import EVIDENCE
from etils import epath

from fire_lm.measures.masked_accuracy import MaskedAccuracyRow
from fire_lm.reporting import charts, figure
from fire_lm.reporting.differences import Difference, Sample, difference
from fire_lm.reporting.page import Picture, Table
from fire_lm.reporting.series import Series, cell
from fire_lm.results.tables import read_table

_RUN = re.compile(r"(?P<encoding>.+)-seed\d+(?P<positions>.*)")
_POSITIONS = {
    "": "0, 1, 2, ...",
    "-resampling-random-2048": "random below 2,048",
    "-resampling-exponential": "equal mean, exponential",
    "-resampling-beta": "equal mean, beta",
}

Way = tuple[str, bool]  # the positions in words, and whether there is log n
Arm = tuple[str, Way]  # the encoding, and its positions and log n
PLAIN = (_POSITIONS[""], False)


@functools.cache
def accuracies() -> dict[Arm, dict[int, Sample]]:
    """Return the accuracies of each arm by length, one for each seed.

    All are of the same text, so its difficulty cancels in differences.
    """
    path = epath.Path(EVIDENCE / "masked" / "masked_accuracy.csv")
    rows: dict[Arm, dict[int, list[MaskedAccuracyRow]]] = {}
    for row in read_table(path, MaskedAccuracyRow):
        name = _RUN.fullmatch(row.run)
        assert name is not None, row.run
        arm = name["encoding"], (_POSITIONS[name["positions"]], bool(row.variant))
        if row.quantity == "accuracy":
            rows.setdefault(arm, {}).setdefault(row.length, []).append(row)
    return {
        arm: {length: _sample(own) for length, own in sorted(by_length.items())}
        for arm, by_length in rows.items()
    }


def _sample(rows: list[MaskedAccuracyRow]) -> Sample:
    (text,) = {row.text for row in rows}
    error = sum(row.stderr for row in rows) / len(rows)
    return Sample({row.run: row.value for row in rows}, error=error, text=text, common_text=True)


def arms_of(encoding: str) -> dict[Way, Mapping[int, Sample]]:
    """Return the accuracies of an encoding by positions and log n, in the order of the tables."""
    ways = [(positions, log_n) for positions in _POSITIONS.values() for log_n in (False, True)]
    return {way: accuracies()[encoding, way] for way in ways}


def by_length(encoding: str) -> str:
    """Return the mean accuracies of an encoding; ± is the standard deviation over seeds."""
    arms = arms_of(encoding)
    lengths = list(next(iter(arms.values())))
    rows = [
        [positions, "log n" * log_n, *(_cell(points[length]) for length in lengths)]
        for (positions, log_n), points in arms.items()
    ]
    best = set()
    for column, length in enumerate(lengths, start=2):
        means = [points[length].mean for points in arms.values()]
        best.add((means.index(max(means)), column))
    return Table("", ["positions", "", *map(str, lengths)], rows, frozenset(best)).markdown()


def _cell(point: Sample) -> str:
    return cell(point, {point.runs}, digits=1)


def change(arm: Arm, other: Arm, length: int) -> Difference:
    """Return how many more points one arm finds than another."""
    return difference(accuracies()[arm][length], accuracies()[other][length])


_BETA = _POSITIONS["-resampling-beta"]
_DRAWN = (PLAIN, (PLAIN[0], True), (_BETA, False), (_BETA, True))
_NAMES = {"rope": "RoPE", "fire": "FIRE"}


def picture() -> Picture:
    """Return a figure with a panel for each encoding that has three seeds."""
    x, y = "tokens that the model reads", "hidden tokens found (%)"
    axis = figure.Axis(x, y, lengths=True, limits=(15, 60))
    names = {key: f"{key[0]}{', log n' * key[1]}" for key in _DRAWN}
    panels = [
        figure.Panel(
            name,
            [Series(names[key], arms_of(encoding)[key], arm=names[key]) for key in _DRAWN],
            axis,
            trained=[64],
        )
        for encoding, name in _NAMES.items()
    ]
    styles = charts.styles(list(names.values()))
    return figure.picture("masked_accuracy", "", "masked accuracy by length", panels, styles)
