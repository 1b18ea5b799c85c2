"""What runs can tell: which arm leads, what is not distinguishable, and the ranking.

All pairs of arms of a measurement, such as the loss at one length, are one family of tests; see
`fire_lm.reporting.differences`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from fire_lm.reporting.differences import (
    LEVEL,
    MOST_SEEDS,
    Comparisons,
    Difference,
    Sample,
    Tested,
    compare,
    pooled_spread,
)
from fire_lm.reporting.page import Table
from fire_lm.reporting.series import Scale, Series, grouped, length_heads, lengths_of, listed

# The pooled standard deviation over seeds, in nats per token, of the models of evidence/mini, by
# the length as a multiple of the training length.
REFERENCE = {1: 0.010, 2: 0.011, 4: 0.038, 8: 0.052, 16: 0.057}
_Words = TypeVar("_Words", bound=Hashable)
_ARM = "all runs that differ only in their seed"
_OF_REFERENCE = "in fire_lm's own runs of 0.37M parameters"
_MOST_NAMED = 4


def reference_at(multiple: float) -> float:
    """Return the usual spread over seeds, in nats, at a multiple of the training length."""
    return REFERENCE[min(REFERENCE, key=lambda known: abs(math.log(known / multiple)))]


def chance(samples: Iterable[Sample], reference: float | None) -> tuple[float | None, float]:
    """Return the usual spread over seeds, and the largest difference of two runs by chance.

    Both are those of the samples if an arm has several runs, else those of `reference`, a usual
    spread. The largest difference is that of a 95 % interval, or NaN if the spread is unknown.
    """
    from scipy.special import stdtrit

    own, freedom = pooled_spread(samples)
    if freedom:
        return own, float(stdtrit(freedom, 1 - LEVEL / 2)) * math.sqrt(2) * own
    return reference, 1.96 * math.sqrt(2) * (math.nan if reference is None else reference)


class Verdict(NamedTuple):
    """What is established.

    Attributes:
      method: The rule by which arms are told apart, or why no order is established.
      table: Which arm leads where, and which others are or are not told apart from it.
    """

    method: str
    table: Table


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Series that are compared with each other at several places, such as lengths.

    All pairs at a place are a family of tests.

    Attributes:
      series: The series, in the order of the rows of tables.
      names: The name of each place, such as "at 64 tokens". Places that share their first and last
        words are told together.
      scale: The scale of the values.
      heads: The heads of columns, by place; by default, the names without their first words.
      references: The usual standard deviation over seeds, by place, for places at which no arm has
        several runs.
    """

    series: Sequence[Series]
    names: Mapping[Hashable, str]
    scale: Scale
    heads: Mapping[Hashable, str] = dataclasses.field(default_factory=dict)
    references: Mapping[Hashable, float] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def samples(self) -> dict[Hashable, dict[str, Sample]]:
        """The samples of the series at each place, by name; places without any are left out."""
        samples = {
            at: {one.name: one.points[at] for one in self.series if at in one.points}
            for at in self.names
        }
        return {at: own for at, own in samples.items() if own}

    @functools.cached_property
    def families(self) -> dict[Hashable, Comparisons]:
        lower = self.scale.lower_is_better
        return {at: compare(own, lower) for at, own in self.samples.items()}

    def verdicts(self, title: str = "") -> list[Verdict]:
        """Say which arm leads where, what cannot be told, and how many seeds would tell.

        Measurements with several seeds and those with single runs have separate verdicts; the
        result is [] if nothing can be compared. `title` is the caption of the tables.
        """
        tested = {self.names[at]: family for at, family in self.families.items() if family.adjusted}
        alone = {
            at: chance(own.values(), self.references.get(at))
            for at, own in self.samples.items()
            if len(own) > 1 and not self.families[at].adjusted
        }
        verdicts = []
        if tested:
            rows = {place: _leader(family) for place, family in tested.items()}
            pairs = [one for family in tested.values() for one in family.differences.values()]
            reason = " or runs in common" * any(one.same_runs for one in pairs)
            untested = [f"no test: a single run{reason}"] * any(row[3] for row in rows.values())
            told_apart = ["not told apart from it (seeds that would tell)", "told apart"]
            counts = sorted({len(family.adjusted) for family in tested.values()})
            pair_count = f"{_span(list(map(str, counts)))} pair{'s' * (counts[-1] > 1)}"
            caption = f"{title}, {pair_count}." if title else f"{pair_count} at each place."
            table = _table(caption, [self.scale.best, *told_apart, *untested], rows)
            verdicts.append(Verdict(_method(list(tested.values()), self.scale), table))
        if alone:
            single = {
                self.names[at]: _single_leader(self.families[at], *known, self.scale)
                for at, known in alone.items()
            }
            header = [
                *(self.scale.best, "a lead that may be chance", "larger than usual for two seeds"),
                "two seeds may differ by",
            ]
            runs = [sample.runs for at in alone for sample in self.samples[at].values()]
            pairs = [one for at in alone for one in self.families[at].differences.values()]
            shared = any(one.same_runs for one in pairs)
            method = _single(list(alone.values()), max(runs), shared, self.scale)
            verdicts.append(Verdict(method, _table(f"{title}." * bool(title), header, single)))
        return verdicts

    def words_and_tables(self, tables: Sequence[Table]) -> tuple[list[str], list[Table]]:
        """Return the words and tables of a verdict with rankings, followed by `tables`."""
        verdicts = self.verdicts()
        words = [*(verdict.method for verdict in verdicts), *self.rankings()]
        return words, [*(verdict.table for verdict in verdicts), *tables]

    def rankings(self) -> list[str]:
        """Return a list with the rankings, or [] if no pair can be tested."""
        orders = {}
        for at, family in self.families.items():
            samples = self.samples[at]
            several = {name: mean for name, mean in family.means.items() if samples[name].runs > 1}
            if len(several) > 1:
                orders[self.names[at]] = dataclasses.replace(family, means=several).ranking()
        if not orders:
            return []
        lines = "; ".join(f"{places}: {order}" for places, order in _by_statement(orders))
        order = self.scale.order
        return [f"{order}; arms with a letter in common are not told apart: {lines}."]

    def difference_tables(self) -> list[Table]:
        """Return a list with a table of differences from the first series, or [] without tests."""
        first, *others = (one.name for one in self.series)
        columns: list[Tested] = [
            {
                name: (family.difference(name, first), family.apart(name, first))
                for name in others
                if {first, name} <= family.means.keys()
            }
            for family in self.families.values()
        ]
        if not any(found.tested for column in columns for found, _ in column.values()):
            return []
        unit = self.scale.unit[0].upper() + self.scale.unit[1:]
        names = {at: self.names[at].partition(" ")[2] for at in self.families}
        heads = [self.heads.get(at, name) for at, name in names.items()]
        pairs = [len(family.adjusted) for family in self.families.values()]
        return [tested_table(f"{unit} above {first}", heads, columns, others, self.scale, pairs)]


