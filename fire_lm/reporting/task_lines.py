"""The scores of models on text-to-text tasks, computed from the rows of selected checkpoints."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from fire_lm.reporting.series import Mean, Series, mean
from fire_lm.reporting.task_columns import (
    Column,
    Model,
    columns_of,
    columns_of_average,
    has_lengths,
    in_order,
    models_of,
)
from fire_lm.results.folder import Results, RunFacts
from fire_lm.results.tables import TaskScore
from fire_lm.results.task_rows import steps_by_score
from fire_lm.tasks.metrics import Score
from fire_lm.tasks.suites import SUITES
from fire_lm.tasks.suites import Column as SuiteColumn

AVERAGE = "average"


@dataclasses.dataclass(frozen=True)
class Setting:
    """The evaluation settings that distinguish the lines of a model in the table of a suite.

    Attributes:
      variant: The change to the model that applies only at evaluation, or "".
      decoding: The method that produced the answers.
      truncation: The rule by which long inputs were truncated.
      drawn: A description of the sample of examples, such as "10 drawn", or "" for all examples.
      input_length: The maximum number of tokens of an input, or None if the other settings suffice
        to distinguish the rows.
      context_length: The maximum total number of tokens in an input and its answer, or None as for
        `input_length`.
    """

    variant: str
    decoding: str
    truncation: str
    drawn: str
    input_length: int | None = None
    context_length: int | None = None


@dataclasses.dataclass(frozen=True)
class TaskLine(Series):
    """The scores of a model on the tasks of a suite in one setting.

    The points are means over seeds by `Column`, and the suite's average at `AVERAGE`. The name is
    that of the model and, in parentheses, the settings in which the line differs from others.

    Attributes:
      finetuned_on: The task on which the runs were finetuned if it is not that of the columns,
        otherwise "". A mixture, which may contain that task, is given only if other runs of the
        model were finetuned on other tasks.
      runs: The runs whose scores are shown.
      steps: The step whose scores are shown, by run.
      history: The means over seeds, by column and step, at the steps with the most seeds.
      lacking: The columns of the suite's average that have no score.
    """

    finetuned_on: str = ""
    runs: Sequence[RunFacts] = ()
    steps: Mapping[str, int] = dataclasses.field(default_factory=dict)
    history: Mapping[Column, Mapping[int, Mean]] = dataclasses.field(default_factory=dict)
    lacking: Sequence[Column] = ()

    @property
    def average(self) -> Mean | None:
        """The suite's average, or None if there is none or one of its columns has no score."""
        return self.points.get(AVERAGE)


@dataclasses.dataclass(frozen=True)
class SuiteScores:
    """The scores of all models on the tasks of a suite.

    Attributes:
      suite: The name of the suite.
      columns: The columns in the order of the table.
      averaged: The columns whose mean is the average of the suite; empty if there is no average.
      lines: The lines of the table, best first.
      rows: The rows from which the lines were computed, at all steps.
    """

    suite: str
    columns: Sequence[Column]
    averaged: Sequence[Column]
    lines: Sequence[TaskLine]
    rows: Sequence[TaskScore]


def suite_scores(results: Results) -> list[SuiteScores]:
    """Return the scores of each suite, in the order of `SUITES`, followed by other suites."""
    facts = {run.run: run for run in results.runs}
    models = {(model.run, model.suite): model.name for model in results.models}
    of_run: dict[str, list[TaskScore]] = {}
    of_suite: dict[str, list[TaskScore]] = {}
    for row in results.task_scores:
        if row.run in facts and (row.run, row.suite) in models:
            of_run.setdefault(row.run, []).append(row)
            of_suite.setdefault(row.suite, []).append(row)
    ranking = {run: _ranked(rows) for run, rows in of_run.items()}
    order = {suite: place for place, suite in enumerate(SUITES)}
    found = []
    for suite in sorted(of_suite, key=lambda suite: (order.get(suite, len(order)), suite)):
        names = {run: models[run, suite] for run in facts if (run, suite) in models}
        found.append(_scores(suite, of_suite[suite], names, facts, ranking))
    return [scores for scores in found if scores.lines]


def _ranked(rows: Sequence[TaskScore]) -> list[int]:
    """Return the steps with a mean validation score, best first, then the others, newest first."""
    best = steps_by_score(rows)
    return [*best, *sorted({row.step for row in rows} - set(best), reverse=True)]


