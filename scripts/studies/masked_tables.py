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
WAYS = [(positions, log_n) for positions in _POSITIONS.values() for log_n in (False, True)]


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
    assert len({row.run for row in rows}) == len(rows), "two steps of a run"
    error = sum(row.stderr for row in rows) / len(rows)
    return Sample({row.run: row.value for row in rows}, error=error, text=text, common_text=True)


def arms_of(encoding: str) -> dict[Way, Mapping[int, Sample]]:
    """Return the accuracies of the arms that an encoding has, in the order of the tables.

    T5 cannot encode positions between integers, so it has no equal-mean positions.
    """
    return {way: accuracies()[encoding, way] for way in WAYS if (encoding, way) in accuracies()}


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


def every_encoding() -> str:
    """Return the mean accuracies of all encodings at 64 and, for each way, at 1,024 tokens."""
    header = ["encoding", "64", *("log n" if log_n else positions for positions, log_n in WAYS)]
    rows, best = [], set()
    for number, encoding in enumerate(dict.fromkeys(encoding for encoding, _ in accuracies())):
        means = {way: points[1024].mean for way, points in arms_of(encoding).items()}
        best.add((number, 2 + WAYS.index(max(means, key=means.__getitem__))))
        cells = [f"{means[way]:.1f}" if way in means else "" for way in WAYS]
        rows.append([encoding, f"{accuracies()[encoding, PLAIN][64].mean:.1f}", *cells])
    return Table("", header, rows, frozenset(best)).markdown()


def _cell(point: Sample) -> str:
    return cell(point, {point.runs}, digits=1)


def change(arm: Arm, other: Arm, length: int) -> Difference:
    """Return how many more points one arm finds than another."""
    return difference(accuracies()[arm][length], accuracies()[other][length])


_BETA = _POSITIONS["-resampling-beta"]
_DRAWN = (PLAIN, (PLAIN[0], True), (_BETA, False), (_BETA, True))
_NAMES = {"rope": "RoPE", "fire": "FIRE", "kerple-log": "KERPLE"}


def picture() -> Picture:
    """Return a figure with a panel for each of three encodings, of the arms with three seeds."""
    x, y = "tokens that the model reads", "hidden tokens found (%)"
    axis = figure.Axis(x, y, lengths=True, limits=(15, 60))
    names = {key: f"{key[0]}{', log n' * key[1]}" for key in _DRAWN}
    panels = [
        figure.Panel(
            name,
            [
                Series(names[key], points, arm=names[key])
                for key, points in arms_of(encoding).items()
                if key in _DRAWN and points[1024].runs > 1
            ],
            axis,
            trained=[64],
        )
        for encoding, name in _NAMES.items()
    ]
    styles = charts.styles(list(names.values()))
    return figure.picture("masked_accuracy", "", "masked accuracy by length", panels, styles)
