"""The comparison of our losses with those reported in the paper and with those of other runs.

Lengths are matched to the paper's as multiples of the training length, because the paper's models
were trained at 2048 tokens and most of our models at other lengths. Welch's t test over seeds
decides whether one of two encodings is better. With a single seed, no such test is possible.
Encodings are then ranked by their losses, and the standard error of a difference is computed over
the rows of text on which both were scored.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from fire_lm.reporting.page import Table
from fire_lm.reporting.published import Published, log_perplexity_cells, published
from fire_lm.reporting.seeds import Line, Mean, Scored, paired
from fire_lm.results.folder import Results, RunFacts

_PAPER_TRAIN_LENGTH, _PAPER_PARAMETERS = 2048, 125e6
_LARGE = 250e6  # parameters; the paper reports no losses of larger models


def papers_model(encoding: str) -> str | None:
    """Return the base model whose log perplexities the paper reports for an encoding, or None."""
    for cell in published():
        same = cell.encoding == encoding and cell.train_length == _PAPER_TRAIN_LENGTH
        if same and cell.metric == "log_perplexity" and cell.printed:
            return cell.model
    return None


def beside_the_paper(
    results: Results, scored: Scored, lines: Sequence[Line]
) -> tuple[list[str], Table | None]:
    """Compare the ranking of our encodings with that in the paper, by losses in nats per token.

    Lines with a change at evaluation, and models of 250M parameters or more, are ignored.

    Returns:
      Sentences on the agreement of the two rankings, and a table of both. The list is empty and the
      table is None if no line has a loss at one of the paper's multiples of the training length.
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
    """Describe how the runs and the scored text differ from those of the paper."""
    sizes = sorted(run.parameters for run in runs)
    lengths = sorted({run.train_length for run in runs})
    data = sorted({run.data for run in runs})
    notes = []
    if sizes[0] < 0.8 * _PAPER_PARAMETERS or sizes[-1] > 1.25 * _PAPER_PARAMETERS:
        low, high = (f"{size / 1e6:.2f}M" for size in (sizes[0], sizes[-1]))
        ours = low if low == high else f"{low} to {high}"
        notes.append(f"scale: {ours} parameters instead of 125M")
    if lengths != [_PAPER_TRAIN_LENGTH]:
        trained = " and ".join(map(str, lengths))
        notes.append(f"training length: trained at {trained} tokens instead of 2048")
    if not all(_is_c4(name.partition(",")[0]) for name in data):
        notes.append(f"training data: {' and '.join(data)} instead of C4")
    if not _is_c4(scored.dataset) or scored.protocol != "full":
        notes.append(f"evaluation: scored on {scored} instead of C4 in one forward pass")
    if not all(run.ended for run in runs):
        notes.append("some runs are unfinished")
    if notes:
        return (
            f"Only the order can be compared with the paper, not the values ({'; '.join(notes)})."
        )
    return (
        "The scale, the training length and the data are those of the paper, which states neither "
        "its vocabulary nor how documents became sequences."
    )


def _is_c4(label: str) -> bool:
    """Return whether `label` is that of the English part of C4, either in TFDS or as a copy."""
    return label in ("c4", "c4_en")


@dataclasses.dataclass
class _Pairs:
    """Pairs of encodings at one length, grouped by the result of their comparison.

    Attributes:
      same: The number of pairs in the paper's order.
      reversed: The pairs in the opposite order.
      open: The pairs that the test over seeds does not distinguish.
      close: The pairs that include a single run and differ by at most two standard errors of the
        difference.
      tied: The number of pairs whose losses in the paper are equal at the paper's precision.
    """

    same: int = 0
    reversed: list[str] = dataclasses.field(default_factory=list)
    open: list[str] = dataclasses.field(default_factory=list)
    close: list[str] = dataclasses.field(default_factory=list)
    tied: int = 0


def _order(
    multiple: float, ours: Mapping[str, Line], theirs: Mapping[str, Mapping[float, Published]]
) -> str:
    """Describe both rankings at a multiple of the training length, and the pairs that agree.

    The result is "" if fewer than two encodings can be compared.
    """
    means = {
        name: found
        for name, line in ours.items()
        if (found := _ours(line, multiple)) and multiple in theirs[name]
    }
    cells = {name: theirs[name][multiple] for name in means}
    if len({ours[name].encoding for name in means}) < 2:
        return ""
    pairs = _Pairs()
    for pair in itertools.combinations(means, 2):
        one, other = sorted(pair, key=lambda name: cells[name].value or 0.0)
        if ours[one].encoding == ours[other].encoding:
            continue
        gap = _gap(ours[other], ours[one], multiple)
        if _tie(cells[one], cells[other]):
            pairs.tied += 1
        elif _have_spread(means[one], means[other]) and not _told_apart(means[one], means[other]):
            pairs.open.append(f"{one} and {other}")
        elif not _have_spread(means[one], means[other]) and gap and abs(gap[0]) <= 2 * gap[1]:
            pairs.close.append(f"{one} and {other} ({abs(gap[0]):.3f} ± {gap[1]:.3f})")
        elif means[one].value < means[other].value:
            pairs.same += 1
        else:
            pairs.reversed.append(f"{other} before {one}")
    paper = {ours[name].encoding: cells[name].value or 0.0 for name in means}
    alone = not all(_have_spread(mean) for mean in means.values())
    told = [
        f"At {multiple:g}x the training length, best first: "
        f"{_best_first(means, ours, multiple, alone)}; "
        f"in the paper {' < '.join(sorted(paper, key=lambda name: paper[name]))}.",
        "With a single seed, there is no test over seeds; pairs are ordered by their losses."
        * alone,
        f"Pairs in the paper's order: {pairs.same}.",
        *_told(pairs),
    ]
    return " ".join(filter(None, told))


