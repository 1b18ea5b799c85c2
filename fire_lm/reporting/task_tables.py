"""The report's sections on text-to-text tasks: tables, figures, and all checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence

from fire_lm.reporting import figure
from fire_lm.reporting.page import Picture, Section, Table
from fire_lm.reporting.series import SCORE, Mean, have_spread, table
from fire_lm.reporting.task_columns import Column
from fire_lm.reporting.task_lines import AVERAGE, SuiteScores, TaskLine, suite_scores
from fire_lm.reporting.verdicts import (
    Measured,
    Verdict,
    difference_table,
    measured,
    rankings,
    verdicts,
)
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
            *_against(scores, "length", "input length (tokens)", lambda column: column.length),
            *_against(scores, "size", "size of the exercise", lambda column: column.size),
            *_by_step(scores),
        ]
        made.append(Section(f"Task scores: {name_of(scores.suite)}", words, parts))
    return [*made, *[_checkpoints(results, found)] * bool(made), *_unscored(results)]


def measured_scores(scores: SuiteScores) -> list[Measured]:
    """Return the suite's average or, if no two lines have one, its columns, for tests."""
    averages = measured(scores.lines, {AVERAGE: "on average"})
    if averages and len(averages[0].samples) > 1:
        return averages
    places: dict[Hashable, str] = {column: f"on {column.title}" for column in scores.columns}
    return [one for one in measured(scores.lines, places) if len(one.samples) > 1]


def _differences(scores: SuiteScores) -> list[Table]:
    columns = measured_scores(scores)
    heads = [one.place.removeprefix("on ") for one in columns]
    return difference_table(columns, heads, [line.name for line in scores.lines], SCORE)


def score_verdicts(scores: SuiteScores, title: str = "") -> list[Verdict]:
    return verdicts(measured_scores(scores), SCORE, title)


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
        if line.lacking:
            titles = [column.title for column in line.lacking]
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
    metrics = list(dict.fromkeys(column.metric for column in scores.columns))
    heads: dict[Hashable, str] = {
        column: f"{column.title} ({column.metric})"
        if len(metrics) > 1 and column.metric != column.title
        else column.title
        for column in scores.columns
    }
    if scores.averaged:
        heads[AVERAGE] = AVERAGE
    by_length = any(column.length is not None for column in scores.columns)
    metric = f"{metrics[0]}, " if len(metrics) == 1 else ""
    what = f"{metric}percent{', by input length in tokens' * by_length}"
    return table(scores.lines, heads, SCORE, f"{name_of(scores.suite)}: {what}")


def _against(
    scores: SuiteScores, what: str, label: str, value: Callable[[Column], int | None]
) -> list[Picture]:
    """Return a list with a picture of the tasks that have several x values, or [] if none has."""
    tasks: dict[str, dict[int, Column]] = {}
    for column in scores.columns:
        if (x := value(column)) is not None:
            title = column.task if what == "size" else f"{column.task}, {column.split}"
            tasks.setdefault(title, {})[x] = column
    marked = {run.train_length for line in scores.lines for run in line.runs}
    trained = sorted(marked) if what == "length" else []
    panels = []
    for title, columns in tasks.items():
        points = {
            line.name: {x: line.points[at] for x, at in columns.items() if at in line.points}
            for line in scores.lines
        }
        if len({x for of_line in points.values() for x in of_line}) > 1:
            metric = list(columns.values())[-1].metric
            panels.append(_panel(title, scores.lines, points, label, metric, trained))
    dotted = "; dotted: the training length" * bool(trained)
    caption = f"Scores against the {label}; bars: {_bars(panels)}{dotted}."
    return _picture(scores, f"by_{what}", caption, panels)


def _by_step(scores: SuiteScores) -> list[Picture]:
    """Draw scores against the step, with a panel for each column that has several steps."""
    panels = []
    for column in scores.columns:
        points = {line.name: line.history.get(column, {}) for line in scores.lines}
        if any(len(of_line) > 1 for of_line in points.values()):
            panels.append(_panel(column.title, scores.lines, points, "step", column.metric))
    caption = f"Scores of all evaluated checkpoints; bars: {_bars(panels)}."
    return _picture(scores, "by_step", caption, panels)


def _panel(
    title: str,
    lines: Sequence[TaskLine],
    points: Mapping[str, Mapping[int, Mean]],
    label: str,
    metric: str,
    trained: Sequence[int] = (),
) -> figure.Panel:
    series = [
        dataclasses.replace(line, points=dict(sorted(points[line.name].items())))
        for line in lines
        if points[line.name]
    ]
    negative = any(point.value < 0 for one in series for point in one.points.values())
    within = (-100.0 if negative else -5.0, 105.0)  # a deviation may extend beyond 0 and 100 %
    axis = figure.Axis(label, f"{metric} (%)", lengths=label != "step", within=within)
    return figure.Panel(title, series, axis, trained=trained)


def _picture(
    scores: SuiteScores, name: str, caption: str, panels: Sequence[figure.Panel]
) -> list[Picture]:
    if not panels:
        return []
    styles = figure.line_styles(scores.lines)
    alt = f"Line charts of task scores. Last values: {figure.ends(panels, 1)}."
    return [figure.picture(f"{scores.suite or 'task'}_{name}", caption, alt, panels, styles)]


def _bars(panels: Sequence[figure.Panel]) -> str:
    kinds = {have_spread(panel.series) for panel in panels}
    if kinds == {False}:
        return "standard error over examples, one run each"
    return "standard deviation over seeds" + ", or standard error over examples" * (len(kinds) > 1)


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
