"""What runs can tell: which arm leads, what is not distinguishable, and the ranking.

All pairs of arms of a measurement, such as the loss at one length, are one family of tests; see
`fire_lm.reporting.differences`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from fire_lm.reporting.differences import (
    LEVEL,
    MOST_SEEDS,
    Comparisons,
    Difference,
    Sample,
    compare,
    pooled_spread,
)
from fire_lm.reporting.page import Table
from fire_lm.reporting.series import Scale, Series

# The pooled standard deviation over seeds, in nats per token, of the models of evidence/mini, by
# the length as a multiple of the training length.
REFERENCE = {1: 0.010, 2: 0.011, 4: 0.038, 8: 0.052, 16: 0.057}
_Words = TypeVar("_Words", bound=Hashable)
_ARM = "all runs that differ only in their seed"
_OF_REFERENCE = "in fire_lm's own runs of 0.37M parameters"


@dataclasses.dataclass(frozen=True)
class Measured:
    """A measurement of all arms.

    Attributes:
      place: Where it was made, such as "at 64 tokens". Places that share their first and last
        words are told together.
      samples: The scores of each arm.
      reference: The usual standard deviation over seeds, for a column in which no arm has several
        runs; None if it is unknown.
    """

    place: str
    samples: Mapping[str, Sample]
    reference: float | None = None

    def spread(self) -> tuple[float | None, float]:
        """Return the usual spread over seeds, and the largest difference of two runs by chance.

        Both are those of the column's own arms if one of these has several runs. The largest
        difference is that of a 95 % interval, or NaN if the spread is unknown.
        """
        from scipy.special import stdtrit

        own, freedom = pooled_spread(self.samples.values())
        if freedom:
            return own, float(stdtrit(freedom, 1 - LEVEL / 2)) * math.sqrt(2) * own
        if self.reference is None:
            return None, math.nan
        return self.reference, 1.96 * math.sqrt(2) * self.reference


def measured(
    series: Sequence[Series],
    places: Mapping[Hashable, str],
    reference: Callable[[Hashable, Sequence[Series]], float | None] = lambda *_: None,
) -> list[Measured]:
    """Return the points of series as measurements.

    Args:
      series: The series.
      places: The name of each measurement, by the place of its points.
      reference: Returns `Measured.reference` of a place and the series that have a point there.
    """
    columns = []
    for at, name in places.items():
        own = [one for one in series if at in one.points]
        samples = {one.name: one.points[at].sample for one in own}
        if samples:
            columns.append(Measured(name, samples, reference(at, own)))
    return columns


def reference_at(multiple: float) -> float:
    """Return the usual spread over seeds, in nats, at a multiple of the training length."""
    return REFERENCE[min(REFERENCE, key=lambda known: abs(math.log(known / multiple)))]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is established.

    Attributes:
      method: The rule by which arms are told apart, or why no order is established.
      table: Which arm leads where, and which others are or are not told apart from it.
    """

    method: str
    table: Table


def verdicts(measured: Sequence[Measured], scale: Scale, title: str = "") -> list[Verdict]:
    """Say which arm leads where, what cannot be told, and how many seeds would tell.

    Measurements with several seeds and those with single runs have separate verdicts; the result
    is [] if nothing can be compared. `title` is the caption of the tables.
    """
    compared = {
        one.place: (one, compare(one.samples, None, scale.lower_is_better))
        for one in measured
        if len(one.samples) > 1
    }
    tested = {place: pairs for place, (_, pairs) in compared.items() if pairs.adjusted}
    alone = {place: both for place, both in compared.items() if place not in tested}
    found = []
    if tested:
        rows = {place: _leader(pairs) for place, pairs in tested.items()}
        header = ["", scale.best, "not told apart from it (seeds that would tell)", "told apart"]
        if any(row[3] for row in rows.values()):
            header.append("no test: a single run")
        counts = sorted({len(one.adjusted) for one in tested.values()})
        told = f"{_span(list(map(str, counts)))} pair{'s' * (counts[-1] > 1)}"
        caption = f"{title}, {told}." if title else f"{told} at each place."
        method = _method(list(tested.values()), scale)
        found.append(Verdict(method, _table(caption, header, rows)))
    if alone:
        single = {place: _single_leader(*both, scale) for place, both in alone.items()}
        header = [
            *("", scale.best, "a lead that may be chance", "larger than usual for two seeds"),
            "two seeds may differ by",
        ]
        method = _single([one for one, _ in alone.values()], scale)
        found.append(Verdict(method, _table(f"{title}.", header, single)))
    return found


