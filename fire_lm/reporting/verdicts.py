"""Sentences on what runs can tell: which arm leads, what is not distinguishable, and the ranking.

A *column* is a measurement of all arms, such as the loss at one length. The pairs of arms in a
column are one family of tests; see `fire_lm.reporting.differences`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from fire_lm.reporting.differences import (
    LEVEL,
    MOST_SEEDS,
    Comparisons,
    Difference,
    Sample,
    compare,
    pooled_spread,
)

# The pooled standard deviation over seeds, in nats per token, of the models of evidence/mini, by
# the length as a multiple of the training length.
REFERENCE = {1: 0.010, 2: 0.011, 4: 0.038, 8: 0.052, 16: 0.057}
_OF_REFERENCE = "in fire_lm's own runs of 0.37M parameters"


@dataclasses.dataclass(frozen=True)
class Column:
    """A measurement of all arms.

    Attributes:
      place: Where it was made, such as "at 64 tokens".
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


@dataclasses.dataclass(frozen=True)
class Scale:
    """How scores are named and printed.

    Attributes:
      leads: The predicate of the best arm, such as "has the lowest loss".
      unit: The unit of a difference.
      digits: The number of digits after the decimal point.
      lower_is_better: Whether the best arm has the lowest score.
    """

    leads: str
    unit: str
    digits: int
    lower_is_better: bool

    def told(self, value: float) -> str:
        return f"{value:.{self.digits}f}"


NATS = Scale("has the lowest loss", "nats per token", 3, lower_is_better=True)
BITS = Scale("has the lowest loss", "bits per byte", 3, lower_is_better=True)
ACCURACY = Scale("has the highest accuracy", "points", 1, lower_is_better=False)
SCORE = Scale("has the highest score", "points", 2, lower_is_better=False)


def reference_at(multiple: float) -> float:
    """Return the usual spread over seeds, in nats, at a multiple of the training length."""
    return REFERENCE[min(REFERENCE, key=lambda known: abs(math.log(known / multiple)))]


def verdict(columns: Sequence[Column], scale: Scale) -> list[str]:
    """Say which arm leads in each column, what cannot be told, and how many seeds would tell."""
    columns = [column for column in columns if len(column.samples) > 1]
    found = {
        column.place: compare(column.samples, None, scale.lower_is_better) for column in columns
    }
    tested = {place: one for place, one in found.items() if one.adjusted}
    words = [_method(tested)] if tested else []
    words += _merged({place: _leader(one, scale) for place, one in tested.items()})
    alone = [column for column in columns if column.place not in tested]
    if alone:
        words.append(_single(alone, scale))
        words += _merged(
            {one.place: _lead_of_one_run(one, found[one.place], scale) for one in alone}
        )
    return words


def _method(tested: Mapping[str, Comparisons]) -> str:
    counts = sorted({len(one.adjusted) for one in tested.values()})
    pairs = " or ".join(map(str, counts)) if len(counts) < 4 else f"{counts[0]} to {counts[-1]}"
    corrected = f", corrected for {pairs} pairs (Holm)" * (counts[-1] > 1)
    return (
        f"Differences are tested over seeds and text at 5 % (Welch's t test{corrected}). In "
        "parentheses: the seeds per arm that would tell a difference of this size in 80 % of cases."
    )


def _leader(found: Comparisons, scale: Scale) -> str:
    """Say which arm leads a column, and from which others it is not distinguishable."""
    best, *others = found.means
    close, untested = [], []
    for name in others:
        if not found.difference(best, name).tested:
            untested.append(name)
        elif not found.apart(best, name):
            seeds = found.seeds_needed(best, name)
            close.append(f"{name} ({seeds or f'more than {MOST_SEEDS}'})")
    told = f"{best} {scale.leads}"
    if close:
        told += f", but is not distinguishable from {_listed(close)}"
    elif len(untested) < len(others):
        told += f" and is told apart from {'all others' if len(others) > 1 else others[0]}"
        told += " that have several seeds" * bool(untested)
    if untested:
        told += f"; without several seeds of both, there is no test against {_listed(untested)}"
    return told