def _scores(
    suite: str,
    rows: Sequence[TaskScore],
    names: Mapping[str, str],
    facts: Mapping[str, RunFacts],
    ranking: Mapping[str, Sequence[int]],
) -> SuiteScores:
    placed = columns_of(suite, rows)
    columns = in_order(suite, placed.values())
    models = models_of(placed, names, facts)
    groups: dict[tuple[Model, Setting], list[TaskScore]] = {}
    for row, setting in _settings(placed, models).items():
        groups.setdefault((models[row], setting), []).append(row)
    settings = [setting for _, setting in groups]
    lines = _Lines(suite, placed, columns_of_average(suite, columns), facts, ranking)
    found = [
        lines.line(model, setting, _told(setting, settings), own)
        for (model, setting), own in groups.items()
    ]
    found.sort(key=_rank)
    return SuiteScores(suite, columns, lines.averaged, found, list(placed))


def _rank(line: TaskLine) -> tuple[bool, float, str]:
    """Return a key that sorts lines by their average, or else by their mean score, best first.

    Lines without a score in some column of the average come last.
    """
    shown = [line.average] if line.average else line.points.values()
    return bool(line.lacking), -statistics.fmean(point.value for point in shown), line.name


def _settings(
    placed: Mapping[TaskScore, Column], models: Mapping[TaskScore, Model]
) -> dict[TaskScore, Setting]:
    """Return the setting of each row; `models` has the model of each row.

    If rows of a model with the same column and setting differ in their lengths, these become part
    of the setting.
    """
    groups: dict[tuple[Model, Setting], list[TaskScore]] = {}
    for row in placed:
        drawn = row.split.partition(", ")[2]
        setting = Setting(row.variant, row.decoding, row.truncation, drawn)
        groups.setdefault((models[row], setting), []).append(row)
    found: dict[TaskScore, Setting] = {}
    for (_, setting), rows in groups.items():
        found |= _with_lengths(setting, {row: placed[row] for row in rows})
    return found


def _with_lengths(setting: Setting, placed: Mapping[TaskScore, Column]) -> dict[TaskScore, Setting]:
    """Return the setting of each row of a model, with a length if rows of a column differ in it.

    The length is the input length or the context length, whichever the row has in common with more
    columns: data sets with answers of different lengths are evaluated either at one input length or
    at one context length. If it does not distinguish the rows of a column, both are part of the
    setting.
    """
    lengths: dict[Column, set[tuple[int, int]]] = {}
    for row, column in placed.items():
        lengths.setdefault(column, set()).add((row.input_length, row.context_length))
    if all(len(of_column) == 1 for of_column in lengths.values()):
        return dict.fromkeys(placed, setting)
    pairs = lengths.values()
    columns_with_input = Counter(n for of in pairs for n in {given for given, _ in of})
    columns_with_context = Counter(n for of in pairs for n in {context for _, context in of})
    found = {}
    for row, column in placed.items():
        given, context = row.input_length, row.context_length
        by_input = columns_with_input[given] > columns_with_context[context]
        others = lengths[column] - {(given, context)}
        same_input = any(given == other for other, _ in others)
        same_context = any(context == other for _, other in others)
        found[row] = dataclasses.replace(
            setting,
            input_length=given if by_input or same_context else None,
            context_length=context if not by_input or same_input else None,
        )
    return found


def _told(setting: Setting, others: Sequence[Setting]) -> str:
    """Return, in parentheses, how a setting differs from the suite's other settings, or ""."""
    parts = [setting.variant] * bool(setting.variant)
    if len({other.decoding for other in others}) > 1:
        parts.append(setting.decoding)
    if len({other.truncation for other in others}) > 1:
        parts.append(setting.truncation)
    parts += [setting.drawn] * bool(setting.drawn)
    if setting.input_length is not None:
        parts.append(f"inputs of {setting.input_length:,} tokens")
    if setting.context_length is not None:
        parts.append(f"{setting.context_length:,} tokens")
    return f" ({', '.join(parts)})" if parts else ""


def _chosen(rows: Sequence[TaskScore], ranking: Sequence[int]) -> int:
    """Return the step to show: among the steps with the most rows, the first in `ranking`."""
    counts = {step: sum(row.step == step for row in rows) for step in {row.step for row in rows}}
    return min(counts, key=lambda step: (-counts[step], ranking.index(step)))


