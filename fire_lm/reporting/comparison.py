"""Our losses beside those that the paper prints, and beside those of other runs.

Lengths are compared as multiples of the training length: the paper's models were trained at 2048
tokens, most of ours at others. Which of two encodings is better is judged by Welch's t test over
seeds, so not at all of a single seed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from fire_lm.reporting.page import Table
from fire_lm.reporting.published import Published, log_perplexity_cells, published
from fire_lm.reporting.results import Results, RunFacts
from fire_lm.reporting.seeds import Line, Mean, Scored

_PAPER_TRAIN_LENGTH, _PAPER_PARAMETERS = 2048, 125e6
_LARGE = 250e6  # parameters; the paper prints no losses of its large models


def papers_model(encoding: str) -> str | None:
    """The base model whose log perplexities the paper prints for an encoding, if there is one."""
    for cell in published():
        same = cell.encoding == encoding and cell.train_length == _PAPER_TRAIN_LENGTH
        if same and cell.metric == "log_perplexity" and cell.printed:
            return cell.model
    return None


def beside_the_paper(
    results: Results, scored: Scored, lines: Sequence[Line]
) -> tuple[list[str], Table | None]:
    """Words on where the order agrees, and a table of both; nothing where nothing is in common.

    `lines` are in nats per token; those with a change at evaluation are left out.
    """
    ours: dict[str, Line] = {}
    theirs: dict[str, Mapping[float, Published]] = {}
    for line in lines:
        runs = results.arms()[line.arm]
        model = papers_model(line.encoding)
        if model and not line.variant and runs[0].parameters < _LARGE:
            ours[line.name] = line
            theirs[line.name] = {
                length / _PAPER_TRAIN_LENGTH: cell
                for length, cell in log_perplexity_cells(model).items()
            }
    multiples = sorted({multiple for cells in theirs.values() for multiple in cells})
    common = [m for m in multiples if any(_ours(line, m) for line in ours.values())]
    if not common:
        return [], None
    compared = [run for line in ours.values() for run in results.arms()[line.arm]]
    words = [_apart(compared, scored)]
    words += [told for m in common if (told := _order(m, ours, theirs))]
    return words, _table(ours, theirs, common)


def _ours(line: Line, multiple: float) -> Mean | None:
    return line.nats.get(round(multiple * line.train_length))


def _apart(runs: Sequence[RunFacts], scored: Scored) -> str:
    """How far the runs are from the paper's, and what was scored from what it scored."""
    sizes = sorted(run.parameters for run in runs)
    lengths = sorted({run.train_length for run in runs})
    data = sorted({run.data for run in runs})
    notes = []
    if sizes[0] < 0.8 * _PAPER_PARAMETERS or sizes[-1] > 1.25 * _PAPER_PARAMETERS:
        low, high = (f"{size / 1e6:.2f}M" for size in (sizes[0], sizes[-1]))
        ours = low if low == high else f"{low} to {high}"
        notes.append(f"other scale: {ours} parameters, the paper's model has 125M")
    if lengths != [_PAPER_TRAIN_LENGTH]:
        trained = " and ".join(map(str, lengths))
        notes.append(f"other lengths: trained at {trained} tokens, the paper's at 2048")
    if not all(_is_c4(name.partition(",")[0]) for name in data):
        notes.append(f"other training data: {'; '.join(data)}; the paper's is C4")
    if not _is_c4(scored.dataset) or scored.protocol != "full":
        notes.append(f"scored on {scored}, the paper's on C4 in one forward pass")
    if not all(run.ended for run in runs):
        notes.append("some runs have not ended")
    if notes:
        return f"Only the order can be compared, not the values ({'; '.join(notes)})."
    return (
        "The paper's scale, length and data. It does not say which vocabulary it has, nor how "
        "documents became sequences."
    )


def _is_c4(label: str) -> bool:
    """TFDS's name, or that of a copy of C4's English part (configs/data/c4.gin)."""
    return label in ("c4", "c4_en")


