"""The numbers that the FIRE paper (Li et al., ICLR 2024) reports.

Each line of `published.csv` is a cell of a table, a curve of a figure, or a number in the text. A
curve has no reported value; its line only identifies the model. `Published` describes the columns.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path

_FILE = Path(__file__).with_name("published.csv")


@dataclasses.dataclass(frozen=True)
class Published:
    """A cell of a table in the paper, a curve of a figure, or a number in the text.

    Attributes:
      source: "Table 4", "Fig. 1", or the section whose text states the number.
      row: The label of the row in the table, or of the curve in the figure.
      model: The stem of the model's file in configs/paper/, or "" if there is none.
      encoding: The value of ENCODING in that file.
      train_length: The pretraining length in tokens.
      dataset: For a loss, the name of a text; for a score, the name of a suite.
      metric: For a loss, log_perplexity (nats per token) or perplexity; for a score, the name of a
        task or, for a mean over tasks or lengths, SUITE_average.
      length: The length of the input in tokens; None for a curve, or for a mean over lengths.
      printed: The value as text, with the precision of the paper; "" for a curve.
    """

    source: str
    row: str
    model: str
    encoding: str
    train_length: int
    dataset: str
    metric: str
    length: int | None
    printed: str

    @property
    def value(self) -> float | None:
        return float(self.printed) if self.printed else None


@functools.cache
def published() -> tuple[Published, ...]:
    """Return all published cells in the order of the file."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        return tuple(
            Published(
                source=line["source"],
                row=line["row"],
                model=line["model"],
                encoding=line["encoding"],
                train_length=int(line["train_length"]),
                dataset=line["dataset"],
                metric=line["metric"],
                length=int(line["length"]) if line["length"] else None,
                printed=line["value"],
            )
            for line in csv.DictReader(file)
        )


def models() -> tuple[str, ...]:
    """Return the stems of all files in configs/paper/ whose models have published cells.

    Base models trained at 2048 come first, then base models trained at 512, then large models.
    """
    names = dict.fromkeys(cell.model for cell in published() if cell.model)
    return tuple(sorted(names, key=lambda name: (name.startswith("large_"), "_512_" in name)))


def cells(model: str) -> tuple[Published, ...]:
    """Return the cells and curves that the paper reports for a model.

    Raises:
      ValueError: The paper has no such model.
    """
    found = tuple(cell for cell in published() if cell.model == model)
    if not found:
        raise ValueError(f"the paper has no model {model!r}")
    return found


def log_perplexity_cells(model: str, dataset: str = "c4") -> Mapping[int, Published]:
    """Return a model's log perplexities on a data set, by length in tokens.

    If a value is printed several times, the result contains the cell with the most digits. The
    result is {} if the paper prints no values for the model.
    """
    best: dict[int, Published] = {}
    for cell in cells(model):
        if (cell.metric, cell.dataset) == ("log_perplexity", dataset) and cell.length is not None:
            known = best.get(cell.length)
            if known is None or len(cell.printed) > len(known.printed):
                best[cell.length] = cell
    return {length: best[length] for length in sorted(best)}


def places(model: str) -> str:
    """Return the tables and figures with results of a model, such as "Tables 2, 3; Fig. 1"."""
    numbers: dict[str, set[int]] = {"Table": set(), "Fig.": set()}
    for cell in cells(model):
        kind, _, number = cell.source.partition(" ")
        if kind in numbers:
            numbers[kind].add(int(number))
    words = {"Table": "Tables" if len(numbers["Table"]) > 1 else "Table", "Fig.": "Fig."}
    return "; ".join(
        f"{words[kind]} {', '.join(map(str, sorted(found)))}"
        for kind, found in numbers.items()
        if found
    )


def tie(one: Published, other: Published) -> bool:
    """Return whether two of the paper's values are equal at the lower of their precisions."""
    digits = min(len(cell.printed.partition(".")[2]) for cell in (one, other))
    return round(one.value or 0.0, digits) == round(other.value or 0.0, digits)
