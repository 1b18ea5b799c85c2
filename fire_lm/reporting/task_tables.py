"""The report's sections on text-to-text tasks, with all checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fire_lm.reporting.page import Picture, Section, Table
from fire_lm.reporting.seeds import Mean
from fire_lm.reporting.task_figures import by_step, curves
from fire_lm.reporting.task_lines import SuiteScores, suite_scores
from fire_lm.reporting.verdicts import SCORE, Measured, difference_table, rankings, verdict
from fire_lm.results.folder import Results
from fire_lm.results.task_rows import mean_scores


def sections(results: Results) -> list[Section]:
    """Return a section for each suite, and sections on checkpoints and on runs without scores."""
    found = suite_scores(results)
    made = []
    for scores in found:
        words = [_described(scores), *_missing(scores)]
        words += rankings(measured_scores(scores), SCORE)
        parts: list[Table | Picture] = [
            score_table(scores),
            *_differences(scores),
            *curves(scores),
            *by_step(scores),
        ]
        made.append(Section(f"Task scores: {name_of(scores.suite)}", words, parts))
    return [*made, *[_checkpoints(results, found)] * bool(made), *_unscored(results)]


def measured_scores(scores: SuiteScores) -> list[Measured]:
    """Return the suite's average or, if no two lines have one, its columns, for tests."""
    averages = {line.name: line.average.sample for line in scores.lines if line.average}
    if len(averages) > 1:
        return [Measured("on average", averages)]
    found = [
        (
            column,
            {line.name: one.sample for line in scores.lines if (one := line.scores.get(column))},
        )
        for column in scores.columns
    ]
    return [
        Measured(f"on {column.title}", samples) for column, samples in found if len(samples) > 1
    ]


def _differences(scores: SuiteScores) -> list[Table]:
    measured = measured_scores(scores)
    heads = [one.place.removeprefix("on ") for one in measured]
    return difference_table(measured, heads, [line.name for line in scores.lines], SCORE)


def score_verdict(scores: SuiteScores) -> list[str]:
    return verdict(measured_scores(scores), SCORE)


def _unscored(results: Results) -> list[Section]:
    """Return a list with a section on finetuned runs that have no scores yet, or []."""
    runs = {model.run for model in results.models} - {row.run for row in results.task_scores}
    if not runs:
        return []
    told = (
        f"No task has been scored yet for {', '.join(sorted(runs))}: run `fire-lm evaluate RUN@all "
        "--gin_file=configs/tasks/NAME.gin`."
    )
    return [Section("Task scores: missing", [told])]


def name_of(suite: str) -> str:
    return suite or "other tasks"


def _described(scores: SuiteScores) -> str:
    decodings = sorted({row.decoding for row in scores.rows})
    truncations = sorted({row.truncation for row in scores.rows})
    lengths = sorted({row.input_length for row in scores.rows})
    among = f"{lengths[0]:,}" if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,}"
    return (
        f"Decoding: {', '.join(decodings)}. Inputs have at most {among} tokens; longer ones are "
        f"truncated ({', '.join(truncations)}). Each run is shown at the checkpoint "
        "that is best on validation among those with the most scores."
    )


def _missing(scores: SuiteScores) -> list[str]:
    """Return a list with a sentence on the scores that averages lack, or [] if none is missing."""
    told = []
    for line in scores.lines:
        if line.missing:
            titles = [column.title for column in line.missing]
            several = "columns" if len(titles) > 1 else "column"
            told.append(f"{line.name} lacks the {several} {', '.join(titles)}")
    if not told:
        return []
    return [
        f"An average needs all {len(scores.averaged)} columns: {'; '.join(told)}. "
        "To add them, run `fire-lm evaluate` with the files in configs/tasks/."
    ]


