"""The scores of models on text-to-text tasks, computed from the rows of selected checkpoints."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fire_lm.reporting.differences import Sample
from fire_lm.reporting.series import Series, grouped, points_of, sample_of
from fire_lm.reporting.task_columns import (
    Column,
    Model,
    columns_of,
    columns_of_average,
    in_order,
    models_of,
)
from fire_lm.results.folder import Results, RunFacts
from fire_lm.results.tables import TaskScore
from fire_lm.results.task_rows import steps_by_score
from fire_lm.tasks.suites import SUITES

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

    The points are means over seeds by `Column`, and the suite's average at `AVERAGE` if there is
    one and no column lacks a score. The name is that of the model and, in parentheses, the settings
    in which the line differs from others.

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
    history: Mapping[Column, Mapping[int, Sample]] = dataclasses.field(default_factory=dict)
    lacking: Sequence[Column] = ()


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
    rows = [r for r in results.task_scores if r.run in facts and (r.run, r.suite) in models]
    ranking = {run: _ranked(own) for run, own in grouped(rows, lambda row: row.run).items()}
    of_suite = grouped(rows, lambda row: row.suite)
    found = []
    for suite in [
        *(known for known in SUITES if known in of_suite),
        *sorted(of_suite.keys() - SUITES),
    ]:
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
    averaged = columns_of_average(suite, columns)
    models = models_of(placed, names, facts)
    settings = _settings(placed, models)
    lines = []
    for (model, setting), own in grouped(placed, lambda r: (models[r], settings[r])).items():
        own.sort(key=lambda row: (facts[row.run].seed, row.run))
        of_run = grouped(own, lambda row: row.run)
        steps = {run: _chosen(some, ranking[run]) for run, some in of_run.items()}
        of_column = grouped(own, lambda row: placed[row])
        shown = {
            column: {facts[row.run].seed: row for row in some if row.step == steps[row.run]}
            for column, some in of_column.items()
        }
        points: dict[Column | str, Sample] = {
            column: sample_of(seeds.values()) for column, seeds in shown.items() if seeds
        }
        lacking = [column for column in averaged if column not in points]
        if averaged and not lacking:
            points[AVERAGE] = _average([shown[column] for column in averaged])
        there = f"{len(averaged) - len(lacking)} of {len(averaged)}"
        lines.append(
            TaskLine(
                name=f"{model}{_setting_words(setting, set(settings.values()))}",
                points=points,
                arm=str(model),
                variant=setting.variant,
                missing={AVERAGE: there} if lacking else {},
                finetuned_on=model.finetuned_on,
                runs=[facts[run] for run in of_run],
                steps=steps,
                history={column: _history(some) for column, some in of_column.items()},
                lacking=lacking,
            )
        )
    return SuiteScores(suite, columns, averaged, sorted(lines, key=_rank), list(placed))


def _rank(line: TaskLine) -> tuple[bool, float, str]:
    """Return a key that sorts lines by their average, or else by their mean score, best first.

    Lines without a score in some column of the average come last.
    """
    shown = [line.points[AVERAGE]] if AVERAGE in line.points else line.points.values()
    return bool(line.lacking), -statistics.fmean(point.mean for point in shown), line.name


def _settings(
    placed: Mapping[TaskScore, Column], models: Mapping[TaskScore, Model]
) -> dict[TaskScore, Setting]:
    """Return the setting of each row; `models` has the model of each row.

    If rows of a model with the same column and setting differ in their lengths, these become part
    of the setting.
    """

    def plain(row: TaskScore) -> Setting:
        drawn = row.split.partition(", ")[2]
        return Setting(row.variant, row.decoding, row.truncation, drawn)

    found: dict[TaskScore, Setting] = {}
    for (_, setting), rows in grouped(placed, lambda row: (models[row], plain(row))).items():
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
    with_input = Counter(n for of_column in pairs for n in {given for given, _ in of_column})
    with_context = Counter(n for of_column in pairs for n in {total for _, total in of_column})
    found = {}
    for row, column in placed.items():
        given, context = row.input_length, row.context_length
        by_input = with_input[given] > with_context[context]
        others = lengths[column] - {(given, context)}
        same_input = any(given == other for other, _ in others)
        same_context = any(context == other for _, other in others)
        found[row] = dataclasses.replace(
            setting,
            input_length=given if by_input or same_context else None,
            context_length=context if not by_input or same_input else None,
        )
    return found


def _setting_words(setting: Setting, others: Iterable[Setting]) -> str:
    """Return, in parentheses, how a setting differs from the suite's other settings, or ""."""
    decodings, truncations = (
        {getattr(o, name) for o in others} for name in ("decoding", "truncation")
    )
    parts = [
        setting.variant,
        setting.decoding * (len(decodings) > 1),
        setting.truncation * (len(truncations) > 1),
        setting.drawn,
        f"inputs of {setting.input_length:,} tokens" if setting.input_length is not None else "",
        f"{setting.context_length:,} tokens" if setting.context_length is not None else "",
    ]
    words = ", ".join(filter(None, parts))
    return f" ({words})" if words else ""


def _chosen(rows: Sequence[TaskScore], ranking: Sequence[int]) -> int:
    """Return the step to show: among the steps with the most rows, the first in `ranking`."""
    counts = Counter(row.step for row in rows)
    return min(counts, key=lambda step: (-counts[step], ranking.index(step)))


def _average(columns: Sequence[Mapping[int, TaskScore]]) -> Sample:
    """Return the average of a suite from the row of each seed in all of its columns.

    If all columns have the same seeds, the average has a spread over seeds and, unless it is over
    lengths, which have the same examples, a standard error that treats data sets as independent.
    Otherwise it has neither.
    """
    names = [{row.run for row in seeds.values()} for seeds in columns]
    if len({tuple(seeds) for seeds in columns}) > 1:
        value = statistics.fmean(
            statistics.fmean(row.value for row in seeds.values()) for seeds in columns
        )
        return Sample({" + ".join(sorted(set().union(*names))): value})
    independent = len({row.task for seeds in columns for row in seeds.values()}) > 1
    values, errors = {}, []
    for seed in columns[0]:
        rows = [seeds[seed] for seeds in columns]
        values[" + ".join(sorted({row.run for row in rows}))] = statistics.fmean(
            row.value for row in rows
        )
        error = math.hypot(*(row.stderr for row in rows)) / len(rows)
        errors.append(error if independent else math.nan)
    return Sample(values, error=statistics.fmean(errors))


def _history(rows: Sequence[TaskScore]) -> dict[int, Sample]:
    """Return the mean over runs by step, at the steps that have the most runs."""
    points = points_of(rows, lambda row: row.step)
    most = max(Counter(row.step for row in rows).values())
    return {step: point for step, point in points.items() if point.runs == most}
