"""Our results beside those of the FIRE paper: losses, the order of encodings, and task scores.

usage: .venv/bin/python scripts/studies/beside_the_paper.py RUN ... [--output DIR]

Lengths are matched to the paper's as multiples of the training length, because the paper's models
were trained at 2048 tokens and most of our models at other lengths. Pairs of encodings are tested
over seeds and text (`fire_lm.reporting.differences`), as members of the family of all pairs at that
length, so that this page and the report tell the same pairs apart. With a single seed, there is no
such test: encodings are then ordered by their losses.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Mapping, Sequence

import command
import paper_scores
import papers_order
from papers_order import TRAIN_LENGTH, in_the_paper
from published import Published, tie

from fire_lm.reporting.differences import Sample, compare, text_alone
from fire_lm.reporting.length_sweep import families
from fire_lm.reporting.losses import Scored
from fire_lm.reporting.page import Section, Table
from fire_lm.reporting.series import Series
from fire_lm.reporting.verdicts import chance, reference_at
from fire_lm.results.folder import Results, RunFacts

_PAPER_PARAMETERS = 125e6


def beside_the_paper(
    results: Results, scored: Scored, lines: Sequence[Series]
) -> tuple[list[str], Table | None]:
    """Compare the ranking of our encodings with that in the paper, by losses in nats per token.

    Lines with a change at evaluation, and models of 250M parameters or more, are ignored.

    Returns:
      Sentences on the agreement of the two rankings, and a table of both. The list is empty and the
      table is None if no line has a loss at one of the paper's multiples of the training length.
    """
    ours, theirs = in_the_paper(results, lines)
    multiples = sorted({multiple for cells in theirs.values() for multiple in cells})
    common = [m for m in multiples if any(_ours(line, m) for line in ours.values())]
    if not common:
        return [], None
    compared = [run for line in ours.values() for run in results.arms()[line.arm]]
    words = [_apart(compared, scored)]
    words += [told for m in common if (told := _order(m, lines, ours, theirs))]
    return words, _table(ours, theirs, common)


def _ours(line: Series, multiple: float) -> Sample | None:
    return line.points.get(round(multiple * line.train_length))


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
    if lengths != [TRAIN_LENGTH]:
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
      open: The pairs that are not distinguishable.
      close: The untested pairs whose difference is no larger than that of two seeds may be.
      tied: The number of pairs whose losses in the paper are equal at the paper's precision.
      tested: The number of tests for which p-values are corrected: those of all pairs at this
        length, also of arms that are not in the paper.
    """

    same: int = 0
    reversed: list[str] = dataclasses.field(default_factory=list)
    open: list[str] = dataclasses.field(default_factory=list)
    close: list[str] = dataclasses.field(default_factory=list)
    tied: int = 0
    tested: int = 0


def _order(
    multiple: float,
    all_lines: Sequence[Series],
    ours: Mapping[str, Series],
    theirs: Mapping[str, Mapping[float, Published]],
) -> str:
    """Describe both rankings at a multiple of the training length, and the pairs that agree.

    The result is "" if fewer than two encodings can be compared. All pairs of `all_lines` at the
    length are one family of tests.
    """
    lines = {
        name: line
        for name, line in ours.items()
        if _ours(line, multiple) and multiple in theirs[name]
    }
    cells = {name: theirs[name][multiple] for name in lines}
    if len({line.encoding for line in lines.values()}) < 2:
        return ""
    family = papers_order.samples_at(multiple, all_lines)
    samples = {name: family[name] for name in lines}
    in_paper = sorted(lines, key=lambda name: cells[name].value or 0.0)
    found = [
        pair
        for pair in itertools.combinations(in_paper, 2)
        if lines[pair[0]].encoding != lines[pair[1]].encoding
    ]
    pairs = _Pairs(tied=sum(tie(cells[one], cells[other]) for one, other in found))
    found = [pair for pair in found if not tie(*(cells[name] for name in pair))]
    compared = compare(family)
    pairs.tested = len(compared.adjusted)
    _, most = chance(samples.values(), reference_at(multiple))
    for one, other in found:
        gap = compared.difference(one, other)
        if gap.tested and not compared.apart(one, other):
            pairs.open.append(f"{one} and {other}")
        elif not gap.tested and abs(gap.value) <= math.hypot(most, 1.96 * (gap.text_error or 0.0)):
            pairs.close.append(f"{one} and {other} ({abs(gap.value):.3f})")
        elif gap.value < 0:
            pairs.same += 1
        else:
            pairs.reversed.append(f"{other} before {one}")
    paper = {lines[name].encoding: cells[name].value or 0.0 for name in lines}
    alone = any(len(sample.values) < 2 for sample in samples.values())
    told = [
        f"At {multiple:g}x the training length, best first: {_best_first(samples, alone)}; "
        f"in the paper {' < '.join(sorted(paper, key=lambda name: paper[name]))}.",
        "With a single seed, there is no test over seeds; pairs are ordered by their losses."
        * alone,
        f"Pairs in the paper's order: {pairs.same}.",
        *_told(pairs),
    ]
    return " ".join(filter(None, told))


