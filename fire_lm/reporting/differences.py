"""Which arms differ: differences with intervals, tests over seeds and text, and rankings.

The model: the score of arm a, seed s and row of text r is
  y_asr = mean_a + seed_as + row_r + row_ar + noise_asr.
All arms and seeds are scored on the same rows, so row_r, the difficulty of the text, cancels in a
difference. Its variance has two parts, which are added:
- Seeds: the spread over seeds of an arm's scores, divided by the number of seeds, for each arm.
  This spread contains noise_asr, but not row_ar, because all seeds have the same rows.
- Text: the variance over rows of the difference row_ar - row_br, divided by the number of rows.
  The seeds' part of the observed variance is subtracted, so that no part is counted twice.

Arms that share the numbers of their seeds are treated as independent (Welch's test). In our
evidence, the correlation of their losses over seeds is about 0.1, so pairing three seeds would
lower the variance by a tenth, but raise the quantile of Student's t from 2.8 to 4.3. Lines of the
same runs (with changes at evaluation only) are paired by run. With a single run of an arm, the
spread over seeds is unknown and there is no test.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from fire_lm.results.estimators import mean_and_error

LEVEL = 0.05  # of tests, for all pairs of a family together
MOST_SEEDS = 100
_POWER = 0.8
_MANY = 1e9  # degrees of freedom of an error that is known
_Key = TypeVar("_Key", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class Sample:
    """The scores of an arm at one place, such as a length: one for each seed.

    Attributes:
      values: The score of each run, by its name.
      tokens_R: The number of tokens in each row of text; None if the rows are not recorded.
      sums_R: For each run, the score of each row, summed over its tokens; empty as `tokens_R`.
      error: The standard error over the text or the examples, averaged over the runs; NaN if it is
        unknown.
      text: An identifier of the text. Samples are paired by rows only if theirs are equal.
      common_text: Whether samples with equal `text` have the same text, whose errors cancel in
        differences. `error` then says nothing about a difference, unlike the rows of the text.
    """

    values: Mapping[str, float]
    tokens_R: np.ndarray | None = None
    sums_R: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    error: float = math.nan
    text: str = ""
    common_text: bool = False

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values.values())

    @property
    def runs(self) -> int:
        return len(self.values)

    @property
    def variance(self) -> float | None:
        """The variance over seeds, or None for a single run."""
        return _variance(list(self.values.values()))

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds, or None for a single run."""
        return None if self.variance is None else math.sqrt(self.variance)


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of the mean scores of two arms.

    Attributes:
      value: The first mean minus the second.
      seeds: The variances over seeds and the numbers of seeds that are added: those of the two
        arms or, for lines of the same runs, those of the differences. () if one is unknown.
      text_error: The part of the standard error that is due to the text; None if unknown.
      rows: The number of rows of text, or 0 if `text_error` has no degrees of freedom to count.
      same_runs: Whether the two arms share some of their runs and therefore cannot be compared.
    """

    value: float
    seeds: tuple[tuple[float, int], ...]
    text_error: float | None
    rows: int = 0
    same_runs: bool = False

    @property
    def tested(self) -> bool:
        """Whether there is a test: not without seeds, nor of scores that are not finite."""
        return bool(self.seeds) and math.isfinite(self.value)

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval by Student's t; NaN if there is no test."""
        from scipy.special import stdtrit

        if not self.tested:
            return math.nan
        error, freedom = self._error([count for _, count in self.seeds])
        return float(stdtrit(freedom, 1 - LEVEL / 2)) * error if error else 0.0

    @property
    def p_value(self) -> float:
        """The two-sided p-value by Student's t; NaN if there is no test."""
        from scipy.special import stdtr

        if not self.tested:
            return math.nan
        error, freedom = self._error([count for _, count in self.seeds])
        if not error:
            return float(self.value == 0)
        return float(2 * stdtr(freedom, -abs(self.value) / error))

    def seeds_needed(self, level: float) -> int | None:
        """Return the seeds per arm that tell a difference of this size apart in 80 % of cases.

        The result is None if more than `MOST_SEEDS` are necessary, or if there is no test.
        """
        from scipy.special import nctdtr, stdtrit

        for count in range(2, MOST_SEEDS + 1) if self.tested and self.value else ():
            error, freedom = self._error([count] * len(self.seeds))
            if not error:
                return count
            quantile, shift = float(stdtrit(freedom, 1 - level / 2)), abs(self.value) / error
            # For a large shift, nctdtr may return NaN; the power is then 1.
            if shift > quantile + 10 or 1 - float(nctdtr(freedom, shift, quantile)) >= _POWER:
                return count
        return None

    def _error(self, counts: Sequence[int]) -> tuple[float, float]:
        """Return the standard error with these numbers of seeds, and its degrees of freedom.

        The degrees of freedom are those of Welch and Satterthwaite.
        """
        parts = [variance / n for (variance, _), n in zip(self.seeds, counts, strict=True)]
        degrees = [n - 1.0 for n in counts]
        if self.text_error:
            parts.append(self.text_error**2)
            degrees.append(self.rows - 1.0 if self.rows else _MANY)
        total = math.fsum(parts)
        below = math.fsum(part**2 / n for part, n in zip(parts, degrees, strict=True))
        return math.sqrt(total), total**2 / below if below else _MANY


