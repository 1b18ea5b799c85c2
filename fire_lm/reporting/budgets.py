"""Losses by budget, the number of tokens seen in training: the drift of each arm.

A series consists of arms that differ only in their numbers of steps (`Series`), or of several steps
of the same runs. The drift at k times the training length is the loss there minus that at the
training length. It is a difference within runs, so its error contains only what differs between
runs, and it is tested as all differences are (`fire_lm.reporting.differences`).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from etils import epath

from fire_lm.reporting.differences import Sample, Tested, same_rows, tested
from fire_lm.reporting.losses import Scored, differences, loss_lines, rows_of
from fire_lm.reporting.series import BITS, NATS, Scale, Series, grouped, line_name
from fire_lm.results.folder import Results
from fire_lm.results.scored_text import text_name
from fire_lm.results.sweep_rows import SweepRow
from fire_lm.results.tables import BudgetRow, write_table

KERPLE = "kerple_log"
FILE = "budgets.csv"
_ALWAYS = (2, 4)  # multiples of the training length, as in the paper's Table 4


@dataclasses.dataclass(frozen=True)
class Point(Series):
    """The losses of a series of arms at one budget, by length.

    Attributes:
      tokens: The number of tokens seen in training.
      parameters: The number of parameters of the model.
    """

    tokens: int = 0
    parameters: int = 0

    @property
    def per_parameter(self) -> float:
        return self.tokens / self.parameters if self.parameters else math.nan

    def drift(self, multiple: float) -> Sample | None:
        """Return the loss at a multiple of the training length minus that at one, for each run."""
        pair = self.near_and_far(multiple)
        if pair is None:
            return None
        near, far = pair
        values = {run: far.values[run] - near.values[run] for run in near.values}
        if not same_rows(near, far):
            return Sample(values)
        sums = {run: far.sums_R[run] - near.sums_R[run] for run in near.sums_R}
        return Sample(values, near.tokens_R, sums, text=near.text)

    def near_and_far(self, multiple: float) -> tuple[Sample, Sample] | None:
        """Return the losses at the training length and at a multiple, or None if one is missing."""
        near = self.points.get(self.train_length)
        far = self.points.get(round(multiple * self.train_length))
        if near is None or far is None or near.values.keys() != far.values.keys():
            return None
        return near, far


@dataclasses.dataclass(frozen=True)
class Budgets:
    """All series of one text.

    Attributes:
      points: The points of all series, with the largest budget and the best loss first.
      scale: The scale of the losses.
      results: The results, in which the arms are the series.
      ended: Whether all points are the ends of runs, so that no learning rate was yet to decay.
      left_out: Runs and variants that were not scored at the end, if only ends are shown.
    """

    points: Sequence[Point]
    scale: Scale
    results: Results
    ended: bool
    left_out: Sequence[str] = ()

    @property
    def omission(self) -> str:
        """A sentence about what is left out, or ""."""
        if not self.left_out:
            return ""
        return f"Left out, because they were not scored at the end: {', '.join(self.left_out)}."

    @property
    def tokens(self) -> list[int]:
        return sorted({point.tokens for point in self.points})

    @property
    def series(self) -> dict[str, list[Point]]:
        """The points of each series, in the order of their budgets."""
        found = grouped(self.points, lambda point: point.name)
        return {name: sorted(own, key=lambda point: point.tokens) for name, own in found.items()}

    @property
    def measured(self) -> list[float]:
        """The lengths as multiples of the training length, in ascending order."""
        return sorted({n / point.train_length for point in self.points for n in point.points})

    @property
    def multiples(self) -> list[float]:
        """2, 4 and the largest of the measured multiples of the training length above 1."""
        beyond = [multiple for multiple in self.measured if multiple > 1]
        return [m for m in beyond if m in (*_ALWAYS, beyond[-1])]

    def at(self, tokens: int) -> list[Point]:
        """Return the points of a budget, best first."""
        return [point for point in self.points if point.tokens == tokens]

    def kerple(self, point: Point) -> Point | None:
        """Return KERPLE at the budget and on the text of a point, or None if it is not there."""
        own = (p for p in self.at(point.tokens) if p.encoding == KERPLE and not p.variant)
        return next((p for p in own if p.text == point.text), None)


def by_budget(results: Results) -> dict[Scored, Budgets]:
    """Return the budgets of each text for which a series has losses at two or more."""
    view = _by_series(results)
    found: dict[Scored, Budgets] = {}
    steps = {run.run: run.train_steps for run in results.runs}
    scales = {scale: loss_lines(view, nats=scale is NATS) for scale in (NATS, BITS)}
    for scored in scales[NATS]:
        rows = rows_of(view, scored)
        scale = BITS if differences(rows, view.texts) else NATS
        lines = scales[scale][scored]
        several = len({line.text for line in lines}) > 1
        points = []
        for line in lines:
            facts = view.arms()[line.arm][0]
            name = line_name(line.arm, line.variant)
            name += f" ({text_name(line.text)})" * several
            tokens = line.step * facts.batch_size * facts.train_length
            own = {**vars(line), "name": name}
            points.append(Point(**own, tokens=tokens, parameters=facts.parameters))
        points.sort(key=lambda point: -point.tokens)  # which keeps the order of a budget's lines
        ended = all(row.step == steps[row.run] for row in rows)
        budgets = Budgets(points, scale, view, ended, _left_out(rows_of(results, scored), rows))
        if any(len(own) > 1 for own in budgets.series.values()) and budgets.multiples:
            found[scored] = budgets
    return found


def _left_out(rows: Sequence[SweepRow], shown: Sequence[SweepRow]) -> list[str]:
    """Return the names of runs without a row in `shown`, and of other variants without one."""
    runs, pairs = {row.run for row in shown}, {(row.run, row.variant) for row in shown}
    names = (
        line_name(row.run, row.variant) if row.run in runs else row.run
        for row in rows
        if (row.run, row.variant) not in pairs
    )
    return list(dict.fromkeys(names))


def _by_series(results: Results) -> Results:
    """Return the results with all budgets of a series as one arm.

    Steps before the end of runs, whose learning rate was still high, are used only if the runs of
    no series end at different steps, and never beside runs that end there.
    """
    names = _series(results)
    runs = [dataclasses.replace(run, arm=names[run.run]) for run in results.runs]
    steps = {run.run: run.train_steps for run in runs}
    rows = [row for row in (*results.losses, *results.earlier) if row.run in steps]
    ends = {(names[row.run], row.step) for row in rows if row.step == steps[row.run]}
    of_ends = [series for series, _ in ends]

    def shown(row: SweepRow) -> bool:
        if row.step == steps[row.run]:
            return True
        return len(of_ends) == len(set(of_ends)) and (names[row.run], row.step) not in ends

    return dataclasses.replace(results, runs=runs, losses=list(filter(shown, rows)))


def _series(results: Results) -> dict[str, str]:
    """Return the series of each run.

    A name contains the model, the training length, the batch size and the data if runs of a series
    differ in them. It also contains the arm's name if arms of different sources have equal budgets,
    because they may differ in other settings.
    """
    known = {one.run: one.name for one in results.series}
    found: dict[str, str] = {}
    for name, runs in grouped(results.runs, lambda run: known.get(run.run, run.arm)).items():
        forms = ("{0.model}", "trained at {0.trained_at}", "batch {0.batch_size}", "{0.data}")
        parts = [f for f in forms if len({f.format(run) for run in runs}) > 1]
        own = {run.run: ", ".join([name, *(f.format(run) for f in parts)]) for run in runs}
        arms = {(own[run.run], run.train_steps, run.arm) for run in runs}
        of_budgets = Counter((series, steps) for series, steps, _ in arms)
        apart = {series for (series, _), count in of_budgets.items() if count > 1}
        found |= {r.run: r.arm if own[r.run] in apart else own[r.run] for r in runs}
    return found


def tokens_in_words(tokens: int) -> str:
    """Return, for example, "1.0M" for 1,024,000."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if tokens >= unit:
            return f"{tokens / unit:.{0 if tokens >= 9.95 * unit else 1}f}{letter}"
    return str(tokens)


