"""The sections of a report, and its HTML, Markdown, CSV, SVG and PNG files."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence

from etils import epath

from fire_lm.errors import UserError
from fire_lm.models import COLUMNS
from fire_lm.reporting import (
    accuracies,
    budget_sections,
    budgets,
    encoding_figures,
    length_sweep,
    loss_curves,
    measures,
    task_tables,
)
from fire_lm.reporting.page import Picture, Section, Table, as_html, as_markdown
from fire_lm.reporting.task_lines import suite_scores
from fire_lm.reporting.verdicts import Verdict
from fire_lm.results.folder import Results, RunFacts, holds_results, write_results


def write_report(
    folder: epath.Path, title: str, results: Results, other: tuple[str, Results] | None = None
) -> list[Section]:
    """Write all files of a report, and remove obsolete pictures of an earlier report in the folder.

    Losses are compared with those of `other`, the name and the results of another report. Other
    files in the folder are a UserError.
    """
    check_is_reports(folder)
    sections = report_sections(results, other)
    write_results(folder, results)
    budgets.write_rows(folder, results)
    write_page(folder, title, sections)
    return sections


def write_page(folder: epath.Path, title: str, sections: Sequence[Section]) -> None:
    """Write a page as HTML and Markdown, and its pictures; remove pictures of an earlier page."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = _with_own_names(sections)
    pictures = [part for s in sections for part in s.parts if isinstance(part, Picture)]
    for name in _drawn(folder) - {picture.name for picture in pictures}:
        for kind in ("svg", "png"):
            (folder / f"{name}.{kind}").unlink(missing_ok=True)
    for picture in pictures:
        (folder / f"{picture.name}.svg").write_text(picture.image.svg)
        (folder / f"{picture.name}.png").write_bytes(picture.image.png)
    (folder / _MARKDOWN).write_text(as_markdown(title, sections))
    (folder / "index.html").write_text(as_html(title, sections))


def _with_own_names(sections: Sequence[Section]) -> list[Section]:
    """Number the pictures of equal names, such as those of arms that differ in a sign alone."""
    taken: set[str] = set()

    def named(part: Table | Picture) -> Table | Picture:
        if isinstance(part, Table):
            return part
        numbered = (f"{part.name}_{number}" for number in itertools.count(2))
        name = next(name for name in itertools.chain([part.name], numbered) if name not in taken)
        taken.add(name)
        return dataclasses.replace(part, name=name)

    return [dataclasses.replace(one, parts=list(map(named, one.parts))) for one in sections]


def check_is_reports(folder: epath.Path) -> None:
    """Raise UserError if the folder contains files but no report."""
    ours = (folder / _MARKDOWN).exists() or holds_results(folder)
    if folder.exists() and any(folder.iterdir()) and not ours:
        raise UserError(
            f"{folder} contains other files, which a report might overwrite\n"
            "set --output to a new folder or to the folder of an earlier report"
        )


_MARKDOWN = "report.md"


def _drawn(folder: epath.Path) -> set[str]:
    """Return the names of the pictures in the folder's existing report, if there is one."""
    text = (folder / _MARKDOWN).read_text() if (folder / _MARKDOWN).exists() else ""
    return set(re.findall(r"\]\((\w+)\.svg\)", text))


def report_sections(results: Results, other: tuple[str, Results] | None = None) -> list[Section]:
    on_tasks = {task.run for task in results.tasks} | {model.run for model in results.models}
    on_text = bool(results.losses) or any(run.run not in on_tasks for run in results.runs)
    styles = length_sweep.loss_styles(results)
    positions = loss_curves.positions(results, styles)
    scalars, biases = encoding_figures.learned(results), encoding_figures.biases(results)
    scores = encoding_figures.scores(results)
    learned = [*scalars, *biases], _NO_LEARNED, encoding_figures.limit(results, scalars, biases)
    limit = encoding_figures.limit(results, scores)
    losses = [
        *length_sweep.sections(results, other),
        *budget_sections.sections(results),
        _section("Loss by position", positions, _NO_POSITIONS),
    ]
    interpolated = "Attention scores with and without position interpolation"
    return [
        *verdict_sections(results),
        _what_was_run(results),
        *kinds_of_layer(results),
        *accuracies.sections(results),
        *task_tables.sections(results),
        *measures.sections(results),
        *losses * on_text,
        _section("What the encodings learned", *learned),
        *[_section(interpolated, scores, _NO_SCORES, limit)] * on_text,
        _section("Training", loss_curves.training(results, styles), "No step has been logged yet."),
        _settings(results),
    ]


