"""The results of a length sweep as text and as a figure, for sweeps, grids and reports.

Each combination of text and protocol has its tables and a panel of the figure. Runs that differ
only in their seeds share one line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from etils import epath

from fire_lm.reporting import figures
from fire_lm.reporting.differences import text_alone
from fire_lm.reporting.effective_length import MARGIN_NATS, effective_table, of_losses
from fire_lm.reporting.page import Table
from fire_lm.reporting.seeds import Line, Mean, Scored, loss_lines, scored_in
from fire_lm.reporting.verdicts import (
    BITS,
    NATS,
    Measured,
    difference_table,
    rankings,
    reference_at,
    verdict,
)
from fire_lm.results.folder import Results
from fire_lm.results.scored_text import UNKNOWN, Texts, text_name
from fire_lm.results.sweep_rows import SweepRow


def differences(rows: Iterable[SweepRow], texts: Texts) -> str:
    """Return the difference that makes nats per token of these rows incomparable, or "".

    Losses per token are comparable only for the same text with the same tokenization. Rows with a
    recorded text are compared by that text, other rows by their numbers of tokens and bytes.
    """
    scored = [row for row in rows if row.tokens]
    if len({(row.dataset, row.split) for row in scored}) > 1:
        return "data sets"
    if len({row.construction for row in scored}) > 1:
        return "constructions"
    if len(found := {texts.of(row) for row in scored}) > 1:
        return "texts or vocabularies"
    protocols = {row.protocol for row in scored}
    amounts = {(row.protocol, row.tokens, row.bytes) for row in scored}
    if found == {UNKNOWN} and len(amounts) > len(protocols):
        return "vocabularies or amounts of text"
    of_length = {(row.protocol, row.length, row.tokens) for row in scored}
    if len(of_length) > len({(row.protocol, row.length) for row in scored}):
        return "numbers of scored tokens at a length"
    return ""


def described(rows: Sequence[SweepRow], texts: Texts, apart: str) -> str:
    """Describe the scored text and its number of tokens.

    `apart` is the reason why losses in nats are not comparable, or "" if they are.
    """
    found = sorted({texts.of(row) for row in rows if row.tokens})
    budgets = sorted({row.tokens for row in rows if row.tokens})
    if apart:
        counts = " or ".join(f"{count:,}" for count in budgets)
        names = f" ({', '.join(map(text_name, found))})" * (len(found) > 1 or UNKNOWN in found)
        return (
            f"Losses are in bits per byte only, over {counts} tokens: the runs differ in "
            f"{apart}{names}, so their losses in nats per token cannot be compared."
        )
    if not budgets:
        return "The text is too short for a row of any of these lengths."
    told = f"Each loss is a mean over {budgets[-1]:,} tokens"
    if found == [UNKNOWN]:
        return (
            f"{told} at every length. The text is not recorded, because an older version scored "
            "it; only the numbers of tokens and bytes are known to agree."
        )
    fewer = {row.length: budgets[-1] - row.tokens for row in rows if row.tokens}
    left = [f"{count:,} at length {n}" for n, count in sorted(fewer.items()) if count]
    # Only in rows of older versions are tokens skipped.
    left_out = f"; lengths that do not divide the rows of text skip tokens ({', '.join(left)})"
    return f"{told}, the same text at every length ({text_name(found[0])}){left_out * bool(left)}."


def sweep_text(results: Results) -> str:
    """Format a description, a verdict and the tables of each scored text for the terminal."""
    blocks = []
    found = loss_lines(results)
    for scored in dict.fromkeys(map(scored_in, results.losses)):
        rows = rows_of(results, scored)
        apart, lines = differences(rows, results.texts), found.get(scored, [])
        words = [described(rows, results.texts, apart)]
        if lines:
            words += [*loss_verdict(lines, not apart), *loss_rankings(lines, not apart)]
        blocks.append("\n".join([str(scored), *words]))
        if lines:
            tables = [loss_table(lines, nats=False)]
            if not apart:
                tables = [loss_table(lines, nats=True), *tables]
            tables += [
                *difference_tables(lines, nats=not apart),
                effective_lengths(lines, not apart),
            ]
            blocks += [table.plain() for table in tables]
    return "\n\n".join(blocks)


def rows_of(results: Results, scored: Scored) -> list[SweepRow]:
    runs = {run.run for run in results.runs}
    return [row for row in results.losses if row.run in runs and scored_in(row) == scored]


def loss_table(lines: Sequence[Line], nats: bool) -> Table:
    """Tabulate mean losses over seeds with their spread, and highlight the best at each length."""
    lengths = sorted({length for line in lines for length in (*line.nats, *line.gaps)})
    points = [line.losses(nats) for line in lines]
    counts = {point.runs for p in points for point in p.values()}
    rows = []
    for line, p in zip(lines, points, strict=True):
        gaps = ["no text" if n in line.gaps else "" for n in lengths]
        cells = [
            _cell(p[n], counts) if n in p else gap for n, gap in zip(lengths, gaps, strict=True)
        ]
        rows.append([line.name, *cells])
    best = set()
    for column, length in enumerate(lengths, start=1):
        values = {i: p[length].value for i, p in enumerate(points) if length in p}
        if len(values) > 1:
            best.add((min(values, key=lambda i: values[i]), column))  # noqa: B023
    unit = "Nats per token (log perplexity)" if nats else "Bits per byte"
    number = "; the number of seeds in parentheses" if len(counts) > 1 else ""
    caption = f"{unit}, mean ± {figures.spread_of(lines)}{number}."
    return Table(caption, ["", *length_heads(lines, lengths)], rows, frozenset(best))


def length_heads(lines: Sequence[Line], lengths: Iterable[int]) -> list[str]:
    """Return a column head for each length.

    If all lines have the same training length, the heads also contain the length as a multiple of
    it.
    """
    trained = {line.train_length for line in lines}
    if len(trained) != 1:
        return [str(length) for length in lengths]
    return [f"{length} (x{length / min(trained):g})" for length in lengths]


def _cell(point: Mean, counts: set[int]) -> str:
    """Format a cell with a mean, its error and the number of runs.

    In a table with means over several runs, the cell of a single run has no ±, because its error
    would be of a different kind.
    """
    error = point.text_error if counts == {1} else point.spread
    plus_minus = "" if error is None else f" ± {error:.3f}"
    number = f" ({point.runs})" if len(counts) > 1 else ""
    return f"{point.value:.3f}{plus_minus}{number}"


def measured_losses(lines: Sequence[Line], nats: bool) -> list[Measured]:
    """Return the losses at each length for tests of differences."""
    columns = []
    for length in _lengths(lines):
        there = [line for line in lines if length in line.nats]
        usual = max(reference_at(length / line.train_length) for line in there)
        samples = {line.name: line.sample(length, nats) for line in there}
        columns.append(
            Measured(f"at {length} tokens", samples, usual if nats else usual / math.log(2))
        )
    return columns


def loss_verdict(lines: Sequence[Line], nats: bool) -> list[str]:
    return verdict(measured_losses(lines, nats), NATS if nats else BITS)


def loss_rankings(lines: Sequence[Line], nats: bool) -> list[str]:
    return rankings(measured_losses(lines, nats), NATS if nats else BITS)


def difference_tables(lines: Sequence[Line], nats: bool) -> list[Table]:
    """Return a table of differences from the first line, and one of their errors over text alone.

    The first line of `lines` must be the line that is best at the longest length. The first table
    is omitted if no difference can be tested, and the second if the text is not recorded.
    """
    scale, lengths = NATS if nats else BITS, _lengths(lines)
    measured = measured_losses(lines, nats)
    heads = length_heads(lines, lengths)
    tables = difference_table(measured, heads, [line.name for line in lines], scale)
    best, *others = lines
    body = []
    for line in others:
        row = [line.name]
        for samples in (one.samples for one in measured):
            mine, theirs = samples.get(line.name), samples.get(best.name)
            error = text_alone(mine, theirs) if mine and theirs else None
            if mine is None or theirs is None or error is None:
                row.append("")
            else:
                row.append(f"{mine.mean - theirs.mean:+.3f} ± {error:.3f}")
        body.append(row)
    if any(any(row[1:]) for row in body):
        caption = (
            f"Not for comparing encodings: nats per token above {best.name}, ± standard error of "
            "the difference over the rows of the common text alone. This error does not contain "
            "the variation between seeds, so another seed may give another sign."
        )
        tables.append(Table(caption, ["", *heads], body))
    return tables


def effective_lengths(lines: Sequence[Line], nats: bool) -> Table:
    """Tabulate the largest length up to which each loss stays near its minimum."""
    margin = MARGIN_NATS if nats else MARGIN_NATS / math.log(2)
    caption = (
        f"Effective length: the largest measured length up to which the loss has not risen by more "
        f"than {margin:.2f} {'nats per token' if nats else 'bits per byte'} over its minimum."
    )
    points = {line.name: line.losses(nats) for line in lines}
    return effective_table(caption, points, lambda name, losses: of_losses(losses, margin))


def _lengths(lines: Sequence[Line]) -> list[int]:
    return sorted({length for line in lines for length in line.nats})


def write_figure(results: Results, path: epath.Path) -> None:
    """Write a PNG of loss against length, with one panel for each text and protocol.

    Without any losses, an existing file is removed instead.
    """
    panels = []
    for scored, lines in loss_lines(results).items():
        apart = differences(rows_of(results, scored), results.texts)
        panels.append(figures.Panel(str(scored), lines, apart))
    if panels:
        path.write_bytes(figures.losses_png(results, panels))
    else:
        path.unlink(missing_ok=True)  # an existing figure would show rows of an earlier sweep
