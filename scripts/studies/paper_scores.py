"""The scores of downstream tasks beside those that the FIRE paper prints."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Sequence

from published import Published, published

from fire_lm.reporting.page import Section, Table
from fire_lm.reporting.task_columns import Column
from fire_lm.reporting.task_lines import SuiteScores, suite_scores
from fire_lm.reporting.task_tables import name_of, score_table
from fire_lm.results.folder import Results, RunFacts
from fire_lm.tasks.suites import TASKS

_LARGE = 250e6  # parameters; the paper's large models have 350M


def sections(results: Results) -> list[Section]:
    """Return a section for each suite with scores of the paper's encodings."""
    return [
        Section(f"Task scores: {name_of(scores.suite)}", _compared(scores, rows), [table])
        for scores in suite_scores(results)
        for rows in [papers(scores)]
        for table in [with_papers(scores, rows)]
        if rows
    ]


def with_papers(scores: SuiteScores, beside: Sequence[PaperRow]) -> Table:
    """Return the table of a suite, in which each of our lines is followed by the paper's rows."""
    ours = score_table(scores)
    rows: list[Sequence[str]] = []
    places = []
    for row in ours.rows:
        places.append(len(rows))
        rows += [row, *(paper.row(scores) for paper in beside if paper.after == row[0])]
    best = frozenset((places[row], column) for row, column in ours.best)
    return dataclasses.replace(ours, rows=rows, best=best)


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """The row of a table that shows the scores of a model of the paper on a suite.

    Attributes:
      after: The name of our line that this row follows. Both models have the same encoding and
        about the same size.
      cells: The cells that the paper prints for the model.
    """

    after: str
    cells: Sequence[Published]

    @property
    def name(self) -> str:
        size = "350M" if self.cells[0].model.startswith("large_") else "125M"
        numbers = sorted({int(cell.source.removeprefix("Table ")) for cell in self.cells})
        tables = "Table" if len(numbers) == 1 else "Tables"
        row = Counter(cell.row for cell in self.cells).most_common(1)[0][0]
        return f"the paper's {row}, {size} ({tables} {', '.join(map(str, numbers))})"

    def row(self, scores: SuiteScores) -> list[str]:
        """Return the text of the row's cells in the table of `scores`."""
        found = [self._printed(column) for column in scores.columns]
        return [self.name, *found, *[self._average(scores)] * bool(scores.averaged)]

    def _printed(self, column: Column) -> str:
        for cell in self.cells:
            if cell.metric == column.task and column.length in (None, cell.length):
                return cell.printed
        return ""

    def _average(self, scores: SuiteScores) -> str:
        """Return the printed average or else the mean of the columns, or "" if one is missing."""
        for cell in self.cells:
            if cell.metric == f"{scores.suite}_average":
                return cell.printed
        printed = [self._printed(column) for column in scores.averaged]
        return f"{statistics.fmean(map(float, printed)):.2f}" if all(printed) else ""


def papers(scores: SuiteScores) -> list[PaperRow]:
    """Return the paper's rows for models whose encoding and approximate size match our lines.

    Lines with a change at evaluation, or of models finetuned on another task, have no such row.
    """
    of_model: dict[str, list[Published]] = {}
    for cell in published():
        if cell.dataset == scores.suite and cell.printed:
            of_model.setdefault(cell.model, []).append(cell)
    found: dict[str, PaperRow] = {}
    for line in scores.lines:
        if line.variant or line.finetuned_on in TASKS:
            continue
        for model, cells in of_model.items():
            same = cells[0].encoding == line.runs[0].encoding
            if same and model.startswith("large_") == _is_large(line.runs[0]):
                found.setdefault(model, PaperRow(line.name, cells))
    return list(found.values())


def _is_large(run: RunFacts) -> bool:
    return run.parameters >= _LARGE


def _compared(scores: SuiteScores, beside: Sequence[PaperRow]) -> list[str]:
    """Return a list with a comparison of our models and the paper's, or [] if `beside` is empty."""
    if not beside:
        return []
    runs = [run for line in scores.lines for run in line.runs]
    sizes = sorted({f"{run.parameters / 1e6:.2f}M" for run in runs})
    lengths = sorted({run.train_length for run in runs})
    return [
        "The paper's rows are those of its models with the same encoding, which have 125M or 350M "
        "parameters and were pretrained on C4. Ours have "
        f"{' or '.join(sizes)} parameters and were trained at {' or '.join(map(str, lengths))} "
        "tokens."
        + " If the paper prints no average, the mean of its columns is shown."
        * bool(scores.averaged)
    ]