VERDICT = "What these runs tell"


def verdict_sections(results: Results) -> list[Section]:
    """Return the section on what is established in a list, or [] if nothing can be compared."""
    verdicts: list[Verdict] = []
    for family in length_sweep.families(results):
        verdicts += family.comparison.verdicts(family.title)
    for task, lines in accuracies.accuracy_lines(results).items():
        verdicts += accuracies.accuracy_comparison(lines).verdicts(task)
    for scores in suite_scores(results):
        compared = task_tables.score_comparison(scores)
        verdicts += compared.verdicts(task_tables.name_of(scores.suite))
    methods = list(dict.fromkeys(verdict.method for verdict in verdicts))
    return [Section(VERDICT, methods, [verdict.table for verdict in verdicts])] if verdicts else []


_NO_POSITIONS = "No loss by position has been computed yet: run `fire-lm sweep RUN`."
_NO_LEARNED = "None of these encodings learns a scalar or a bias, or no checkpoint was available."
_NO_SCORES = (
    "No scores under position interpolation: they need an encoding that can be interpolated (RoPE "
    "and ALiBi can), its checkpoint, and its text."
)


def _section(
    title: str, pictures: Sequence[Picture], otherwise: str, words: Sequence[str] = ()
) -> Section:
    """Return a section with `words` and `pictures`, or with `otherwise` if nothing is drawn."""
    return Section(title, words if pictures else [otherwise], pictures)


# The columns of the table of runs, as functions of each run.
_FACTS: dict[str, Callable[[RunFacts], str]] = {
    "seeds": lambda run: str(run.seed),
    "model": lambda run: run.model,
    "parameters": lambda run: f"{run.parameters:,}",
    "encoding parameters": lambda run: f"{run.encoding_parameters:,}",
    "trained at": lambda run: run.trained_at,
    "steps": lambda run: f"{run.step:,}" + f" of {run.train_steps:,}" * (not run.ended),
    "batch": lambda run: str(run.batch_size),
    "data": lambda run: run.data,
    "machine": lambda run: run.machine,
}


def _what_was_run(results: Results) -> Section:
    rows = [
        [
            arm,
            *(", ".join(dict.fromkeys(map(fact, runs))) for fact in _FACTS.values()),
            min((run.began for run in runs if run.began), default="not recorded"),
            f"{sum(run.seconds for run in runs) / 3600:.2f}",
        ]
        for arm, runs in results.arms().items()
    ]
    unfinished = [
        f"{run.run} ({run.step:,} of {run.train_steps:,})" for run in results.runs if not run.ended
    ]
    count, kinds = len(results.runs), len(rows)
    words = [
        f"{count} run{'s' * (count > 1)} of {kinds} kind{'s' * (kinds > 1)}; runs of a kind differ "
        "only in their seeds and in settings that do not affect results."
    ]
    if any(row.variant for row in results.losses) or any(r.variant for r in results.accuracies):
        words.append(
            "A name with a change in parentheses stands for the same runs, changed at evaluation."
        )
    if unfinished:
        words.append(f"Unfinished when this report was written: {', '.join(unfinished)}.")
    caption = "Hours are summed over all runs of a kind."
    runs = Table(caption, ["", *_FACTS, "started", "hours"], rows)
    return Section("What was run, and where", words, [runs])


def kinds_of_layer(results: Results) -> list[Section]:
    """Return the section on layers that differ in a list, or [] if no run has any."""
    first = {runs[0].run: arm for arm, runs in results.arms().items()}
    rows = [
        [first[row.run], row.layers, row.layer_encoding, row.options, row.sees, row.parameters_each]
        for row in results.layers
        if row.run in first
    ]
    caption = (
        "Layers are counted from 0. The last layer of a kind sees so many tokens, through the "
        "layers below it."
    )
    return [Section("Kinds of layer", [], [Table(caption, ["", *COLUMNS], rows)])] if rows else []


def _settings(results: Results) -> Section:
    """Return the section on settings, whose table has a column for each kind of run."""
    arms = results.arms()
    values = {(s.run, s.name): s.value for s in results.settings}
    rows = []
    for name in dict.fromkeys(setting.name for setting in results.settings):
        of_arms = (
            dict.fromkeys(values.get((r.run, name), "") for r in own) for own in arms.values()
        )
        rows.append([name, *(re.sub(r"\s+", " ", ", ".join(cells)) for cells in of_arms)])
    if not rows:
        return Section("Settings that differ", ["No settings differ."])
    table = Table("A blank means that this kind of run has no such setting.", ["", *arms], rows)
    return Section("Settings that differ", [], [table])
