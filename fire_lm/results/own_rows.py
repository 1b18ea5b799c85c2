"""The rows that sweeps and evaluations wrote to a run's folder, under the run's current name.

A row contains the name that its run had when the row was computed. A run that is renamed or copied
keeps its rows, so every reader of a run's folder must use this module. Otherwise, the rows of a
single run could appear to belong to two runs, and their texts would not be compared.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from etils import epath

from fire_lm.results.scored_text import FILE, ScoredText, Texts
from fire_lm.results.sweep_rows import SweepRow
from fire_lm.results.tables import Keyed, LengthAccuracy, PositionLoss, TaskScore, read_table
from fire_lm.results.task_rows import FILE as TASK_SCORES_FILE

_Row = TypeVar("_Row", bound=Keyed)


class _HasKey(Protocol):
    @property
    def key(self) -> tuple[str | int, ...]: ...


_AnyRow = TypeVar("_AnyRow", bound=_HasKey)


@dataclasses.dataclass(frozen=True)
class OwnRows:
    """The rows of a run, by kind.

    `problem` is a message about rows of other runs in the run's file, or "" if there are none.
    """

    losses: Sequence[SweepRow]
    scored: Sequence[ScoredText]
    positions: Sequence[PositionLoss]
    accuracies: Sequence[LengthAccuracy] = ()
    task_scores: Sequence[TaskScore] = ()
    problem: str = ""

    @functools.cached_property
    def texts(self) -> Texts:
        """The texts on which the losses were measured."""
        return Texts(self.scored)


def read_own(workdir: epath.Path, encoding: str) -> OwnRows:
    """Return the rows in a run directory that belong to the run itself.

    `encoding` is the name of the run's encoding in tables. Rows with another encoding belong to
    other runs; older versions wrote such rows when the directory was the --output of a sweep over
    other runs.

    Raises:
      RunFailed: A file is damaged.
    """
    run, problem = workdir.name, ""

    def own(rows: Iterable[_Row]) -> list[tuple[str, _Row]]:
        """Return pairs of the run name in the file and the row renamed to this run's name."""
        return [(r.run, dataclasses.replace(r, run=run)) for r in rows if r.encoding == encoding]

    def read(file: str, kind: type[_Row]) -> list[_Row]:
        return once(own(read_table(workdir / file, kind)), run)

    losses = read_table(workdir / "length_sweep.csv", SweepRow)
    if others := [row.encoding for row in losses if row.encoding != encoding]:
        problem = (
            f"ignoring rows of {', '.join(sorted(set(others)))} in "
            f"{workdir / 'length_sweep.csv'}, because the encoding of this run is {encoding}\n"
            "delete them if they belong to other runs; if the encoding of this run had that name "
            "before, replace the name in the column `encoding` of the folder's .csv files before "
            "you sweep again"
        )
    return OwnRows(
        losses=once(own(losses), run),
        # All lines are kept, because a line belongs to the row with the same loss, regardless of
        # the run's name.
        scored=list(dict.fromkeys(row for _, row in own(read_table(workdir / FILE, ScoredText)))),
        positions=read("position_losses.csv", PositionLoss),
        accuracies=read("length_accuracy.csv", LengthAccuracy),
        task_scores=read(TASK_SCORES_FILE, TaskScore),
        problem=problem,
    )


def once(named: Sequence[tuple[str, _AnyRow]], run: str) -> list[_AnyRow]:
    """Return, for each key, only the rows that were written under one name.

    This name is the current name `run` if the key has rows under it, or else that of the first row.
    """
    counts: dict[tuple[str | int, ...], str] = {}
    for name, row in named:
        if name == run or row.key not in counts:
            counts[row.key] = name
    return [row for name, row in named if counts[row.key] == name]