def _best_first(samples: Mapping[str, Sample], with_gaps: bool) -> str:
    """Describe our ranking at a multiple of the training length.

    If `with_gaps` is set, the description also contains the losses and the difference of each
    encoding from the preceding encoding.
    """
    names = sorted(samples, key=lambda name: samples[name].mean)
    if not with_gaps:
        return " < ".join(names)
    told = [f"{names[0]} {samples[names[0]].mean:.3f}"]
    errors = False
    for before, name in itertools.pairwise(names):
        one, other = samples[name], samples[before]
        error = text_alone(one, other)
        gap = "" if error is None else f" (+{one.mean - other.mean:.3f} ± {error:.3f})"
        errors = errors or bool(gap)
        told.append(f"{name} {one.mean:.3f}{gap}")
    what = (
        " (in parentheses: the difference from the preceding encoding, ± its standard error over "
        "the rows of their common text alone)"
    )
    return " < ".join(told) + what * errors


def _told(pairs: _Pairs) -> list[str]:
    """Describe all pairs except those in the paper's order."""
    told = []
    if pairs.reversed:
        told.append(f"Reversed ({len(pairs.reversed)}): {', '.join(pairs.reversed)}.")
    if pairs.open:
        told.append(
            f"Not distinguishable ({len(pairs.open)}; tested over seeds and text at 5 %, corrected "
            f"for all {pairs.tested} pairs at this length): {', '.join(pairs.open)}."
        )
    if pairs.close:
        told.append(
            f"As close as two seeds of one encoding may be ({len(pairs.close)}): "
            f"{', '.join(pairs.close)}."
        )
    if pairs.tied:
        told.append(f"Equal at the paper's precision: {pairs.tied}.")
    return told


def _table(
    ours: Mapping[str, Series],
    theirs: Mapping[str, Mapping[float, Published]],
    multiples: Sequence[float],
) -> Table:
    header = ["", "source in the paper"]
    for multiple in multiples:
        paper_length = round(multiple * TRAIN_LENGTH)
        header += [f"x{multiple:g}: ours", f"paper, column {paper_length}"]
    rows = []
    for name in sorted(theirs, key=lambda name: theirs[name][max(theirs[name])].value or 0.0):
        sources = dict.fromkeys(f"{c.source}, {c.row}" for c in theirs[name].values())
        row = [name, "; ".join(sources)]
        for multiple in multiples:
            mean, cell = _ours(ours[name], multiple), theirs[name].get(multiple)
            row += [f"{mean.mean:.3f}" if mean else "", cell.printed if cell else ""]
        rows.append(row)
    caption = (
        "Log perplexity (nats per token) at multiples of the training length: ours, and the "
        "paper's on C4. Rows are in the order of the paper at its longest length."
    )
    return Table(caption, header, rows)


def sections(results: Results) -> list[Section]:
    """Return a section for each text and suite with results that the paper has too."""
    made = []
    for family in families(results):
        if family.apart:
            continue
        words, table = beside_the_paper(family.results, family.scored, family.lines)
        if table:
            made.append(Section(f"Comparison with the paper: {family.title}", words, [table]))
    made += [*papers_order.sections(results), *paper_scores.sections(results)]
    return made or [Section("Comparison with the paper", ["The paper has no such results."])]


if __name__ == "__main__":
    sys.exit(command.page_of("Beside the FIRE paper", sections))