def _best_first(
    means: Mapping[str, Mean], ours: Mapping[str, Line], multiple: float, with_gaps: bool
) -> str:
    """Describe our ranking at a multiple of the training length.

    If `with_gaps` is set, the description also contains the losses and the difference of each
    encoding from the preceding encoding.
    """
    names = sorted(means, key=lambda name: means[name].value)
    if not with_gaps:
        return " < ".join(names)
    told = [f"{names[0]} {means[names[0]].value:.3f}"]
    errors = False
    for before, name in itertools.pairwise(names):
        gap = _gap(ours[name], ours[before], multiple)
        error = f" (+{gap[0]:.3f} ± {gap[1]:.3f})" if gap else ""
        errors = errors or bool(gap)
        told.append(f"{name} {means[name].value:.3f}{error}")
    what = (
        " (in parentheses: the difference from the preceding encoding, ± its standard error over "
        "the rows of their common text)"
    )
    return " < ".join(told) + what * errors


def _gap(one: Line, other: Line, multiple: float) -> tuple[float, float] | None:
    lengths = [round(multiple * line.train_length) for line in (one, other)]
    return paired(one, other, *lengths)


def _told(pairs: _Pairs) -> list[str]:
    """Describe all pairs except those in the paper's order."""
    told = []
    if pairs.reversed:
        told.append(f"Reversed ({len(pairs.reversed)}): {', '.join(pairs.reversed)}.")
    if pairs.open:
        told.append(
            f"Not distinguished over seeds by Welch's t test at 5 % ({len(pairs.open)}): "
            f"{', '.join(pairs.open)}."
        )
    if pairs.close:
        told.append(
            "Closer to each other than two standard errors of the difference "
            f"({len(pairs.close)}): {', '.join(pairs.close)}."
        )
    if pairs.tied:
        told.append(f"Equal at the paper's precision: {pairs.tied}.")
    return told


def _tie(one: Published, other: Published) -> bool:
    """Return whether two of the paper's values are equal at the lower of their precisions."""
    digits = min(len(cell.printed.partition(".")[2]) for cell in (one, other))
    return round(one.value or 0.0, digits) == round(other.value or 0.0, digits)


def _have_spread(*means: Mean) -> bool:
    return all(mean.spread is not None for mean in means)


def _told_apart(one: Mean, other: Mean) -> bool:
    """Return whether two means over seeds differ, by Welch's two-sided t test at the 5 % level."""
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
    header = ["", "source in the paper"]
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
        "Log perplexity (nats per token) at multiples of the training length: ours, and the "
        "paper's on C4. Rows are in the order of the paper at its longest length."
    )
    return Table(caption, header, rows)


def against(lines: Sequence[Line], others: Sequence[Line], name: str, nats: bool) -> Table | None:
    """Tabulate the differences between our losses and those of another report.

    Each line is compared with the line of the same name in `others`. If there is no such line and
    `others` contains only one line, the comparison is with that line.

    Args:
      lines: Our losses.
      others: The losses of the other report.
      name: The name of the other report.
      nats: Whether losses are in nats per token, as opposed to bits per byte.

    Returns:
      The table, or None if no line can be compared.
    """
    unit = "nats per token" if nats else "bits per byte"
    by_name = {line.name: line for line in others}
    rows, lengths = [], sorted({length for line in lines for length in line.nats})
    for line in lines:
        other = by_name.get(line.name) or (others[0] if len(others) == 1 else None)
        if other is None:
            continue
        mine, their = line.losses(nats), other.losses(nats)
        cells = []
        for length in lengths:
            both = length in mine and length in their
            cell = f"{mine[length].value - their[length].value:+.3f}" if both else ""
            gap = paired(line, other, length) if both and nats else None
            cells.append(f"{cell} ± {gap[1]:.3f}" if gap else cell)
        rows.append([f"{line.name} - {other.name}", *cells])
    if not rows:
        return None
    errors = "; ± standard error over the rows of their common text" * any(
        "±" in c for c in sum(rows, [])
    )
    caption = f"Difference from {name} ({unit}){errors}; where negative, our loss is lower."
    return Table(caption, ["", *map(str, lengths)], rows)
