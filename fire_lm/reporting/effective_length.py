"""The effective length: how far beyond its training length a model remains useful.

A loss falls with the length as long as additional context helps. The effective length is the
largest measured length up to which it has not risen by more than a margin above its minimum so far.
For accuracies, it is the largest length up to which the accuracy has not fallen below a share of
that at the training length; a model that has learned nothing has none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fire_lm.measures.training_losses import effective_length
from fire_lm.reporting.page import Table
from fire_lm.reporting.series import Series

MARGIN_NATS = 0.02
SHARE = 0.85


class EffectiveLength(NamedTuple):
    """An effective length in tokens or symbols.

    `open` states whether it is the longest measured length, so that it may be larger.
    """

    length: int
    open: bool

    def __str__(self) -> str:
        return f"at least {self.length}" if self.open else str(self.length)


def of_losses(losses: Mapping[int, float], margin: float) -> EffectiveLength | None:
    """Return the effective length of losses by length, or None if there are no losses.

    `margin` and the losses have the same unit. A loss that is NaN exceeds the margin.
    """
    length = effective_length(dict(sorted(losses.items())), margin)
    return EffectiveLength(length, open=length == max(losses)) if length else None


def of_accuracies(
    accuracies: Mapping[int, float], max_length: int, guesses: Mapping[int, float]
) -> EffectiveLength | None:
    """Return the effective length of accuracies by length.

    The accuracy at the training length is that at the largest measured length of at most
    `max_length`. The result is None if no such length was measured, or if `guesses`, the accuracies
    of the best answer without reading or {}, show that guessing reaches the share of it there.
    """
    trained = [length for length in accuracies if length <= max_length]
    if not trained:
        return None
    least = SHARE * accuracies[max(trained)]
    if least <= guesses.get(max(trained), 0.0):
        return None
    lengths = sorted(length for length in accuracies if length >= max(trained))
    useful = list(itertools.takewhile(lambda length: accuracies[length] >= least, lengths))
    return EffectiveLength(useful[-1], open=useful == lengths) if useful else None


def effective_table(
    caption: str,
    series: Sequence[Series],
    effective: Callable[[Series, Mapping[int, float]], EffectiveLength | None],
) -> Table:
    """Tabulate effective lengths of means over seeds and, with several seeds, those of each run.

    `effective` returns the effective length of values of a series by length. Means over some of the
    runs are ignored, because they differ from the others by the runs too.
    """
    rows = []
    for one in series:
        points = one.points
        runs = dict.fromkeys(run for point in points.values() for run in point.values)
        of_runs = [
            effective(one, {n: p.values[run] for n, p in points.items() if run in p.values})
            for run in runs
        ]
        of_all = {n: p.mean for n, p in points.items() if p.values.keys() == runs.keys()}
        of_mean = effective(one, of_all) if of_all else None
        by_seed = ", ".join(str(length or "none") for length in of_runs) * (len(runs) > 1)
        rows.append([one.name, str(of_mean or "none") if of_all else "", by_seed])
    shown = 3 if any(row[2] for row in rows) else 2
    header = ["", "effective length", "by seed"]
    return Table(caption, header[:shown], [row[:shown] for row in rows])