def score_table(scores: SuiteScores) -> Table:
    """Tabulate the scores of each line, and mark the best in each column."""
    lines = scores.lines
    counts = {point.runs for line in lines for point in line.scores.values()}
    metrics = list(dict.fromkeys(column.metric for column in scores.columns))
    several = len(metrics) > 1
    heads = [
        f"{column.title} ({column.metric})" if several and column.metric != column.title
        else column.title
        for column in scores.columns
    ]  # fmt: skip
    rows: list[list[str]] = []
    for line in lines:
        cells = [_cell(line.scores.get(column), counts) for column in scores.columns]
        if scores.averaged:
            there = f"{len(scores.averaged) - len(line.missing)} of {len(scores.averaged)}"
            cells.append(_cell(line.average, counts) if line.average else there)
        rows.append([line.name, *cells])
    best: set[tuple[int, int]] = set()
    for place, column in enumerate(scores.columns, start=1):
        values = {
            row: line.scores[column].value
            for row, line in enumerate(lines)
            if column in line.scores
        }
        if len(values) > 1:
            top = max(values.values())
            best |= {(row, place) for row, value in values.items() if value == top}
    return Table(
        f"{_what(scores, metrics)}{_spread(counts)}.",
        ["", *heads, *["average"] * bool(scores.averaged)],
        rows,
        frozenset(best),
    )


def _what(scores: SuiteScores, metrics: Sequence[str]) -> str:
    by_length = any(column.length is not None for column in scores.columns)
    metric = f"{metrics[0]}, " if len(metrics) == 1 else ""
    return f"{name_of(scores.suite)}: {metric}percent{', by input length in tokens' * by_length}"


def _spread(counts: set[int]) -> str:
    """Describe the numbers that follow ± and those in parentheses in a table."""
    if counts == {1}:
        return ", ± standard error over examples; one run each"
    number = "; the number of seeds in parentheses" if len(counts) > 1 else ""
    return f", mean over seeds ± standard deviation{number}"


def _cell(point: Mean | None, counts: set[int]) -> str:
    """Format a cell with a mean, its error and the number of runs.

    In a table with means over several runs, the cell of a single run has no ±, because its error
    would be of a different kind.
    """
    if point is None:
        return ""
    error = point.text_error if counts == {1} else point.spread
    plus_minus = "" if error is None or math.isnan(error) else f" ± {error:.2f}"
    number = f" ({point.runs})" if len(counts) > 1 else ""
    return f"{point.value:.2f}{plus_minus}{number}"


def _checkpoints(results: Results, found: Sequence[SuiteScores]) -> Section:
    """Return the section on the validation scores by which checkpoints were chosen."""
    shown: dict[str, dict[int, None]] = {}
    for line in (line for scores in found for line in scores.lines):
        for run, step in line.steps.items():
            shown.setdefault(run, {})[step] = None
    means = {
        run: mean_scores([row for row in results.task_scores if row.run == run]) for run in shown
    }
    steps = sorted({step for of_run in means.values() for step in of_run})
    if not steps:
        return Section("Task scores by checkpoint", [_NO_VALIDATION, _steps_shown(shown)])
    rows: list[list[str]] = []
    best = set()
    for run in sorted(shown):
        of_run = means[run]
        if of_run:
            top = min(of_run, key=lambda step: (-of_run[step], step))
            best.add((len(rows), 2 + steps.index(top)))
        cells = [f"{of_run[step]:.2f}" if step in of_run else "" for step in steps]
        rows.append([run, ", ".join(f"{step:,}" for step in sorted(shown[run])), *cells])
    header = ["", "shown", *(f"{step:,}" for step in steps)]
    caption = (
        "Mean of the primary validation scores over a run's tasks and lengths, by step. The best "
        "step by the ranking of Checkpointing.keep_best is marked. The steps in the tables above "
        'are listed under "shown".'
    )
    words = "The best of several noisy scores is an optimistic estimate of the score on new data."
    return Section(
        "Task scores by checkpoint",
        [words] if len(steps) > 1 else [],
        [Table(caption, header, rows, frozenset(best))],
    )


_NO_VALIDATION = (
    "No checkpoint has scores on validation, so the newest of those with the most scores is shown."
)


def _steps_shown(shown: dict[str, dict[int, None]]) -> str:
    told = [f"{run} at {', '.join(f'{step:,}' for step in steps)}" for run, steps in shown.items()]
    return f"Shown: {'; '.join(told)}."