def _single(columns: Sequence[Column], scale: Scale) -> str:
    """Say that nothing is established by single runs, and by how much seeds usually differ."""
    told = (
        "There are not two arms with several seeds, so no order is established: other seeds may "
        "reverse it."
    )
    known = [(spread, most) for spread, most in (one.spread() for one in columns) if spread]
    if not known:
        return told
    spreads, limits = (
        [scale.told(one) for one in sorted(some)] for some in zip(*known, strict=True)
    )
    own = any(pooled_spread(one.samples.values())[1] for one in columns)
    return (
        f"{told} Seeds of an arm differ by {_span(spreads)} {scale.unit} (standard deviation "
        f"{'of the arms that have seeds' if own else _OF_REFERENCE}), so two single runs may "
        f"differ by {_span(limits)} by chance."
    )


def _lead_of_one_run(column: Column, found: Comparisons, scale: Scale) -> str:
    best, *others = found.means
    told = f"{best} {scale.leads}"
    spread, most = column.spread()
    if spread is None:
        return told
    within = []
    for name in others:
        one = found.difference(best, name)
        if abs(one.value) <= math.hypot(most, 1.96 * (one.text_error or 0.0)):
            within.append(f"{name} ({scale.told(abs(one.value))})")
    if within:
        return f"{told}, but its lead may be chance over {_listed(within)}"
    gap = scale.told(abs(found.difference(best, others[0]).value))
    return f"{told}, by {gap}, which is more than seeds usually cause"


def _merged(told: Mapping[str, str]) -> list[str]:
    """Return a sentence for each statement, with all places for which it holds."""
    places: dict[str, list[str]] = {}
    for place, words in told.items():
        places.setdefault(words, []).append(place)
    sentences = []
    for words, own in places.items():
        # "at 64 tokens" and "at 128 tokens" become "at 64 and 128 tokens".
        first, *rest = own
        head, _, tail = first.partition(" ")
        short = [one.removeprefix(f"{head} ") for one in rest]
        sentences.append(f"{head.capitalize()} {_listed([tail, *short])}, {words}.")
    return sentences


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _span(values: Sequence[str]) -> str:
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def rankings(columns: Sequence[Column], scale: Scale) -> list[str]:
    """Return a list with the ranking of each column in groups, or [] if no pair can be tested."""
    told = {}
    for column in columns:
        samples = {name: one for name, one in column.samples.items() if len(one.values) > 1}
        if len(samples) > 1:
            found = compare(samples, None, scale.lower_is_better)
            told[column.place] = found.ranking()
    if not told:
        return []
    lines = "; ".join(f"{place}: {order}" for place, order in told.items())
    return [
        f"Best first; arms in braces or with a letter in common are not distinguishable: {lines}."
    ]


def cell(found: Difference, apart: bool, digits: int) -> str:
    """Format a difference with its interval; see `of_cells`."""
    value = f"{found.value:+.{digits}f}"
    if found.same_runs:
        return f"{value} (same runs)"
    if not found.tested:
        return f"{value} (no test)"
    told = f"{value} ± {found.half_width:.{digits}f}"
    if apart:
        return told
    planned = "*" * (found.p_value <= LEVEL)
    return f"not distinguishable{planned} ({told})"


def of_cells(found: Sequence[tuple[Difference, bool]], pairs: Sequence[int]) -> str:
    """Explain the cells of a table of differences; `pairs` are the sizes of its families."""
    told = []
    tested = [one for one, _ in found if one.tested]
    if tested:
        known = all(one.text_error is not None for one in tested)
        what = "seeds and text" if known else "seeds alone, because the rows of text are not known"
        most = max(pairs)
        corrected = f", corrected for up to {most} pairs of a column (Holm)" * (most > 1)
        told.append(f"± half the 95 % interval over {what} (Student's t; Welch's test{corrected})")
    if any(one.tested and not apart and one.p_value <= LEVEL for one, apart in found):
        told.append("* would be distinguishable if no other pair were tested")
    if any(not one.tested and not one.same_runs for one, _ in found):
        told.append("no test: a single run does not show how much seeds differ")
    return "; ".join(told)