def _table(title: str, header: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    """Return a table with a row for each statement, which may hold at several places."""
    body = [[places, *words] for places, words in _by_statement(rows)]
    return Table(title, header, [row[: len(header)] for row in body])


def _method(tested: Sequence[Comparisons], scale: Scale) -> str:
    several = any(len(one.adjusted) > 1 for one in tested)
    return (
        f"An arm is {_ARM}. Arms are told apart by Welch's t test over "
        f"{tested_over(tested, scale)} at 5 %"
        + ", corrected for all pairs of a row by Holm's method" * several
        + ("; * would be told apart if no other pair were compared" * several)
        + ". In parentheses: the seeds per arm, these included, with which a true difference of "
        "the observed size would be told in 80 % of cases (the lead of the best of several arms is "
        "usually observed too large)."
    )


def tested_over(tested: Sequence[Comparisons], scale: Scale) -> str:
    """Return what the errors of the differences contain."""
    some = [one for pairs in tested for one in pairs.differences.values() if one.tested]
    known = all(one.text_error is not None for one in some)
    return f"seeds and {scale.over}" if known else "seeds alone (the text is not recorded)"


_MOST_NAMED = 4


def _leader(found: Comparisons) -> tuple[str, str, str, str]:
    """Return the best arm, and the others that are not told apart, told apart and not tested."""
    best, *others = found.means
    close, seeds, apart, untested = [], [], [], []
    for name in others:
        one = found.difference(best, name)
        if not one.tested:
            untested.append(name)
        elif found.apart(best, name):
            apart.append(name)
        else:
            count = found.seeds_needed(best, name)
            seeds.append(count or MOST_SEEDS + 1)
            needed = count or f"more than {MOST_SEEDS}"
            close.append(f"{name}{'*' * (one.p_value <= LEVEL)} ({needed})")
    told = ", ".join(close) or "none"
    if len(close) > _MOST_NAMED and len(close) == len(others):
        ends = sorted(seeds)
        needed = _span([str(n) if n <= MOST_SEEDS else f"more than {MOST_SEEDS}" for n in ends])
        told = f"all {len(close)} others ({needed})"
    return best, told, _all_or_named(apart, others), ", ".join(untested)


def _all_or_named(names: Sequence[str], others: Sequence[str]) -> str:
    if len(names) == len(others) > 1:
        return f"all {len(others)} others"
    return f"{len(names)} others" if len(names) > _MOST_NAMED else ", ".join(names) or "none"


def _single(measured: Sequence[Measured], scale: Scale) -> str:
    """Say that nothing is established by single runs, and by how much seeds usually differ."""
    alone = all(len(sample.values) == 1 for one in measured for sample in one.samples.values())
    has = "Each arm has one run" if alone else "No two arms have several seeds"
    told = f"{has} (an arm is {_ARM}): no order is established, because other seeds may reverse it."
    known = [(spread, most) for spread, most in (one.spread() for one in measured) if spread]
    if not known:
        return f"{told} {scale.usual}".strip()
    spreads, limits = (
        [scale.told(one) for one in sorted(some)] for some in zip(*known, strict=True)
    )
    own = any(pooled_spread(one.samples.values())[1] for one in measured)
    return (
        f"{told} Seeds of an arm differ by {_span(spreads)} {scale.unit} (standard deviation "
        f"{'of the arms that have seeds' if own else _OF_REFERENCE}), so two single runs may "
        f"differ by {_span(limits)} by chance, and a larger lead is no test."
    )


def _single_leader(measured: Measured, found: Comparisons, scale: Scale) -> tuple[str, ...]:
    """Return the best arm, its leads that may be chance, those that are larger, and the limit.

    A lead also contains the error of the text, so one slightly above the limit may be chance.
    """
    best, *others = found.means
    spread, most = measured.spread()
    if spread is None:
        return best, "unknown", "unknown", "unknown"
    within: list[str] = []
    beyond: list[str] = []
    for name in others:
        one = found.difference(best, name)
        usual = abs(one.value) <= math.hypot(most, 1.96 * (one.text_error or 0.0))
        (within if usual else beyond).append(f"{name} ({scale.told(abs(one.value))})")
    return best, ", ".join(within) or "none", ", ".join(beyond) or "none", scale.told(most)


def _by_statement(told: Mapping[str, _Words]) -> list[tuple[str, _Words]]:
    """Return each statement after the places for which it holds, told together."""
    places: dict[_Words, list[str]] = {}
    for place, words in told.items():
        places.setdefault(words, []).append(place)
    return [(_together(own), words) for words, own in places.items()]


def _together(places: Sequence[str]) -> str:
    """Return, for example, "at 64 and 128 tokens" for "at 64 tokens" and "at 128 tokens"."""
    words = [place.split() for place in places]
    first, last = {own[0] for own in words}, {own[-1] for own in words}
    if len(places) == 1 or len(first) > 1:
        return listed(places)
    if len(last) > 1 or min(map(len, words)) < 3:
        return f"{first.pop()} {listed([' '.join(own[1:]) for own in words])}"
    return f"{first.pop()} {listed([' '.join(own[1:-1]) for own in words])} {last.pop()}"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _span(values: Sequence[str]) -> str:
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def rankings(measured: Sequence[Measured], scale: Scale) -> list[str]:
    """Return a list with the rankings, or [] if no pair can be tested."""
    told = {}
    for one in measured:
        samples = {name: arm for name, arm in one.samples.items() if len(arm.values) > 1}
        if len(samples) > 1:
            told[one.place] = compare(samples, None, scale.lower_is_better).ranking()
    if not told:
        return []
    lines = "; ".join(f"{places}: {order}" for places, order in _by_statement(told))
    return [f"Best first; arms with a letter in common are not told apart: {lines}."]


def difference_cell(found: Difference, apart: bool, digits: int) -> str:
    """Format a difference with its interval, as `explained` says; `apart` is after correction."""
    value = f"{found.value:+.{digits}f}"
    if found.same_runs:
        return f"{value} (same runs)"
    if not found.tested:
        return f"{value} (no test)"
    told = f"{value} ± {found.half_width:.{digits}f}"
    if apart:
        return told
    return f"{told}*" if found.p_value <= LEVEL else f"not distinguishable ({told})"


def difference_table(
    measured: Sequence[Measured], heads: Sequence[str], names: Sequence[str], scale: Scale
) -> list[Table]:
    """Return a list with a table of differences from the first of `names`, or [] without tests.

    Args:
      measured: The measurements, one for each column.
      heads: The heads of the columns.
      names: The names of the arms, in the order of the rows.
    """
    first, *others = names
    families = [compare(one.samples, None, scale.lower_is_better) for one in measured]
    body, shown = [], []
    for name in others:
        row = [name]
        for family in families:
            cell = ""
            if {first, name} <= family.means.keys():
                pair = family.difference(name, first), family.apart(name, first)
                shown.append(pair)
                cell = difference_cell(*pair, scale.digits)
            row.append(cell)
        body.append(row)
    if not any(found.tested for found, _ in shown):
        return []
    told = explained(shown, [len(family.adjusted) for family in families], scale.over)
    unit = scale.unit[0].upper() + scale.unit[1:]
    return [Table(f"{unit} above {first}: {told}.", ["", *heads], body)]


def explained(
    found: Sequence[tuple[Difference, bool]], pairs: Sequence[int], over: str = "text"
) -> str:
    """Explain the cells of a table of differences.

    Args:
      found: The differences, each with whether it is significant after correction.
      pairs: The numbers of pairs in the families of tests.
      over: What the scores are means over.
    """
    told = []
    tested = [one for one, _ in found if one.tested]
    if tested:
        known = all(one.text_error is not None for one in tested)
        what = f"seeds and {over}" if known else "seeds alone, because the text is not recorded"
        told.append(f"± half the 95 % interval over {what} (Student's t)")
    if any(one.tested and not apart and one.p_value <= LEVEL for one, apart in found):
        told.append(
            f"* distinguishable by itself, but not among all {max(pairs)} pairs of a column (Holm)"
        )
    if any(not one.tested and not one.same_runs for one, _ in found):
        told.append("no test: a single run does not show how much seeds differ")
    return "; ".join(told)
