"""The results of a length sweep as text and as a figure, for sweeps, grids and reports.

Each combination of text and protocol has its tables and a panel of the figure. Runs that differ
only in their seeds share one line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from etils import epath

from fire_lm.reporting import charts, figure
from fire_lm.reporting.differences import text_alone
from fire_lm.reporting.effective_length import MARGIN_NATS, effective_table, of_losses
from fire_lm.reporting.losses import (
    described,
    differences,
    loss_lines,
    position_lines,
    rows_of,
    scored_in,
)
from fire_lm.reporting.page import Picture, Table
from fire_lm.reporting.series import (
    BITS,
    NATS,
    Scale,
    Series,
    length_heads,
    lengths_of,
    spread_of,
    table,
)
from fire_lm.reporting.verdicts import (
    Measured,
    difference_table,
    measured,
    rankings,
    reference_at,
    verdicts,
)
from fire_lm.results.folder import Results


def sweep_text(results: Results) -> str:
    """Format a description, a verdict and the tables of each scored text for the terminal."""
    blocks = []
    nats, bits = loss_lines(results), loss_lines(results, nats=False)
    for scored in dict.fromkeys(map(scored_in, results.losses)):
        rows = rows_of(results, scored)
        apart = differences(rows, results.texts)
        scale, series = (BITS, bits) if apart else (NATS, nats)
        lines = series.get(scored, [])
        words = [described(rows, results.texts, apart)]
        tables: list[Table] = []
        if lines:
            found = verdicts(measured_losses(lines, scale), scale)
            words += [*(one.method for one in found), *loss_rankings(lines, scale)]
            tables = [*(one.table for one in found), *loss_tables(lines, scale)]
            if not apart:
                tables.append(loss_table(bits[scored], BITS))
        blocks += ["\n".join([str(scored), *words]), *(table.plain() for table in tables)]
    return "\n\n".join(blocks)


def loss_tables(lines: Sequence[Series], scale: Scale) -> list[Table]:
    """Return the tables of losses, of their differences, and of effective lengths."""
    return [
        loss_table(lines, scale),
        *difference_tables(lines, scale),
        effective_lengths(lines, scale),
    ]


def loss_table(lines: Sequence[Series], scale: Scale) -> Table:
    lengths = sorted({length for line in lines for length in (*line.points, *line.missing)})
    return table(lines, length_heads(lines, lengths), scale)


def measured_losses(lines: Sequence[Series], scale: Scale) -> list[Measured]:
    """Return the losses at each length for tests of differences."""
    places = {length: f"at {length} tokens" for length in lengths_of(lines)}

    def reference(length: int, there: Sequence[Series]) -> float:
        usual = max(reference_at(length / line.train_length) for line in there)
        return usual if scale is NATS else usual / math.log(2)

    return measured(lines, places, reference)  # type: ignore[arg-type]


def loss_rankings(lines: Sequence[Series], scale: Scale) -> list[str]:
    return rankings(measured_losses(lines, scale), scale)


def difference_tables(lines: Sequence[Series], scale: Scale) -> list[Table]:
    """Return a table of differences from the first line, and one of their errors over text alone.

    The first line of `lines` must be the line that is best at the longest length. The first table
    is omitted if no difference can be tested, and the second if the text is not recorded.
    """
    columns = measured_losses(lines, scale)
    heads = list(length_heads(lines, lengths_of(lines)).values())
    tables = difference_table(columns, heads, [line.name for line in lines], scale)
    best, *others = lines
    body = []
    for line in others:
        row = [line.name]
        for samples in (column.samples for column in columns):
            mine, theirs = samples.get(line.name), samples.get(best.name)
            error = text_alone(mine, theirs) if mine and theirs else None
            if mine is None or theirs is None or error is None:
                row.append("")
            else:
                row.append(f"{mine.mean - theirs.mean:+.3f} ± {error:.3f}")
        body.append(row)
    if any(any(row[1:]) for row in body):
        caption = (
            "Not for comparing encodings, but to judge whether the text is long enough: nats per "
            f"token above {best.name}, ± standard error of the difference over the rows of the "
            "common text alone. This error does not contain the variation between seeds, so "
            "another seed may give another sign."
        )
        tables.append(Table(caption, ["", *heads], body))
    return tables


def effective_lengths(lines: Sequence[Series], scale: Scale) -> Table:
    """Tabulate the largest length up to which each loss stays near its minimum."""
    margin = MARGIN_NATS if scale is NATS else MARGIN_NATS / math.log(2)
    caption = (
        f"Effective length: the largest measured length up to which the loss has not risen by more "
        f"than {margin:.2f} {scale.unit} over its minimum."
    )
    return effective_table(caption, lines, lambda _, losses: of_losses(losses, margin))


def loss_styles(results: Results) -> dict[str, figure.Style]:
    """Return the style of each series of losses, which is the same in all figures of a report."""
    series = [line for lines in loss_lines(results, nats=False).values() for line in lines]
    series += [line for lines in position_lines(results).values() for line in lines]
    return figure.line_styles(series, sorted(results.arms()))


def loss_panel(title: str, lines: Sequence[Series], apart: str) -> figure.Panel:
    """Return a panel of loss against length.

    Its title explains the error bars, because a PNG has no caption. `apart` is the difference
    between the scored rows that makes nats per token incomparable, so that losses are in bits.
    """
    unit = "bits per byte" if apart else "log perplexity (nats per token)"
    axis = figure.Axis("sequence length (tokens)", unit, lengths=True, nats=not apart)
    told = f"; different {apart}" * bool(apart)
    return figure.Panel(
        f"{title}{told}\nbars: {spread_of(lines)}",
        lines,
        axis,
        trained=[line.train_length for line in lines],
    )


def loss_picture(
    title: str, lines: Sequence[Series], apart: str, styles: dict[str, figure.Style]
) -> Picture:
    """Draw loss against length, as in Figures 1, 2, 6 and 7 of the FIRE paper."""
    lengths = lengths_of(lines)
    at_longest = ", ".join(
        f"{line.name} {line.points[lengths[-1]].value:.3f}"
        for line in lines
        if lengths[-1] in line.points
    )
    unit = (BITS if apart else NATS).unit
    return figure.picture(
        f"losses {title}",
        f"Loss against length on {title}, {lengths[0]} to {lengths[-1]} tokens; bars: "
        f"{spread_of(lines)}; {figure.dotted(line.train_length for line in lines)}.",
        f"Line chart of loss ({unit}) on {title} at lengths {lengths[0]} to {lengths[-1]}. "
        f"At {lengths[-1]}, best first: {at_longest}.",
        [loss_panel(title, lines, apart)],
        styles,
    )


def write_figure(results: Results, path: epath.Path) -> None:
    """Write a PNG of loss against length, with one panel for each text and protocol.

    Without any losses, an existing file is removed instead.
    """
    bits = loss_lines(results, nats=False)
    panels = []
    for scored, lines in loss_lines(results).items():
        apart = differences(rows_of(results, scored), results.texts)
        panels.append(loss_panel(str(scored), bits[scored] if apart else lines, apart))
    if panels:
        path.write_bytes(charts.png(*figure.drawing(panels, loss_styles(results), columns=1)))
    else:
        path.unlink(missing_ok=True)  # an existing figure would show rows of an earlier sweep
