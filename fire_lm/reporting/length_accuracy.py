"""Accuracy by length on synthetic tasks: the lines of arms, and tables of their means."""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fire_lm.reporting.differences import Sample
from fire_lm.reporting.effective_length import SHARE, effective_table, of_accuracies
from fire_lm.reporting.page import Table
from fire_lm.reporting.seeds import Mean, at_step, mean
from fire_lm.reporting.verdicts import ACCURACY, Measured, difference_table, rankings, verdict
from fire_lm.results.folder import Results
from fire_lm.results.tables import LengthAccuracy, TrainedTask
from fire_lm.tasks.synthetic.guessing import MOST_FREQUENT, without_reading
from fire_lm.tasks.synthetic.scoring import mean_weights


@dataclasses.dataclass(frozen=True)
class AccuracyLine:
    """An arm's accuracy on a task.

    Attributes:
      name: The name of the arm, followed by its variant and evaluation positions, if any, and by
        the step if the lines of the task have several steps.
      max_length: The maximum length of the exercises in training.
      points: The mean accuracy over seeds, in percent, by length, in ascending order. Lengths that
        were not measured for every seed are omitted. Means over lengths have the weights of
        `mean_weights`.
      exercises: The numbers of exercises of each length; there are several if runs differ.
    """

    name: str
    max_length: int
    points: Mapping[int, Mean]
    exercises: frozenset[int]

    @property
    def runs(self) -> int:
        """The number of runs."""
        return max((point.runs for point in self.points.values()), default=0)

    @property
    def trained_lengths(self) -> list[int]:
        return [length for length in self.points if length <= self.max_length]

    @property
    def longer_lengths(self) -> list[int]:
        return [length for length in self.points if length > self.max_length]

    @property
    def trained(self) -> float | None:
        """The mean accuracy over training lengths, or None if none of them was measured."""
        return _mean_over(self.trained_lengths, self._values)

    @property
    def longer(self) -> float | None:
        return _mean_over(self.longer_lengths, self._values)

    @property
    def seeds(self) -> list[float]:
        """For each run, the mean accuracy, in percent, over lengths beyond `max_length`."""
        return list(self.sample(self.longer_lengths).values.values())

    def sample(self, lengths: Sequence[int]) -> Sample:
        """Return each run's mean over some lengths, which have different exercises."""
        if not lengths:
            return Sample({})
        runs = self.points[lengths[0]].by_run
        of_run = {
            run: {length: point.by_run[run] for length, point in self.points.items()}
            for run in runs
        }
        errors = [self.points[length].text_error for length in lengths]
        return Sample(
            {run: float(_mean_over(lengths, values) or 0.0) for run, values in of_run.items()},
            error=float(np.linalg.norm(mean_weights(lengths) * errors)),
        )

    @property
    def _values(self) -> dict[int, float]:
        return {length: point.value for length, point in self.points.items()}


def accuracy_lines(results: Results) -> dict[str, list[AccuracyLine]]:
    """Return the lines of each task and layout.

    The lines are in descending order of their mean accuracy beyond the training lengths or, if
    none of those was measured, over the training lengths. Lines that lack some of the longer
    lengths come last, because their means are not comparable.
    """
    trained = {one.run: one for one in results.tasks}
    steps: dict[tuple[str, str], set[int]] = {}
    for row in results.accuracies:
        if row.run in trained:
            steps.setdefault((row.task, row.layout), set()).add(row.step)
    groups: dict[str, dict[str, list[LengthAccuracy]]] = {}
    for row in results.accuracies:
        if row.run in trained:
            several = len(steps[row.task, row.layout]) > 1
            name = at_step(_name(trained[row.run], row), row.step, several)
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


def _name(run: TrainedTask, row: LengthAccuracy) -> str:
    other = f", trained on {run.task}" * (run.task != row.task)
    return line_name(run.name, row) + other


def line_name(arm: str, row: LengthAccuracy) -> str:
    what = [row.variant] * bool(row.variant)
    what += [f"positions {row.positions}"] * (row.positions != "plain")
    return f"{arm} ({', '.join(what)})" if what else arm


def _line(name: str, rows: Sequence[LengthAccuracy], max_length: int) -> AccuracyLine:
    runs = dict.fromkeys(row.run for row in rows)
    of_runs = [{row.length: row for row in rows if row.run == run} for run in runs]
    points = {
        length: mean(
            [of_run[length].accuracy for of_run in of_runs],
            [of_run[length].stderr for of_run in of_runs],
            list(runs),
        )
        for length in sorted(set.intersection(*(set(of_run) for of_run in of_runs)))
    }
    return AccuracyLine(name, max_length, points, frozenset(row.sequences for row in rows))


def _mean_over(lengths: Sequence[int], values: Mapping[int, float]) -> float | None:
    """Return the mean over all lengths from the first to the last, or None without lengths."""
    if not lengths:
        return None
    return float(mean_weights(lengths) @ [values[length] for length in lengths])


