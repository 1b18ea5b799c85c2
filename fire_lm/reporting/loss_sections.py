"""The sections of a report on losses: against length, by budget, by position and in training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from fire_lm.reporting import budget_figures, budget_tables, budgets, figure
from fire_lm.reporting.against import against
from fire_lm.reporting.length_sweep import (
    loss_picture,
    loss_rankings,
    loss_styles,
    loss_tables,
)
from fire_lm.reporting.losses import (
    Scored,
    described,
    differences,
    loss_lines,
    position_lines,
    rows_of,
    training_lines,
)
from fire_lm.reporting.page import Picture, Section, Table
from fire_lm.reporting.series import BITS, NATS, Scale, Series, lengths_of
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
        lines, scale = family.lines, family.scale
        rows = rows_of(family.results, family.scored)
        words = [described(rows, results.texts, family.apart), *other_steps(results, rows)]
        words += loss_rankings(lines, scale)
        styles = loss_styles(family.results)
        parts: list[Table | Picture] = [
            *loss_tables(lines, scale),
            loss_picture(family.title, lines, family.apart, styles),
        ]
        sections.append(Section(f"Loss against length: {family.title}", words, parts))
        if other:
            sections.append(_against(results, family.scored, *other))
    return sections


@dataclasses.dataclass(frozen=True)
class Family:
    """Lines that are compared with each other: those of one text and, of several budgets, of one.

    Attributes:
      title: The name of the text, with the budget if there are several.
      scored: The text.
      results: The results to which the lines belong.
      lines: The losses, in nats per token if they are comparable, else in bits per byte.
      apart: The difference that makes losses in nats per token incomparable, or "".
    """

    title: str
    scored: Scored
    results: Results
    lines: Sequence[Series]
    apart: str

    @property
    def scale(self) -> Scale:
        return BITS if self.apart else NATS


def families(results: Results, split: bool = True) -> list[Family]:
    """Return the families of lines; those of several budgets are together if `split` is False."""
    found, several = [], budgets.by_budget(results) if split else {}
    nats, bits = loss_lines(results), loss_lines(results, nats=False)
    for scored in nats:
        apart = differences(rows_of(results, scored), results.texts)
        own = several.get(scored)
        if own is None or not own.ended:
            lines = (bits if apart else nats)[scored]
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
            budget_figures.drift(scored, own, loss_styles(own.results)),
        ]
        sections.append(Section(f"Losses by budget: {scored}", words, parts))
    return sections


def _against(results: Results, scored: Scored, name: str, other: Results) -> Section:
    """Return a section that compares losses with those of other results called `name`.

    The losses are in nats per token if all rows are comparable, otherwise in bits per byte.
    """
    rows = [*rows_of(results, scored), *rows_of(other, scored)]
    apart = differences(rows, Texts([*results.scored, *other.scored]))
    ours, theirs = (loss_lines(one, nats=not apart).get(scored, []) for one in (results, other))
    table = against(ours, theirs, name, BITS if apart else NATS)
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


def positions(results: Results, styles: Mapping[str, figure.Style]) -> list[Picture]:
    """Draw loss by token position, as in Figures 2 and 3 of arXiv:2310.13017."""
    axis = figure.Axis("position in the sequence (tokens)", "loss (nats per token)", nats=True)
    trained = [run.train_length for run in results.runs]
    pictures = []
    for text, lines in position_lines(results).items():
        panel = figure.Panel("", lines, axis, errors="bands", trained=trained)
        caption = (
            f"Loss by position, {text}. Lines: means over sequences in bins of neighbouring "
            f"positions; bands: {figure.band(lines)}; {figure.dotted(trained)}."
        )
        alt = (
            f"Line chart of the mean loss by token position, {text}. "
            f"In the last bin: {figure.ends([panel], 2)}."
        )
        pictures.append(figure.picture(f"positions {text}", caption, alt, [panel], styles))
    return pictures


def training(results: Results, styles: Mapping[str, figure.Style]) -> list[Picture]:
    """Draw a picture of training losses for each combination of text and vocabulary."""
    pictures = []
    for number, lines in enumerate(training_lines(results), start=1):
        lowest = min(point.value for line in lines for point in line.points.values())
        start = max(next(iter(line.points.values())).value for line in lines)
        limits = 0.97 * lowest, max(1.05 * lowest, min(start, 2.2 * lowest))
        axis = figure.Axis("training tokens", "training loss (nats per token)", limits=limits)
        panel = figure.Panel("", lines, axis, errors="")
        cut = f"; losses above {limits[1]:.2f}, at the start of runs, are cut off"
        pictures.append(
            figure.picture(
                f"training_{number}" if number > 1 else "training",
                f"Training loss of individual batches, averaged over seeds, up to "
                f"{lengths_of(lines)[-1]:,.0f} tokens{cut * (start > limits[1])}.",
                f"Line chart of training loss against tokens. Last values: "
                f"{figure.ends([panel], 3)}.",
                [panel],
                styles,
            )
        )
    return pictures