def difference(one: Sample, other: Sample) -> Difference:
    """Return the difference of two arms; see the docstring of the module for its error."""
    value = one.mean - other.mean
    shared = one.values.keys() & other.values.keys()
    if shared and one.values.keys() != other.values.keys():
        return Difference(value, (), None, same_runs=True)
    if shared:
        deltas = [one.values[run] - other.values[run] for run in one.values]
        spreads = [(_variance(deltas), len(deltas))]
    else:
        spreads = [(sample.variance, len(sample.values)) for sample in (one, other)]
    seeds = tuple((v, n) for v, n in spreads if v is not None)
    text_error, rows = _text_error(one, other, paired=bool(shared))
    return Difference(value, seeds if len(seeds) == len(spreads) else (), text_error, rows)


def _text_error(one: Sample, other: Sample, paired: bool) -> tuple[float | None, int]:
    """Return the text's part of the error of a difference, and the number of rows or 0."""
    tokens_R, error = one.tokens_R, text_alone(one, other)
    if tokens_R is None or error is None:
        common_text = one.common_text and one.text == other.text
        if common_text or math.isnan(one.error + other.error):
            return None, 0
        # Without rows, the correlation is unknown. This is the largest error that is possible.
        return one.error + other.error, 0
    if paired:
        groups = [[one.sums_R[run] - other.sums_R[run] for run in one.sums_R]]
    else:
        groups = [list(sample.sums_R.values()) for sample in (one, other)]
    of_seeds = math.fsum(_noise(group, tokens_R) for group in groups)
    return math.sqrt(max(0.0, error**2 - of_seeds)), len(tokens_R)


def same_rows(one: Sample, other: Sample) -> bool:
    """Return whether two samples are recorded by row, on the same rows of the same text."""
    if one.tokens_R is None or other.tokens_R is None or one.text != other.text:
        return False
    return np.array_equal(one.tokens_R, other.tokens_R)


def text_alone(one: Sample, other: Sample) -> float | None:
    """Return the standard error of a difference over rows of text alone, or None if unknown."""
    if one.tokens_R is None or not same_rows(one, other):
        return None
    return mean_and_error(_mean_R(one) - _mean_R(other), one.tokens_R)[1]


def _mean_R(sample: Sample) -> np.ndarray:
    return np.mean(list(sample.sums_R.values()), axis=0)


def _noise(sums_SR: Sequence[np.ndarray], tokens_R: np.ndarray) -> float:
    """Return the variance over rows of the mean over seeds that is due to the seeds."""
    count = len(sums_SR)
    if count < 2:
        return 0.0
    rest_SR = np.array(sums_SR) - np.mean(sums_SR, axis=0)
    squares = math.fsum(mean_and_error(rest_R, tokens_R)[1] ** 2 for rest_R in rest_SR)
    return squares / (count * (count - 1))


def _variance(values: Sequence[float]) -> float | None:
    return float(np.var(values, ddof=1)) if len(values) > 1 else None


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by the method of Holm (1979)."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


