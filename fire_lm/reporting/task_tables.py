"""The report's sections on text-to-text tasks: tables, figures, and all checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

from fire_lm.reporting import figure
from fire_lm.reporting.differences import Sample
from fire_lm.reporting.page import Picture, Section, Table
from fire_lm.reporting.series import SCORE, grouped, spread_of, table
from fire_lm.reporting.task_lines import AVERAGE, SuiteScores, suite_scores
from fire_lm.reporting.verdicts import Comparison
from fire_lm.results.folder import Results
from fire_lm.results.task_rows import mean_scores


def sections(results: Results) -> list[Section]:
    """Return a section for each suite, and sections on checkpoints and on runs without scores."""
    found = suite_scores(results)
    made = []
    for scores in found:
        compared = score_comparison(scores)
        words = [_described(scores), *_missing(scores), *compared.rankings()]
        tables = [score_table(scores), *compared.difference_tables()]
        title = f"Task scores: {name_of(scores.suite)}"
        made.append(Section(title, words, [*tables, *_pictures(scores)]))
    if found:
        made.append(_checkpoints(results, found))
    unscored = {model.run for model in results.models} - {row.run for row in results.task_scores}
    if unscored:
        how_to_score = (
            f"No task has been scored yet for {', '.join(sorted(unscored))}: run `fire-lm evaluate "
            "RUN@all --gin_file=configs/tasks/NAME.gin`."
        )
        made.append(Section("Task scores: missing", [how_to_score]))
    return made


def score_comparison(scores: SuiteScores) -> Comparison:
    """Return the suite's average or, if no two lines have one, its columns, for tests."""
    lines = scores.lines
    if sum(AVERAGE in line.points for line in lines) > 1:
        return Comparison(lines, {AVERAGE: "on average"}, SCORE)
    several = [c for c in scores.columns if sum(c in line.points for line in lines) > 1]
    return Comparison(lines, {column: f"on {column.title}" for column in several}, SCORE)


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
    incomplete = [
        f"{line.name} lacks the column{'s' * (len(line.lacking) > 1)} "
        + ", ".join(column.title for column in line.lacking)
        for line in scores.lines
        if line.lacking
    ]
    if not incomplete:
        return []
    return [
        f"An average needs all {len(scores.averaged)} columns: {'; '.join(incomplete)}. "
        "To add them, run `fire-lm evaluate` with the files in configs/tasks/."
    ]


def score_table(scores: SuiteScores) -> Table:
    """Tabulate the scores of each line, and mark the best in each column."""
    metrics = list(dict.fromkeys(column.metric for column in scores.columns))
    heads: dict[Hashable, str] = {
        column: column.title
        + f" ({column.metric})" * (len(metrics) > 1 and column.metric != column.title)
        for column in scores.columns
    }
    if scores.averaged:
        heads[AVERAGE] = AVERAGE
    by_length = any(column.length is not None for column in scores.columns)
    metric = f"{metrics[0]}, " if len(metrics) == 1 else ""
    what = f"{metric}percent{', by input length in tokens' * by_length}"
    return table(scores.lines, heads, SCORE, f"{name_of(scores.suite)}: {what}")


# The points of each line at the x values of a panel.
_Curves = Mapping[str, Mapping[int, Sample]]


def _pictures(scores: SuiteScores) -> list[Picture]:
    """Draw scores by the length and the size of inputs, and by the step of the checkpoint."""
    lines, columns = scores.lines, scores.columns
    lengths = grouped((c for c in columns if c.length), lambda c: f"{c.task}, {c.split}")
    sizes = grouped((c for c in columns if c.size), lambda c: c.task)
    by_length, by_size = (
        {
            (title, own[-1].metric): {
                line.name: {x(c) or 0: line.points[c] for c in own if c in line.points}
                for line in lines
            }
            for title, own in groups.items()
        }
        for groups, x in ((lengths, lambda c: c.length), (sizes, lambda c: c.size))
    )
    by_step = {
        (column.title, column.metric): {line.name: line.history.get(column, {}) for line in lines}
        for column in columns
    }
    trained = sorted({run.train_length for line in lines for run in line.runs})
    return [
        *_picture(scores, "length", "input length (tokens)", by_length, trained),
        *_picture(scores, "size", "size of the exercise", by_size),
        *_picture(scores, "step", "step", by_step),
    ]


def _picture(
    scores: SuiteScores,
    name: str,
    label: str,
    curves: Mapping[tuple[str, str], _Curves],
    trained: Sequence[int] = (),
) -> list[Picture]:
    """Return a list with a picture of the panels in which a line has several points, or []."""
    panels = []
    for (title, metric), points in curves.items():
        if any(len(of_line) > 1 for of_line in points.values()):
            series = [
                dataclasses.replace(line, points=dict(sorted(points[line.name].items())))
                for line in scores.lines
                if points[line.name]
            ]
            negative = any(point.mean < 0 for one in series for point in one.points.values())
            within = (-100.0 if negative else -5.0, 105.0)  # errors may extend beyond 0 and 100 %
            axis = figure.Axis(label, f"{metric} (%)", lengths=name != "step", within=within)
            panels.append(figure.Panel(title, series, axis, trained=trained))
    if not panels:
        return []
    bars = spread_of((one for panel in panels for one in panel.series), "examples")
    dotted = "; dotted: the training length" * bool(trained)
    return [
        figure.picture(
            f"{scores.suite or 'task'}_by_{name}",
            f"Scores against the {label}; bars: {bars}{dotted}.",
            f"Line charts of task scores. Last values: {figure.ends(panels, 1)}.",
            panels,
            figure.line_styles(scores.lines),
        )
    ]


def _checkpoints(results: Results, found: Sequence[SuiteScores]) -> Section:
    """Return the section on the validation scores by which checkpoints were chosen."""
    title = "Task scores by checkpoint"
    pairs = (pair for scores in found for line in scores.lines for pair in line.steps.items())
    of_runs = grouped(dict.fromkeys(pairs), lambda pair: pair[0])
    shown = {
        run: ", ".join(f"{step:,}" for _, step in sorted(of_run)) for run, of_run in of_runs.items()
    }
    rows_of = grouped(results.task_scores, lambda row: row.run)
    means = {run: mean_scores(rows_of[run]) for run in shown}
    steps = sorted({step for of_run in means.values() for step in of_run})
    if not steps:
        words = (
            "No checkpoint has scores on validation, so the newest of those with the most scores "
            "is shown."
        )
        at = "; ".join(f"{run} at {of_run}" for run, of_run in shown.items())
        return Section(title, [words, f"Shown: {at}."])
    rows: list[list[str]] = []
    best = set()
    for run, of_run in sorted(shown.items()):
        if means[run]:
            top = min(means[run], key=lambda step: (-means[run][step], step))
            best.add((len(rows), 2 + steps.index(top)))
        cells = [f"{means[run][step]:.2f}" if step in means[run] else "" for step in steps]
        rows.append([run, of_run, *cells])
    caption = (
        "Mean of the primary validation scores over a run's tasks and lengths, by step. The best "
        "step by the ranking of Checkpointing.keep_best is marked. The steps in the tables above "
        'are listed under "shown".'
    )
    words = "The best of several noisy scores is an optimistic estimate of the score on new data."
    header = ["", "shown", *(f"{step:,}" for step in steps)]
    of_steps = Table(caption, header, rows, frozenset(best))
    return Section(title, [words] * (len(steps) > 1), [of_steps])
