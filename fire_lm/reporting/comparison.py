"""Our losses beside those that the paper prints, and beside those of other runs.

Lengths are compared as multiples of the training length: the paper's models were trained at 2048
tokens, most of ours at others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from fire_lm.reporting.page import Table
from fire_lm.reporting.published import log_perplexities, published
from fire_lm.reporting.results import Results, RunFacts
from fire_lm.reporting.seeds import Line, Mean

_PAPER_TRAIN_LENGTH, _PAPER_PARAMETERS, _PAPER_DATA = 2048, 125e6, "c4"


def papers_model(encoding: str) -> str | None:
    """The base model whose log perplexities the paper prints for an encoding, if there is one."""
    for cell in published():
        same = cell.encoding == encoding and cell.train_length == _PAPER_TRAIN_LENGTH
        if same and cell.metric == "log_perplexity" and cell.printed:
            return cell.model
    return None


def beside_the_paper(results: Results, lines: Sequence[Line]) -> tuple[list[str], Table | None]:
    """Words on where the order agrees, and a table of both; nothing where nothing is in common.

    `lines` are in nats per token.
    """
    encodings = {run.arm: run.encoding for run in results.runs}
    ours: dict[str, dict[float, Mean]] = {}
    theirs: dict[str, dict[float, float]] = {}
    for line in lines:
        model = papers_model(encodings.get(line.name, ""))
        if model:
            ours[line.name] = {
                length / line.train_length: point for length, point in line.nats.items()
            }
            theirs[line.name] = {
                length / _PAPER_TRAIN_LENGTH: value
                for length, value in log_perplexities(model).items()
            }
    multiples = sorted({m for values in theirs.values() for m in values})
    common = [m for m in multiples if any(m in values for values in ours.values())]
    if not common:
        return [], None
    words = [_apart(results.runs)]
    words += [_order(m, ours, theirs) for m in common if sum(m in o for o in ours.values()) > 1]
    return words, _table(ours, theirs, common)


def _apart(runs: Sequence[RunFacts]) -> str:
    """How far the runs are from the paper's."""
    sizes = [run.parameters for run in runs]
    lengths = sorted({run.train_length for run in runs})
    data = sorted({run.data for run in runs})
    notes = []
    if not all(0.8 < size / _PAPER_PARAMETERS < 1.25 for size in sizes):
        notes.append(f"other scale: {_range(sizes)} parameters, the paper's model has 125M")
    if lengths != [_PAPER_TRAIN_LENGTH]:
        trained = " and ".join(map(str, lengths))
        notes.append(f"other lengths: trained at {trained} tokens, the paper's at 2048")
    if not all(name.startswith(_PAPER_DATA) for name in data):
        notes.append(f"other data: {', '.join(data)}, the paper's is C4")
    if not notes:
        return "The paper's scale, length and data: values can be compared."
    return f"Only the order can be compared, not the values ({'; '.join(notes)})."


def _range(sizes: Sequence[int]) -> str:
    low, high = min(sizes) / 1e6, max(sizes) / 1e6
    return f"{low:.2f}M" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f}M to {high:.2f}M"


def _order(
    multiple: float,
    ours: Mapping[str, Mapping[float, Mean]],
    theirs: Mapping[str, Mapping[float, float]],
) -> str:
    """Each pair of encodings in the paper's order, the other way, or too close to tell."""
    names = [name for name in ours if multiple in ours[name] and multiple in theirs[name]]
    agree, close, reversed_pairs = 0, 0, []
    for one, other in itertools.combinations(sorted(names, key=lambda n: theirs[n][multiple]), 2):
        better, worse = ours[one][multiple], ours[other][multiple]
        apart = worse.value - better.value
        if theirs[one][multiple] == theirs[other][multiple] or abs(apart) <= math.hypot(
            better.error, worse.error
        ):
            close += 1
        elif apart > 0:
            agree += 1
        else:
            reversed_pairs.append(f"{other} before {one}")
    order = " < ".join(sorted(names, key=lambda name: ours[name][multiple].value))
    paper = " < ".join(sorted(names, key=lambda name: theirs[name][multiple]))
    total = agree + close + len(reversed_pairs)
    told = f"; the other way: {', '.join(reversed_pairs)}" if reversed_pairs else ""
    return (
        f"At x{multiple:g} of the training length, best first: {order}; in the paper {paper}. Of "
        f"{total} pairs {agree} are in the paper's order, {len(reversed_pairs)} the other way and "
        f"{close} closer than the spread{told}."
    )


def _table(
    ours: Mapping[str, Mapping[float, Mean]],
    theirs: Mapping[str, Mapping[float, float]],
    multiples: Sequence[float],
) -> Table:
    header = ["encoding"]
    for multiple in multiples:
        paper_length = round(multiple * _PAPER_TRAIN_LENGTH)
        header += [f"x{multiple:g}: ours", f"paper ({paper_length})"]
    rows = []
    for name in sorted(theirs, key=lambda name: theirs[name][max(theirs[name])]):
        row = [name]
        for multiple in multiples:
            mean, value = ours[name].get(multiple), theirs[name].get(multiple)
            row += [f"{mean.value:.3f}" if mean else "", f"{value:.3f}" if value else ""]
        rows.append(row)
    caption = (
        "Log perplexity (nats per token) at multiples of the training length, ours beside the "
        "paper's (Tables 2 to 7, C4 columns), in the paper's order at its longest."
    )
    return Table(caption, header, rows)


def against(lines: Sequence[Line], others: Sequence[Line], name: str, nats: bool) -> Table | None:
    """Our losses less those of another report's line of the same name, or of its only one."""
    unit = "nats per token" if nats else "bits per byte"
    by_name = {line.name: line for line in others}
    rows, lengths = [], sorted({length for line in lines for length in line.nats})
    for line in lines:
        other = by_name.get(line.name) or (others[0] if len(others) == 1 else None)
        if other is None:
            continue
        mine, their = (line.nats, other.nats) if nats else (line.bits, other.bits)
        cells = [
            f"{mine[length].value - their[length].value:+.3f}"
            if length in mine and length in their
            else ""
            for length in lengths
        ]
        rows.append([f"{line.name} - {other.name}", *cells])
    if not rows:
        return None
    return Table(
        f"Difference to {name} ({unit}); below 0 ours is better.", ["", *map(str, lengths)], rows
    )