@dataclasses.dataclass(frozen=True)
class Comparisons:
    """All pairs of some arms as one family of tests.

    Attributes:
      means: The mean of each arm, best first.
      differences: The difference of each pair of arms, the first minus the second.
      adjusted: The p-value of each pair that can be tested, corrected by Holm's method.
    """

    means: Mapping[str, float]
    differences: Mapping[tuple[str, str], Difference]
    adjusted: Mapping[tuple[str, str], float]

    def difference(self, one: str, other: str) -> Difference:
        """Return the difference of two arms in either order."""
        if (one, other) in self.differences:
            return self.differences[one, other]
        found = self.differences[other, one]
        return dataclasses.replace(found, value=-found.value)

    def apart(self, one: str, other: str) -> bool:
        """Return whether two arms differ by a test that is corrected for all pairs."""
        pair = (one, other) if (one, other) in self.differences else (other, one)
        return self.adjusted.get(pair, 1.0) <= LEVEL

    def seeds_needed(self, one: str, other: str) -> int | None:
        """Return `Difference.seeds_needed` with the level of a single pair of this family."""
        return self.difference(one, other).seeds_needed(LEVEL / max(1, len(self.adjusted)))

    def ranking(self) -> str:
        """Return the arms in order, best first, each with the letters of its groups.

        Arms of a group are not distinguishable from each other, and any two arms without a common
        letter are told apart. Groups may overlap, because "not distinguishable" is not transitive.
        """
        groups = self._groups()
        letters = {
            name: "".join(_letter(i) for i, group in enumerate(groups) if name in group)
            for name in self.means
        }
        return ", ".join(f"{name} ({letters[name]})" for name in self.means)

    def _groups(self) -> list[list[str]]:
        """Return the largest groups of arms that cannot be told apart pairwise, in order."""
        names = list(self.means)
        groups: list[frozenset[str]] = [frozenset(names)]
        for one, other in itertools.combinations(names, 2):
            if self.apart(one, other):
                split = [
                    group - {name}
                    for group in groups
                    for name in ((one, other) if {one, other} <= group else ("",))
                ]
                unique = set(split)
                groups = [g for g in unique if not any(g < larger for larger in unique)]
        ordered = [[name for name in names if name in group] for group in groups]
        return sorted(ordered, key=lambda group: [names.index(name) for name in group])


def _letter(index: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return letters[index] if index < len(letters) else f"[{index + 1}]"


def compare(samples: Mapping[str, Sample], lower_is_better: bool = True) -> Comparisons:
    """Compare all pairs of arms as one family of tests."""
    sign = 1 if lower_is_better else -1
    # A mean that is NaN comes last.
    order = sorted(samples, key=lambda n: (math.isnan(samples[n].mean), sign * samples[n].mean))
    pairs = itertools.combinations(order, 2)
    found = {(a, b): difference(samples[a], samples[b]) for a, b in pairs}
    means = {name: samples[name].mean for name in order}
    return Comparisons(means, found, _adjusted(found))


def _adjusted(differences: Mapping[_Key, Difference]) -> dict[_Key, float]:
    """Return the p-value of each difference that can be tested, corrected for their number."""
    p_values = {key: one.p_value for key, one in differences.items() if one.tested}
    return dict(zip(p_values, holm(list(p_values.values())), strict=True))


# Differences by the name of their row, and whether each holds among all of their family.
Tested = Mapping[str, tuple[Difference, bool]]


def tested(pairs: Mapping[str, tuple[Sample, Sample]]) -> Tested:
    """Test the difference of each pair, all pairs being one family."""
    found = {name: difference(*pair) for name, pair in pairs.items()}
    adjusted = _adjusted(found)
    return {name: (one, adjusted.get(name, 1.0) <= LEVEL) for name, one in found.items()}


def pooled_spread(samples: Iterable[Sample]) -> tuple[float, int]:
    """Return the pooled standard deviation over seeds, and its degrees of freedom, or (NaN, 0)."""
    known = [(v, len(one.values) - 1) for one in samples if (v := one.variance) is not None]
    freedom = sum(n for _, n in known)
    if not freedom:
        return math.nan, 0
    return math.sqrt(math.fsum(v * n for v, n in known) / freedom), freedom
