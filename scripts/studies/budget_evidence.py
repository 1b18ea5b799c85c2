"""The evidence on budgets in docs/frozen_normaliser.md: collects runs, and draws figure and tables.

usage: .venv/bin/python scripts/studies/budget_evidence.py [RUNS ...]

With folders of runs, such as grids with other numbers of steps than evidence/frozen has, the rows
of their ended runs replace docs/evidence/budgets. In any case, the figure in that
folder and the part of the page between the two comments are written again from both folders.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import page_parts
from command import EVIDENCE, refusing
from etils import epath

from fire_lm.reporting import budget_sections
from fire_lm.reporting.budgets import Budgets, by_budget, drifts, tokens_in_words
from fire_lm.reporting.differences import LEVEL
from fire_lm.reporting.gather import gather
from fire_lm.reporting.length_sweep import loss_table
from fire_lm.reporting.losses import Scored
from fire_lm.reporting.page import Picture, Table
from fire_lm.reporting.series import listed
from fire_lm.results import ScoredText, SweepRow
from fire_lm.results.folder import Results, write_results

MORE = EVIDENCE / "budgets"
FOLDERS = (EVIDENCE / "frozen", MORE)
TEXT = Scored("python_packages", "validation", "concat", "full")
PAGE = "frozen_normaliser.md"
FIGURE = "evidence/budgets/drift_python_packages_validation_concat.svg"
NAME = Path(__file__).name
Row = TypeVar("Row", SweepRow, ScoredText)


def collected(runs: Sequence[str]) -> Results:
    """Return the losses of the ended runs in folders, with the texts and the runs' facts."""
    found = gather(runs, with_probes=False)
    steps = {run.run: run.train_steps for run in found.runs}

    def ended(rows: Iterable[Row]) -> list[Row]:
        return [row for row in rows if row.step == steps[row.run]]

    losses, scored = ended([*found.losses, *found.earlier]), ended(found.scored)
    names = {row.run for row in losses}
    return Results(
        runs=[run for run in found.runs if run.run in names],
        losses=losses,
        scored=scored,
        series=[one for one in found.series if one.run in names],
    )


def figure(budgets: Budgets) -> Picture:
    """Return the figure of drift by budget."""
    return budget_sections.drift(TEXT, budgets)


def drift_words(budgets: Budgets) -> list[str]:
    """Say for which series drift grows with the budget, for each multiple."""
    scale, words = budgets.scale, []
    for multiple in budgets.multiples:
        groups: dict[str, list[str]] = {}
        for name, (change, apart) in drifts(budgets, multiple).growth.items():
            kind = "larger" if change.value > 0 else "smaller"
            if not change.tested:
                kind = "not tested, because of a single run,"
            elif not apart and change.p_value <= LEVEL:
                kind += " as a single comparison"
            elif not apart:
                kind = "not distinguishable"
            width = f" ± {scale.formatted(change.half_width)}" * change.tested
            groups.setdefault(kind, []).append(f"{name} ({change.value:+.{scale.digits}f}{width})")
        if groups:
            kinds = sorted(groups, key=lambda kind: kind.startswith("not"))
            told = "; ".join(f"{kind} for {listed(groups[kind])}" for kind in kinds)
            words.append(
                f"At x{multiple:g}, the drift at the largest budget, compared with that at the "
                f"smallest, is {told}."
            )
    return words


def block(budgets: Budgets) -> str:
    """Return the part of the page that contains the numbers."""
    four = next(i for i, multiple in enumerate(budgets.multiples) if multiple == 4)
    losses = [
        (f"{tokens_in_words(tokens)} tokens", loss_table(budgets.at(tokens), budgets.scale))
        for tokens in budgets.tokens[1:]
    ]
    drift = [t for t in budget_sections.drift_tables(budgets) if "above the loss" in t.caption][
        four
    ]
    parts = [
        f"![drift against tokens per parameter]({FIGURE})",
        *drift_words(budgets)[1:],
        drift.caption,
        _named("drift at x4", drift),
        *dict.fromkeys(table.caption for _, table in losses),
        *(_named(name, table) for name, table in losses),
    ]
    return "\n\n".join(parts)


def _named(name: str, table: Table) -> str:
    return dataclasses.replace(table, header=[name, *table.header[1:]]).markdown()


def main(runs: Sequence[str]) -> None:
    if runs:
        write_results(epath.Path(MORE), collected(runs))
    ((_, budgets),) = by_budget(gather([*map(str, FOLDERS)])).items()
    picture = figure(budgets)
    (MORE / f"{picture.name}.svg").write_text(picture.image.svg)
    page_parts.write(PAGE, NAME, block(budgets))
    print(f"wrote {MORE / picture.name}.svg and the tables of docs/{PAGE}")


if __name__ == "__main__":
    sys.exit(refusing(main, sys.argv[1:]))
