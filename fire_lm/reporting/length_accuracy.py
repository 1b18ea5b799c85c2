"""Accuracy by length on synthetic tasks: the lines of arms, and tables of their means."""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from fire_lm.reporting.page import Table
from fire_lm.reporting.seeds import Mean, at_step, mean
from fire_lm.results.folder import Results
from fire_lm.results.tables import LengthAccuracy
from fire_lm.tasks.synthetic.scoring import MOST_FREQUENT


@dataclasses.dataclass(frozen=True)
class AccuracyLine:
    """An arm's accuracy on a task.

    Attributes:
      name: The name of the arm, followed by its variant and evaluation positions, if any, and by
        the step if the runs of an arm have rows of several steps.
      max_length: The maximum length of the exercises in training.
      points: The mean accuracy over seeds, in percent, by length.
      shared: The lengths that were measured for every seed, in ascending order. Only these lengths
        are averaged.
      seeds: For each seed, the mean accuracy, in percent, over lengths beyond `max_length`.
    """

    name: str
    max_length: int
    points: Mapping[int, Mean]
    shared: Sequence[int]
    seeds: Sequence[float]

    @property
    def trained_lengths(self) -> list[int]:
        return [length for length in self.shared if length <= self.max_length]

    @property
    def longer_lengths(self) -> list[int]:
        return [length for length in self.shared if length > self.max_length]

    @property
    def trained(self) -> float | None:
        """The mean accuracy over training lengths, or None if none of them was measured."""
        return _mean_of([self.points[length].value for length in self.trained_lengths])

    @property
    def longer(self) -> float | None:
        return _mean_of([self.points[length].value for length in self.longer_lengths])


def accuracy_lines(results: Results) -> dict[str, list[AccuracyLine]]:
    """Return the lines of each task and layout.

    The lines are in descending order of their mean accuracy beyond the training lengths or, if
    none of those was measured, over the training lengths. Lines that lack some of the longer
    lengths come last, because their means are not comparable.
    """
    trained = {one.run: one for one in results.tasks}
    steps: dict[tuple[str, str, str], set[int]] = {}
    for row in results.accuracies:
        if row.run in trained:
            key = (row.task, row.layout, trained[row.run].name)
            steps.setdefault(key, set()).add(row.step)
    several = any(len(of_arm) > 1 for of_arm in steps.values())
    groups: dict[str, dict[str, list[LengthAccuracy]]] = {}
    for row in results.accuracies:
        if row.run in trained:
            name = at_step(line_name(trained[row.run].name, row), row.step, several)
            groups.setdefault(f"{row.task}, {row.layout}", {}).setdefault(name, []).append(row)
    return {
        task: _in_order(
            [_line(name, rows, trained[rows[0].run].max_length) for name, rows in lines.items()]
        )
        for task, lines in sorted(groups.items())
    }


def _in_order(lines: Sequence[AccuracyLine]) -> list[AccuracyLine]:
    most = max(len(line.longer_lengths) for line in lines)

    def rank(line: AccuracyLine) -> tuple[bool, float]:
        found = line.trained or 0 if line.longer is None else line.longer
        return len(line.longer_lengths) < most, -found

    return sorted(lines, key=rank)


def line_name(arm: str, row: LengthAccuracy) -> str:
    what = [row.variant] * bool(row.variant)
    what += [f"positions {row.positions}"] * (row.positions != "plain")
    return f"{arm} ({', '.join(what)})" if what else arm


def _line(name: str, rows: Sequence[LengthAccuracy], max_length: int) -> AccuracyLine:
    lengths = sorted({row.length for row in rows})
    runs = dict.fromkeys(row.run for row in rows)
    points = {}
    for length in lengths:
        of_length = [row for row in rows if row.length == length]
        values, error = [row.accuracy for row in of_length], of_length[0].stderr
        points[length] = mean(values, error)
    of_runs = [{row.length: row.accuracy for row in rows if row.run == run} for run in runs]
    shared = sorted(set.intersection(*(set(of_run) for of_run in of_runs)))
    longer = [
        _mean_of([of_run[length] for length in shared if length > max_length]) for of_run in of_runs
    ]
    seeds = [value for value in longer if value is not None]
    return AccuracyLine(name, max_length, points, shared, seeds)


def _mean_of(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def accuracy_table(task: str, lines: Sequence[AccuracyLine]) -> Table:
    """Tabulate the accuracies of the lines of a task and layout.

    The columns are the mean over training lengths, the mean over longer lengths, and the accuracy
    at the longest length. A mean over other lengths than those of most lines states its lengths.
    """
    longest = max(length for line in lines for length in line.points)
    usual = [
        usual_lengths([line.trained_lengths for line in lines]),
        usual_lengths([line.longer_lengths for line in lines]),
    ]
    body = []
    for line in lines:
        spread = f" ± {statistics.stdev(line.seeds):.1f}" if len(line.seeds) > 1 else ""
        at_longest = line.points[longest].value if longest in line.points else None
        body.append(
            [
                line.name,
                _cell(line.trained) + other_lengths(line.trained_lengths, usual[0]),
                _cell(line.longer) + spread + other_lengths(line.longer_lengths, usual[1]),
                _cell(at_longest),
            ]
        )
    trained = sorted({line.max_length for line in lines})
    frequent = most_frequent(task)
    told = "" if frequent is None else f" The most frequent symbol alone scores {frequent:g} %."
    seeds = "; means over seeds ± standard deviation" * any(len(one.seeds) > 1 for one in lines)
    caption = (
        f"{task}, causal decoder: percentage of correct symbols in the answers, averaged over the "
        f"measured lengths; trained up to length {' or '.join(map(str, trained))}{seeds}.{told}"
    )
    header = ["", "trained lengths", "longer lengths", f"length {longest}"]
    return Table(caption, header, body)


def usual_lengths(lengths: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return the lengths that most lines have, among the lines that have any."""
    counts = collections.Counter(tuple(one) for one in lengths if one)
    return counts.most_common(1)[0][0] if counts else ()


def other_lengths(lengths: Sequence[int], usual: Sequence[int]) -> str:
    """Return, in parentheses, the lengths of a mean if they are not the usual ones, or ""."""
    if not lengths or tuple(lengths) == tuple(usual):
        return ""
    if len(lengths) == 1:
        return f" (length {lengths[0]})"
    return f" ({len(lengths)} lengths, {lengths[0]} to {lengths[-1]})"


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def most_frequent(task: str) -> float | None:
    """Return the accuracy of always giving the most frequent symbol, or None if it is unknown.

    The accuracy is known only for tasks with their default settings.
    """
    return MOST_FREQUENT.get(task.partition(",")[0])


def accuracy_text(results: Results) -> str:
    """Format the accuracy tables of all tasks for the terminal."""
    found = accuracy_lines(results)
    return "\n\n".join(accuracy_table(task, lines).plain() for task, lines in found.items())
