"""Losses against length as tables, text and figures, for sweeps, grids and reports.

Each combination of text and protocol has its tables and a panel of the figure. Runs that differ
only in their seeds share one line.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from etils import epath

from fire_lm.reporting import budgets, charts, figure
from fire_lm.reporting.differences import Sample, tested, text_alone
from fire_lm.reporting.effective_length import MARGIN_NATS, effective_table, of_losses
from fire_lm.reporting.loss_curves import position_lines
from fire_lm.reporting.losses import (
    Scored,
    differences,
    loss_lines,
    other_steps,
    rows_of,
    scored_in,
    text_description,
)
from fire_lm.reporting.page import Picture, Section, Table
from fire_lm.reporting.series import (
    BITS,
    NATS,
    Scale,
    Series,
    at_step,
    length_heads,
    lengths_of,
    spread_of,
    table,
)
from fire_lm.reporting.verdicts import Comparison, length_comparison, reference_at, tested_table
from fire_lm.results.folder import Results
from fire_lm.results.scored_text import Texts
from fire_lm.results.sweep_rows import SweepRow

NO_SWEEP = "No length has been scored yet: run `fire-lm sweep RUN`."


@dataclasses.dataclass(frozen=True)
class Family:
    """Lines that are compared with each other: those of one text and, of several budgets, of one.

    Attributes:
      title: The name of the text, with the budget if there are several.
      scored: The text.
      results: The results to which the lines belong.
      lines: The losses, in nats per token if they are comparable, else in bits per byte.
      apart: The difference that makes losses in nats per token incomparable, or "".
      of_budgets: The budgets of the text if the lines are those of one of them, or None.
    """

    title: str
    scored: Scored
    results: Results
    lines: Sequence[Series]
    apart: str
    of_budgets: budgets.Budgets | None = None

    @property
    def scale(self) -> Scale:
        return BITS if self.apart else NATS

    @property
    def comparison(self) -> Comparison:
        return loss_comparison(self.lines, self.scale)

    @property
    def styles(self) -> dict[str, figure.Style]:
        points = self.of_budgets.points if self.of_budgets else ()
        return loss_styles(self.results, points)

    @property
    def rows(self) -> list[SweepRow]:
        return rows_of(self.results, self.scored)

    def described(self) -> str:
        text = text_description(self.rows, self.results.texts, self.apart)
        omission = self.of_budgets.omission if self.of_budgets else ""
        return f"{text} {omission}".rstrip()

    def tables(self) -> list[Table]:
        """Return the tables of losses, of their differences, and of effective lengths."""
        both = self.lines, self.scale
        return [loss_table(*both), *difference_tables(*both), effective_lengths(*both)]


def families(results: Results, split: bool = True) -> list[Family]:
    """Return the families of lines; those of several budgets are together if `split` is False."""
    families_of_texts, several = [], budgets.by_budget(results) if split else {}
    nats, bits = loss_lines(results), loss_lines(results, nats=False)
    for scored in nats:
        apart = differences(rows_of(results, scored), results.texts)
        own = several.get(scored)
        if own is None or not own.ended:
            lines = (bits if apart else nats)[scored]
            families_of_texts.append(Family(str(scored), scored, results, lines, apart))
            continue
        apart = differences(rows_of(own.results, scored), results.texts)  # of the runs that ended
        for tokens in own.tokens:
            title = f"{scored}, {budgets.tokens_in_words(tokens)} training tokens"
            points = own.at(tokens)
            families_of_texts.append(Family(title, scored, own.results, points, apart, own))
    return families_of_texts


def sweep_text(results: Results) -> str:
    """Format a description, a verdict and the tables of each scored text for the terminal."""
    blocks, bits = [], loss_lines(results, nats=False)
    for family in families(results, split=False):
        in_bits = [loss_table(bits[family.scored], BITS)] * (not family.apart)
        words, tables = family.comparison.words_and_tables([*family.tables(), *in_bits])
        text = "\n".join([str(family.scored), family.described(), *words])
        blocks += [text, *(table.plain() for table in tables)]
    for scored in dict.fromkeys(map(scored_in, results.losses)):
        if scored not in bits:  # the text is too short for all lengths
            text = text_description(rows_of(results, scored), results.texts, "")
            blocks.append(f"{scored}\n{text}")
    return "\n\n".join(blocks)


def sections(results: Results, other: tuple[str, Results] | None) -> list[Section]:
    """Return a section for each text and protocol, each followed by a comparison if possible.

    Losses are compared with those of `other`, if it is given. Without any losses, a single section
    says how to compute them.
    """
    sections_of_families = []
    for family in families(results, split=other is None):
        words = [
            family.described(),
            *other_steps(results, family.rows),
            *family.comparison.rankings(),
        ]
        title = f"Loss against length: {family.title}"
        sections_of_families.append(Section(title, words, [*family.tables(), loss_picture(family)]))
        if other:
            sections_of_families.append(_against(results, family.scored, *other))
    return sections_of_families or [Section("Loss against length", [NO_SWEEP])]


def loss_table(lines: Sequence[Series], scale: Scale) -> Table:
    lengths = sorted({length for line in lines for length in (*line.points, *line.missing)})
    return table(lines, length_heads(lines, lengths), scale)


def loss_comparison(lines: Sequence[Series], scale: Scale) -> Comparison:
    """Return the losses at each length for tests of differences."""
    unit = 1.0 if scale is NATS else 1 / math.log(2)
    references = {
        n: unit * max(reference_at(n / line.train_length) for line in lines if n in line.points)
        for n in lengths_of(lines)
    }
    return length_comparison(lines, scale, references)


def difference_tables(lines: Sequence[Series], scale: Scale) -> list[Table]:
    """Return a table of differences from the first line, and one of their errors over text alone.

    The first line of `lines` must be the line that is best at the longest length. The first table
    is omitted if no difference can be tested, and the second if the text is not recorded.
    """
    best, *others = lines
    heads = length_heads(lines, lengths_of(lines))
    cells = {
        (line.name, length): f"{mine.mean - theirs.mean:+.3f} ± {error:.3f}"
        for line in others
        for length, mine in line.points.items()
        if (theirs := best.points.get(length)) and (error := text_alone(mine, theirs)) is not None
    }
    caption = (
        f"Not for comparing encodings, but to judge whether the text is long enough: {scale.unit} "
        f"above {best.name}, ± standard error of the difference over the rows of the common text "
        "alone. This error does not contain the variation between seeds, so another seed may give "
        "another sign."
    )
    body = [[line.name, *(cells.get((line.name, n), "") for n in heads)] for line in others]
    alone = [Table(caption, ["", *heads.values()], body)] * bool(cells)
    return [*loss_comparison(lines, scale).difference_tables(), *alone]


def effective_lengths(lines: Sequence[Series], scale: Scale) -> Table:
    """Tabulate the largest length up to which each loss stays near its minimum."""
    margin = MARGIN_NATS if scale is NATS else MARGIN_NATS / math.log(2)
    caption = (
        f"Effective length: the largest measured length up to which the loss has not risen by more "
        f"than {margin:.2f} {scale.unit} over its minimum."
    )
    return effective_table(caption, lines, lambda _, losses: of_losses(losses, margin))


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


def against(
    lines: Sequence[Series], others: Sequence[Series], name: str, scale: Scale
) -> Table | None:
    """Tabulate the differences between our losses and those of another report called `name`.

    Each line is compared with the line of the same name in `others`. If there is no such line and
    `others` contains only one line, the comparison is with that line. The result is None if no
    line can be compared.
    """
    by_name = {line.name: line for line in others}
    pairs = [
        (f"{line.name} - {other.name}", line.points, other.points)
        for line in lines
        if (other := by_name.get(line.name) or (others[0] if len(others) == 1 else None))
    ]
    lengths = lengths_of(lines)
    columns = [
        tested(
            {
                row: (mine[n], _renamed(theirs[n], mine[n], name))
                for row, mine, theirs in pairs
                if n in mine and n in theirs
            }
        )
        for n in lengths
    ]
    if not any(columns):
        return None
    caption = f"Difference from {name} ({scale.unit}), negative where our loss is lower"
    return tested_table(caption, [*map(str, lengths)], columns, [row for row, *_ in pairs], scale)


def _renamed(their: Sample, mine: Sample, source: str) -> Sample:
    """Return a sample of another report, whose runs keep their names only if they are ours."""
    names = {
        run: run if mine.values.get(run) == value else f"{run} of {source}"
        for run, value in their.values.items()
    }
    return dataclasses.replace(
        their,
        values={names[run]: value for run, value in their.values.items()},
        sums_R={names[run]: sums_R for run, sums_R in their.sums_R.items()},
    )


def loss_styles(results: Results, points: Sequence[Series] = ()) -> dict[str, figure.Style]:
    """Return the style of each series of losses, which is the same in all figures of a report.

    `points` has those of the budgets of `results`, whose names lack the step.
    """
    of_all = [*loss_lines(results, nats=False).values(), *position_lines(results).values()]
    series = (line for lines in of_all for line in lines)
    return figure.line_styles([*series, *points], sorted(results.arms()))


def loss_panel(family: Family) -> figure.Panel:
    """Return a panel of loss against length.

    Its title explains the error bars, because a PNG has no caption.
    """
    apart, lines = family.apart, family.lines
    unit = "bits per byte" if apart else "log perplexity (nats per token)"
    axis = figure.Axis("sequence length (tokens)", unit, lengths=True, nats=not apart)
    title = f"{family.title}{'; different ' * bool(apart)}{apart}\nbars: {spread_of(lines)}"
    return figure.Panel(title, lines, axis, trained=[line.train_length for line in lines])


def loss_picture(family: Family) -> Picture:
    """Draw loss against length, as in Figures 1, 2, 6 and 7 of the FIRE paper."""
    title, lines, lengths = family.title, family.lines, lengths_of(family.lines)
    ends = lengths[0], lengths[-1]
    at_longest = ", ".join(
        f"{line.name} {line.points[ends[1]].mean:.3f}" for line in lines if ends[1] in line.points
    )
    return figure.picture(
        f"losses {title}",
        f"Loss against length on {title}, {ends[0]} to {ends[1]} tokens; bars: "
        f"{spread_of(lines)}; {figure.dotted(line.train_length for line in lines)}.",
        f"Line chart of loss ({family.scale.unit}) on {title} at lengths {ends[0]} to {ends[1]}. "
        f"At {ends[1]}, best first: {at_longest}.",
        [loss_panel(family)],
        family.styles,
    )


def write_figure(results: Results, path: epath.Path) -> None:
    """Write a PNG of loss against length, with one panel for each text and protocol.

    Without any losses, an existing file is removed instead.
    """
    of_texts = families(results, split=False)
    if of_texts:
        lines = [line for family in of_texts for line in family.lines]
        several = len({line.step for line in lines}) > 1
        # Each step has its own colour, because a sweep may contain all steps of a run.
        styles = figure.line_styles(
            dataclasses.replace(line, arm=at_step(line.arm, line.step, several)) for line in lines
        )
        panels = [loss_panel(family) for family in of_texts]
        path.write_bytes(charts.png(*figure.drawing(panels, styles, columns=1)))
    else:
        path.unlink(missing_ok=True)  # an existing figure would show rows of an earlier sweep