def accuracy_table(task: str, lines: Sequence[AccuracyLine]) -> Table:
    """Tabulate the accuracies of the lines of a task and layout.

    The columns are the mean over training lengths, the mean over longer lengths, and the accuracy
    at the longest length. A mean over other lengths than those of most lines states its lengths.
    """
    longest = max((length for line in lines for length in line.points), default=0)
    usual = [
        usual_lengths([line.trained_lengths for line in lines]),
        usual_lengths([line.longer_lengths for line in lines]),
    ]
    counts = {line.runs for line in lines}
    body = []
    for line in lines:
        spread = f" ± {statistics.stdev(line.seeds):.1f}" if len(line.seeds) > 1 else ""
        at_longest = line.points[longest].value if longest in line.points else None
        body.append(
            [
                line.name + f" ({line.runs} seeds)" * (len(counts) > 1 and line.runs > 1),
                _cell(line.trained) + other_lengths(line.trained_lengths, usual[0]),
                _cell(line.longer) + spread + other_lengths(line.longer_lengths, usual[1]),
                _cell(at_longest),
            ]
        )
    trained = sorted({line.max_length for line in lines})
    told = _guess(task, [("training", usual[0]), ("longer", usual[1])])
    seeds = "; means over seeds ± standard deviation" * any(len(one.seeds) > 1 for one in lines)
    exercises = sorted(frozenset.union(*(line.exercises for line in lines)))
    caption = (
        f"{task}, causal decoder: percentage of correct symbols in the answers, averaged over all "
        "lengths from the first to the last measured one, with linear interpolation; "
        f"{' or '.join(map(str, exercises))} exercises of each measured length; trained up to "
        f"length {' or '.join(map(str, trained))}{seeds}.{told}"
    )
    header = ["", "trained lengths", "longer lengths", f"length {longest}"]
    return Table(caption, header, body)


def accuracy_tables(task: str, lines: Sequence[AccuracyLine]) -> list[Table]:
    """Return the tables of a task: accuracies, their differences, and effective lengths."""
    caption = (
        f"Effective length on {task}: the largest measured length up to which the accuracy has not "
        f"fallen below {SHARE:.0%} of that at the training length."
    )
    trained = {line.name: line.max_length for line in lines}
    effective = effective_table(
        caption,
        {line.name: line.points for line in lines},
        lambda name, accuracies: of_accuracies(accuracies, trained[name]),
    )
    return [accuracy_table(task, lines), *accuracy_differences(lines), effective]


def measured_accuracies(lines: Sequence[AccuracyLine]) -> list[Measured]:
    """Return the means over training and over longer lengths for tests of differences.

    A line is omitted from a mean over other lengths than its own.
    """
    columns = []
    for side, own in (
        ("training", lambda line: line.trained_lengths),
        ("longer", lambda line: line.longer_lengths),
    ):
        usual = usual_lengths([own(line) for line in lines])
        samples = {line.name: line.sample(usual) for line in lines if tuple(own(line)) == usual}
        if usual:
            columns.append(Measured(f"over {side} lengths", samples))
    return columns


def usual_lengths(lengths: Sequence[Sequence[int]]) -> tuple[int, ...]:
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


def _guess(task: str, sides: Iterable[tuple[str, Sequence[int]]]) -> str:
    """Say what the best answer without reading scores over the lengths of each mean, if known."""
    means = {name: mean_of_guesses(task, lengths) for name, lengths in sides if lengths}
    told = [f"{value:.1f} % over {name} lengths" for name, value in means.items() if value]
    if not told:
        return ""
    return f" The best answer from length and place alone scores {' and '.join(told)}."


def guesses(task: str, lengths: Sequence[int]) -> dict[int, float]:
    """Return the accuracy in percent, by length, of the best answer from length and place alone.

    The result is {} if the accuracy is unknown; it is known for tasks with their default settings.
    """
    name = task.partition(",")[0]
    return {length: without_reading(name, length) for length in lengths if name in MOST_FREQUENT}


def mean_of_guesses(task: str, lengths: Sequence[int]) -> float | None:
    """Return the mean of `guesses` with the weights of a line's mean, or None if it is unknown."""
    return _mean_over(lengths, found) if (found := guesses(task, lengths)) else None


def accuracy_text(results: Results) -> str:
    """Format the verdict and the table of each task for the terminal."""
    blocks = []
    for task, lines in accuracy_lines(results).items():
        words = [*accuracy_verdict(lines), *accuracy_rankings(lines)]
        tables = accuracy_tables(task, lines)
        blocks.append("\n".join([*words, *(table.plain() for table in tables)]))
    return "\n\n".join(blocks)


def accuracy_verdict(lines: Sequence[AccuracyLine]) -> list[str]:
    return verdict(measured_accuracies(lines), ACCURACY)


def accuracy_differences(lines: Sequence[AccuracyLine]) -> list[Table]:
    """Return a list with the table of differences from the first line, or [] without tests."""
    measured = measured_accuracies(lines)
    heads = [one.place.removeprefix("over ") for one in measured]
    return difference_table(measured, heads, [line.name for line in lines], ACCURACY)


def accuracy_rankings(lines: Sequence[AccuracyLine]) -> list[str]:
    return rankings(measured_accuracies(lines), ACCURACY)
