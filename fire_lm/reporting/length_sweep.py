"""The table and the figure of a length sweep. Draws results, computes none."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

from fire_lm.reporting import charts
from fire_lm.reporting.sweep_rows import SweepRow


def _lines(rows: Sequence[SweepRow]) -> dict[str, list[SweepRow]]:
    """Rows by what they are called in the picture, in order of the loss at its longest length.

    The encoding is the name; the rest of the key is added where one encoding has several.
    """
    series: dict[tuple[str | int, ...], list[SweepRow]] = {}
    for row in rows:
        series.setdefault(row.key[:-1], []).append(row)  # the key ends with the length
    encodings = [points[0].encoding for points in series.values()]
    named = {}
    for points in series.values():
        one = points[0]
        name = one.encoding
        if encodings.count(name) > 1:
            parts = (f"{one.run}@{one.step}", one.variant, one.dataset, one.split, one.construction)
            protocol = "" if one.protocol == "full" else one.protocol
            name = f"{name} ({', '.join(part for part in (*parts, protocol) if part)})"
        named[name] = sorted(points, key=lambda row: row.length)
    return dict(sorted(named.items(), key=lambda item: _last_bits(item[1])))


def _last_bits(points: Sequence[SweepRow]) -> float:
    """Where there was text to score. Orders as nats do where those can be compared."""
    return next((row.bits_per_byte for row in reversed(points) if row.tokens), math.inf)


def differences(rows: Sequence[SweepRow]) -> str:
    """Why nats per token of these rows cannot stand side by side; empty where they can.

    A token is a token only of the same text in the same pieces. At every length of a sweep it is,
    and a protocol scores the same tokens of every run.
    """
    scored = [row for row in rows if row.tokens]
    if len({(row.dataset, row.split) for row in scored}) > 1:
        return "data sets"
    if len({row.construction for row in scored}) > 1:
        return "constructions"
    protocols = {row.protocol for row in scored}
    if len({(row.protocol, row.tokens, row.bytes) for row in scored}) > len(protocols):
        return "vocabularies or amounts of text"
    return ""


def table(rows: Sequence[SweepRow], train_lengths: Mapping[str, int]) -> str:
    """Nats per token (± standard error) and bits per byte, an encoding a line, a length a column.

    Bits per byte alone, and why, where the rows differ in text or vocabulary.
    """
    bits = _grid(rows, train_lengths, lambda row: f"{row.bits_per_byte:.3f}")
    if apart := differences(rows):
        return (
            f"bits per byte; {_source(rows)}\n{bits}\n\n"
            f"no nats per token: rows of different {apart} have different tokens"
        )
    nats = _grid(rows, train_lengths, lambda row: f"{row.nll:.3f} ± {row.nll_stderr:.3f}")
    return f"nats per token; {_source(rows)}\n{nats}\n\nbits per byte\n{bits}"


def _grid(
    rows: Sequence[SweepRow], train_lengths: Mapping[str, int], cell: Callable[[SweepRow], str]
) -> str:
    lengths = sorted({row.length for row in rows})
    body = [["", *(_length_head(length, train_lengths) for length in lengths)]]
    for name, points in _lines(rows).items():
        cells = {row.length: cell(row) if row.tokens else "no text" for row in points}
        body.append([name, *(cells.get(length, "") for length in lengths)])
    widths = [max(len(line[column]) for line in body) for column in range(len(body[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in body
    )


def _length_head(length: int, train_lengths: Mapping[str, int]) -> str:
    trained = set(train_lengths.values())
    if len(trained) != 1:
        return str(length)
    return f"{length} (x{length / trained.pop():g})"


def _source(rows: Sequence[SweepRow]) -> str:
    described = sorted(
        {
            f"{r.dataset} {r.split}, {r.construction}" + f", {r.protocol}" * (r.protocol != "full")
            for r in rows
        }
    )
    budget = sorted({row.tokens for row in rows if row.tokens}) or [0]
    return f"{'; '.join(described)}, {' or '.join(f'{b:,}' for b in budget)} tokens at each length"


def _bits_axis(axes: Any, rows: Sequence[SweepRow]) -> None:
    """Bits per byte on the right, where all rows have the same tokens per byte."""
    ratios = {_bits_per_nat(row) for row in rows if row.tokens}
    if not ratios or max(ratios) > 1.0001 * min(ratios):
        return
    ratio = max(ratios)
    right = axes.secondary_yaxis(
        "right", functions=(lambda nats: nats * ratio, lambda bits: bits / ratio)
    )
    right.set_ylabel("bits per byte")


def _bits_per_nat(row: SweepRow) -> float:
    """Bits per byte for each nat per token."""
    return row.tokens / (max(1, row.bytes) * math.log(2))


def figure(rows: Sequence[SweepRow], train_lengths: Mapping[str, int], path: epath.Path) -> None:
    """Loss against length as a PNG, standard errors as bars, training lengths as dotted lines.

    In nats per token, or bits per byte where the rows differ in text or vocabulary.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawing, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    apart = differences(rows)
    for name, points in _lines(rows).items():
        scales = [_bits_per_nat(row) if apart else 1.0 for row in points]
        axes.errorbar(
            [row.length for row in points],
            [row.bits_per_byte if apart else row.nll for row in points],
            yerr=[row.nll_stderr * scale for row, scale in zip(points, scales, strict=True)],
            label=name,
            marker="o",
            markersize=4,
            capsize=2,
        )
    charts.training_length(axes, list(train_lengths.values()))
    charts.length_axis(axes, sorted({row.length for row in rows}))
    if apart:
        axes.set_ylabel("loss (bits per byte)")
        axes.set_title(f"{_source(rows)}\ndifferent {apart}", fontsize="small")
    else:
        axes.set_ylabel("loss (nats per token)")
        axes.set_title(_source(rows), fontsize="small")
        _bits_axis(axes, rows)
    axes.legend()
    axes.grid(alpha=0.3)
    image = io.BytesIO()
    drawing.savefig(image, format="png", dpi=150)
    pyplot.close(drawing)
    path.write_bytes(image.getvalue())
