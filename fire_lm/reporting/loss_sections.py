"""The sections of a report on losses: against length, beside other results, and by budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fire_lm.reporting import budget_figures, budget_tables, budgets, figures
from fire_lm.reporting.against import against
from fire_lm.reporting.length_sweep import (
    described,
    difference_tables,
    differences,
    effective_lengths,
    loss_rankings,
    loss_table,
    rows_of,
)
from fire_lm.reporting.page import Picture, Section, Table
from fire_lm.reporting.seeds import Line, Scored, loss_lines
from fire_lm.results.folder import Results
from fire_lm.results.scored_text import Texts
from fire_lm.results.sweep_rows import SweepRow
from fire_lm.results.tables import LengthAccuracy

NO_SWEEP = "No length has been scored yet: run `fire-lm sweep RUN`."


def loss_sections(results: Results, other: tuple[str, Results] | None) -> list[Section]:
    """Return a section for each text and protocol, each followed by a comparison if possible.

    Losses are compared with those of `other`, if it is given. Without any losses, a single section
    says how to compute them.
    """
    found = families(results, split=other is None)
    if not found:
        return [Section("Loss against length", [NO_SWEEP])]
    sections = []
    for family in found:
        lines, nats = family.lines, not family.apart
        rows = rows_of(family.results, family.scored)
        words = [described(rows, results.texts, family.apart), *other_steps(results, rows)]
        words += loss_rankings(lines, nats)
        parts: list[Table | Picture] = [
            loss_table(lines, nats),
            *difference_tables(lines, nats),
            effective_lengths(lines, nats),
            figures.losses(family.results, family.title, lines, family.apart),
        ]
        sections.append(Section(f"Loss against length: {family.title}", words, parts))
        if other:
            sections.append(_against(results, lines, family.scored, *other))
    return sections


@dataclasses.dataclass(frozen=True)
class Family:
    """Lines that are compared with each other: those of one text and, of several budgets, of one.

    Attributes:
      title: The name of the text, with the budget if there are several.
      scored: The text.
      results: The results to which the lines belong.
      lines: The lines.
      apart: The difference that makes losses in nats per token incomparable, or "".
    """

    title: str
    scored: Scored
    results: Results
    lines: Sequence[Line]
    apart: str


def families(results: Results, split: bool = True) -> list[Family]:
    """Return the families of lines; those of several budgets are together if `split` is False."""
    found, several = [], budgets.by_budget(results) if split else {}
    for scored, lines in loss_lines(results).items():
        apart = differences(rows_of(results, scored), results.texts)
        own = several.get(scored)
        if own is None or not own.ended:
            found.append(Family(str(scored), scored, results, lines, apart))
            continue
        for tokens in own.tokens:
            title = f"{scored}, {budgets.tokens_in_words(tokens)} training tokens"
            found.append(Family(title, scored, own.results, own.lines(tokens), apart))
    return found


def budget_sections(results: Results) -> list[Section]:
    """Return a section for each text on which a series of arms has losses at several budgets."""
    sections = []
    for scored, own in budgets.by_budget(results).items():
        words = [*budget_tables.described(own), *budget_tables.drift_words(own)]
        parts: list[Table | Picture] = [
            *budget_tables.drift_tables(own),
            budget_figures.losses(scored, own),
            budget_figures.drift(scored, own),
        ]
        sections.append(Section(f"Losses by budget: {scored}", words, parts))
    return sections


def _against(
    results: Results, lines: Sequence[Line], scored: Scored, name: str, other: Results
) -> Section:
    """Return a section that compares losses with those of other results called `name`.

    The losses are in nats per token if all rows are comparable, otherwise in bits per byte.
    """
    rows = [*rows_of(results, scored), *rows_of(other, scored)]
    apart = differences(rows, Texts([*results.scored, *other.scored]))
    table = against(lines, loss_lines(other).get(scored, []), name, nats=not apart)
    words = [f"The runs differ in their {apart}: losses are in bits per byte only."] * bool(apart)
    if table is None:
        words = [f"{name} contains no losses of the same kinds of run on the same text."]
    return Section(f"Comparison with {name}: {scored}", words, [table] if table else [])


def other_steps(results: Results, rows: Sequence[SweepRow | LengthAccuracy]) -> list[str]:
    """Describe the rows that were scored before the newest step of their run."""
    last = {run.run: run.step for run in results.runs}
    steps = dict.fromkeys(
        (row.run, row.step) for row in rows if row.step < last.get(row.run, row.step)
    )
    told = [f"{run} at {step:,} of {last[run]:,}" for run, step in steps]
    return [f"Scored before the newest step of the run: {', '.join(told)}."] if told else []