@dataclasses.dataclass(frozen=True)
class _Lines:
    """A factory for the lines of a suite.

    Attributes:
      suite: The name of the suite.
      placed: The column of each row.
      averaged: The columns of the suite's average.
      facts: The properties of each run.
      ranking: The steps of each run, best first.
    """

    suite: str
    placed: Mapping[TaskScore, Column]
    averaged: Sequence[Column]
    facts: Mapping[str, RunFacts]
    ranking: Mapping[str, Sequence[int]]

    def line(
        self, model: Model, setting: Setting, told: str, rows: Sequence[TaskScore]
    ) -> TaskLine:
        """Return the line for the rows of a model in one setting, which `told` describes."""
        of_run: dict[str, list[TaskScore]] = {}
        for row in sorted(rows, key=lambda row: (self.facts[row.run].seed, row.run)):
            of_run.setdefault(row.run, []).append(row)
        steps = {run: _chosen(own, self.ranking[run]) for run, own in of_run.items()}
        shown: dict[Column, dict[int, TaskScore]] = {}
        past: dict[Column, dict[int, list[TaskScore]]] = {}
        for row in (row for own in of_run.values() for row in own):
            column = self.placed[row]
            past.setdefault(column, {}).setdefault(row.step, []).append(row)
            if row.step == steps[row.run]:
                shown.setdefault(column, {})[self.facts[row.run].seed] = row
        points: dict[Column | str, Mean] = {
            column: _mean(list(seeds.values())) for column, seeds in shown.items()
        }
        lacking = [column for column in self.averaged if column not in shown]
        if self.averaged and not lacking:
            points[AVERAGE] = self._average(shown)
        there = f"{len(self.averaged) - len(lacking)} of {len(self.averaged)}"
        return TaskLine(
            name=f"{model}{told}",
            points=points,
            arm=str(model),
            variant=setting.variant,
            missing={AVERAGE: there} if lacking else {},
            finetuned_on=model.finetuned_on,
            runs=[self.facts[run] for run in of_run],
            steps=steps,
            history={column: _history(steps) for column, steps in past.items()},
            lacking=lacking,
        )

    def _average(self, shown: Mapping[Column, Mapping[int, TaskScore]]) -> Mean:
        """Return the average of a suite all of whose columns have scores.

        If all columns have the same seeds, the average has a spread over seeds and, unless it is
        over lengths, a standard error, which treats data sets as independent. Otherwise it has
        neither.
        """
        seeds = {tuple(shown[column]) for column in self.averaged}
        if len(seeds) == 1:
            rows = [
                {column: shown[column][seed] for column in self.averaged} for seed in seeds.pop()
            ]
            scores = [self._average_of(of_seed) for of_seed in rows]
            runs = [" + ".join(sorted({row.run for row in own.values()})) for own in rows]
            values = [score.value for score in scores]
            return mean(dict(zip(runs, values, strict=True)), [one.stderr for one in scores])
        means = [[row.value for row in shown[column].values()] for column in self.averaged]
        names = {row.run for column in self.averaged for row in shown[column].values()}
        value = statistics.fmean(map(statistics.fmean, means))
        return mean({" + ".join(sorted(names)): value}, [math.nan])

    def _average_of(self, rows: Mapping[Column, TaskScore]) -> Score:
        """Return the average over columns of the scores of one seed.

        All lengths have the same examples, so the standard error of an average over lengths is
        unknown.
        """
        known = SUITES[self.suite]
        if has_lengths(known):
            value = statistics.fmean(row.value for row in rows.values())
            return Score(value, math.nan, math.nan, math.nan, 0)
        return known.average(
            {
                SuiteColumn(c.title, c.task, c.split, c.metric): Score(
                    row.value, row.stderr, math.nan, math.nan, row.examples
                )
                for c, row in rows.items()
            }
        )


def _history(by_step: Mapping[int, Sequence[TaskScore]]) -> dict[int, Mean]:
    """Return the mean over runs by step, at the steps that have the most runs."""
    runs = max(map(len, by_step.values()))
    return {step: _mean(rows) for step, rows in sorted(by_step.items()) if len(rows) == runs}


def _mean(rows: Sequence[TaskScore]) -> Mean:
    return mean({row.run: row.value for row in rows}, [row.stderr for row in rows])