def length_comparison(
    series: Sequence[Series], scale: Scale, references: Mapping[Hashable, float] | None = None
) -> Comparison:
    """Return the comparison of series at each length, in tokens; see `Comparison`."""
    lengths = lengths_of(series)
    names = {length: f"at {length} tokens" for length in lengths}
    return Comparison(series, names, scale, length_heads(series, lengths), references or {})


def _table(caption: str, header: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    """Return a table with a row for each statement, which may hold at several places."""
    body = [[places, *words[: len(header)]] for places, words in _by_statement(rows)]
    return Table(caption, ["", *header], body)


def _method(tested: Sequence[Comparisons], scale: Scale) -> str:
    several = any(len(one.adjusted) > 1 for one in tested)
    shown = [one for pairs in tested for one in pairs.differences.values() if one.tested]
    known = all(one.text_error is not None for one in shown)
    alone = f"seeds alone (the error over {scale.over} is unknown)"
    over = f"seeds and {scale.over}" if known else alone
    by_run = ", lines of the same runs in pairs," * any(len(one.seeds) == 1 for one in shown)
    return (
        f"An arm is {_ARM}. Arms are told apart by Welch's t test{by_run} over {over} at 5 %"
        + ", corrected for all pairs of a row by Holm's method" * several
        + ("; * would be told apart if no other pair were compared" * several)
        + ". In parentheses: the seeds per arm, these included, with which a true difference of "
        "the observed size would be told in 80 % of cases (the lead of the best of several arms is "
        "usually observed too large)."
    )


def _leader(found: Comparisons) -> tuple[str, str, str, str]:
    """Return the best arm, and the others that are not told apart, told apart and not tested."""
    best, *others = found.means
    apart = [name for name in others if found.apart(best, name)]
    untested = [name for name in others if not found.difference(best, name).tested]
    seeds = {
        name: found.seeds_needed(best, name) or MOST_SEEDS + 1
        for name in others
        if name not in (*apart, *untested)
    }
    needed = {n: str(n) if n <= MOST_SEEDS else f"more than {MOST_SEEDS}" for n in seeds.values()}
    alone = {name: "*" * (found.difference(best, name).p_value <= LEVEL) for name in seeds}
    close = ", ".join(f"{name}{alone[name]} ({needed[n]})" for name, n in seeds.items()) or "none"
    if len(seeds) > _MOST_NAMED and len(seeds) == len(others):
        span = _span([needed[count] for count in sorted(needed)])
        close = f"all {len(seeds)} others ({span})"
    clear = ", ".join(apart) or "none"
    if len(apart) > min(_MOST_NAMED, len(others) - 1) > 0:
        clear = f"{'all ' * (len(apart) == len(others))}{len(apart)} others"
    return best, close, clear, ", ".join(untested)


def _single(
    known: Sequence[tuple[float | None, float]], most_runs: int, shared: bool, scale: Scale
) -> str:
    """Say that nothing is established by single runs, and by how much seeds usually differ.

    `known` has what `chance` returns for each place, `most_runs` is the largest number of runs, and
    `shared` says whether two arms share some of their runs.
    """
    several = "No two arms have several seeds" + " and no run in common" * shared
    has = "Each arm has one run" if most_runs == 1 else several
    told = f"{has} (an arm is {_ARM}): no order is established, because other seeds may reverse it."
    usual = [(spread, most) for spread, most in known if spread]
    if not usual:
        return f"{told} {scale.usual}".strip()
    spreads, limits = (
        [scale.formatted(one) for one in sorted(some)] for some in zip(*usual, strict=True)
    )
    own = most_runs > 1
    return (
        f"{told} Seeds of an arm differ by {_span(spreads)} {scale.unit} (standard deviation "
        f"{'of the arms that have seeds' if own else _OF_REFERENCE}), so two single runs may "
        f"differ by {_span(limits)} by chance, and a larger lead is no test."
    )


def _single_leader(
    found: Comparisons, spread: float | None, most: float, scale: Scale
) -> tuple[str, ...]:
    """Return the best arm, its leads that may be chance, those that are larger, and the limit.

    `spread` and `most` are what `chance` returns. A lead also contains the error of the text, so
    one slightly above `most` may be chance.
    """
    best, *others = found.means
    if spread is None:
        return best, "unknown", "unknown", "unknown"
    leads: dict[bool, list[str]] = {True: [], False: []}
    for name in others:
        one = found.difference(best, name)
        usual = abs(one.value) <= math.hypot(most, 1.96 * (one.text_error or 0.0))
        leads[usual].append(f"{name} ({scale.formatted(abs(one.value))})")
    within, beyond = (", ".join(leads[usual]) or "none" for usual in (True, False))
    return best, within, beyond, scale.formatted(most)


def _by_statement(words_of_places: Mapping[str, _Words]) -> list[tuple[str, _Words]]:
    """Return each statement after the places for which it holds, told together."""
    places = grouped(words_of_places, lambda place: words_of_places[place])
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


def _span(values: Sequence[str]) -> str:
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def difference_cell(found: Difference, apart: bool, digits: int) -> str:
    """Format a difference with its interval, as `tested_table` explains it.

    `apart` states whether it holds after correction.
    """
    value = f"{found.value:+.{digits}f}"
    if found.same_runs:
        return f"{value} (same runs)"
    if not found.tested:
        return f"{value} (no test)"
    interval = f"{value} ± {found.half_width:.{digits}f}"
    if apart:
        return interval
    return f"{interval}*" if found.p_value <= LEVEL else f"not distinguishable ({interval})"


def tested_table(
    caption: str,
    heads: Sequence[str],
    columns: Sequence[Tested],
    names: Sequence[str],
    scale: Scale,
    pairs: Sequence[int] = (),
) -> Table:
    """Tabulate the differences of each column by row, and explain them in the caption.

    `pairs` has the number of pairs in each column's family of tests; by default, those shown.
    """
    body = [
        [name, *(difference_cell(*cells[name], scale.digits) if name in cells else ""
                 for cells in columns)]
        for name in names
    ]  # fmt: skip
    shown = [cell for cells in columns for cell in cells.values()]
    tested = [one for one, _ in shown if one.tested]
    notes = []
    if tested:
        known = all(one.text_error is not None for one in tested)
        alone = f"seeds alone, because the error over {scale.over} is unknown"
        over = f"seeds and {scale.over}" if known else alone
        notes.append(f"± half the 95 % interval over {over} (Student's t)")
    counts = pairs or [sum(one.tested for one, _ in cells.values()) for cells in columns]
    starred = {
        count
        for count, cells in zip(counts, columns, strict=True)
        if any(one.tested and not apart and one.p_value <= LEVEL for one, apart in cells.values())
    }
    if starred:
        all_pairs = " or ".join(map(str, sorted(starred)))
        notes.append(
            f"* distinguishable by itself, but not among all {all_pairs} pairs of a column (Holm)"
        )
    if any(not one.tested and not one.same_runs for one, _ in shown):
        notes.append("no test: a single run does not show how much seeds differ")
    what = "; ".join(notes)
    return Table(f"{caption}{': ' * bool(what)}{what}.", ["", *heads], body)