def head(budgets: Budgets, tokens: int) -> str:
    """Return a budget as the head of a column."""
    ratios = sorted(p.per_parameter for p in budgets.at(tokens) if p.parameters)
    ends = dict.fromkeys(f"{one:.{0 if one >= 9.95 else 1}f}" for one in (ratios[:1] + ratios[-1:]))
    told = f" ({' to '.join(ends)} per parameter)" if ends else ""
    return f"{tokens_in_words(tokens)} tokens{told}"


@dataclasses.dataclass(frozen=True)
class Drifts:
    """The drift of all series at one multiple of the training length, with tests.

    Attributes:
      drift: For each budget, the drift of each series.
      growth: The drift of each series at its largest budget minus that at its smallest.
      over_kerple: For each budget, the drift of each series minus KERPLE's.
    """

    drift: Mapping[int, Tested]
    growth: Tested
    over_kerple: Mapping[int, Tested]


def drifts(budgets: Budgets, multiple: float) -> Drifts:
    drift, over = {}, {}
    for tokens in budgets.tokens:
        own = [(point.name, point.near_and_far(multiple)) for point in budgets.at(tokens)]
        drift[tokens] = tested({name: pair[::-1] for name, pair in own if pair})
        pairs = [(point, budgets.kerple(point)) for point in budgets.at(tokens)]
        over[tokens] = _tested(
            {
                one.name: (one.drift(multiple), kerple.drift(multiple))
                for one, kerple in pairs
                if kerple and kerple is not one
            }
        )
    ends = {
        name: (points[-1].drift(multiple), points[0].drift(multiple))
        for name, points in budgets.series.items()
        if len(points) > 1
    }
    return Drifts(drift, _tested(ends), over)


def _tested(pairs: Mapping[str, tuple[Sample | None, Sample | None]]) -> Tested:
    return tested({name: (one, other) for name, (one, other) in pairs.items() if one and other})


def _rows(scored: Scored, budgets: Budgets) -> list[BudgetRow]:
    """Return the numbers of a text as rows of a table, for other programs."""
    found = []
    for multiple in budgets.measured:
        of_multiple = drifts(budgets, multiple)
        for point in budgets.points:
            if point.name in of_multiple.drift[point.tokens]:
                drift, _ = of_multiple.drift[point.tokens][point.name]
                over, _ = of_multiple.over_kerple[point.tokens].get(point.name, (None, False))
                length = round(multiple * point.train_length)
                loss = point.points[length]
                found.append(
                    BudgetRow(
                        *(str(scored), point.name, point.encoding, loss.runs, point.tokens),
                        *(point.per_parameter, multiple, length, loss.mean),
                        *(drift.value, drift.half_width),
                        *((over.value, over.half_width) if over else (math.nan, math.nan)),
                    )
                )
    return found


def write_rows(folder: epath.Path, results: Results) -> None:
    """Write the numbers of all texts to a file, or remove it if there are none."""
    found = [row for scored, own in by_budget(results).items() for row in _rows(scored, own)]
    if found:
        write_table(folder / FILE, BudgetRow, found)
    else:
        (folder / FILE).unlink(missing_ok=True)