def _order(
    multiple: float, ours: Mapping[str, Line], theirs: Mapping[str, Mapping[float, Published]]
) -> str:
    """Both orders, and of the pairs of encodings which are as in the paper."""
    means = {
        name: found
        for name, line in ours.items()
        if (found := _ours(line, multiple)) and multiple in theirs[name]
    }
    cells = {name: theirs[name][multiple] for name in means}
    encodings = {ours[name].encoding for name in means}
    if len(encodings) < 2:
        return ""
    same: list[str] = []
    reversed_, open_, tied = [], [], 0
    for pair in itertools.combinations(means, 2):
        one, other = sorted(pair, key=lambda name: cells[name].value or 0.0)
        if ours[one].encoding == ours[other].encoding:
            continue
        if _tie(cells[one], cells[other]):
            tied += 1
        elif not _told_apart(means[one], means[other]):
            open_.append(f"{one} and {other}")
        elif means[one].value < means[other].value:
            same.append(one)
        else:
            reversed_.append(f"{other} before {one}")
    paper = {ours[name].encoding: cells[name].value or 0.0 for name in means}
    told = [
        f"At x{multiple:g} of the training length, best first: "
        f"{' < '.join(sorted(means, key=lambda name: means[name].value))}; "
        f"in the paper {' < '.join(sorted(paper, key=lambda name: paper[name]))}.",
        f"Pairs in the paper's order: {len(same)}.",
    ]
    if reversed_:
        told.append(f"The other way ({len(reversed_)}): {', '.join(reversed_)}.")
    if open_:
        told.append(
            f"Not told apart by their seeds, Welch's t test at 5 % ({len(open_)}): "
            f"{', '.join(open_)}."
        )
    if tied:
        told.append(f"Equal in the paper's digits: {tied}.")
    return " ".join(told)


def _tie(one: Published, other: Published) -> bool:
    """In the digits that both are printed with."""
    digits = min(len(cell.printed.partition(".")[2]) for cell in (one, other))
    return round(one.value or 0.0, digits) == round(other.value or 0.0, digits)


def _told_apart(one: Mean, other: Mean) -> bool:
    """Whether two means over seeds differ: Welch's t test, two-sided, at 5 %."""
    if one.spread is None or other.spread is None:
        return False
    from scipy.special import stdtrit

    squared = [mean.spread**2 / mean.runs for mean in (one, other) if mean.spread is not None]
    if not sum(squared):
        return one.value != other.value
    parts = [s**2 / (mean.runs - 1) for s, mean in zip(squared, (one, other), strict=True)]
    freedom = sum(squared) ** 2 / sum(parts)
    quantile = float(stdtrit(freedom, 0.975))
    return abs(one.value - other.value) > quantile * math.sqrt(sum(squared))


def _table(
    ours: Mapping[str, Line],
    theirs: Mapping[str, Mapping[float, Published]],
    multiples: Sequence[float],
) -> Table:
    header = ["", "the paper's numbers are of"]
    for multiple in multiples:
        paper_length = round(multiple * _PAPER_TRAIN_LENGTH)
        header += [f"x{multiple:g}: ours", f"paper, column {paper_length}"]
    rows = []
    for name in sorted(theirs, key=lambda name: theirs[name][max(theirs[name])].value or 0.0):
        sources = dict.fromkeys(f"{c.source}, {c.row}" for c in theirs[name].values())
        row = [name, "; ".join(sources)]
        for multiple in multiples:
            mean, cell = _ours(ours[name], multiple), theirs[name].get(multiple)
            row += [f"{mean.value:.3f}" if mean else "", cell.printed if cell else ""]
        rows.append(row)
    caption = (
        "Log perplexity (nats per token) at multiples of the training length, ours beside the "
        "paper's on C4, in the paper's order at its longest."
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
        mine, their = line.losses(nats), other.losses(nats)
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
