"""Tables and sentences on losses by budget."""

from __future__ import annotations

from collections.abc import Sequence

from fire_lm.reporting.budgets import Budgets, Tested, drifts, head
from fire_lm.reporting.differences import LEVEL
from fire_lm.reporting.page import Table
from fire_lm.reporting.verdicts import difference_cell, explained, listed


def described(budgets: Budgets) -> list[str]:
    """Describe what a budget and a drift are."""
    told = "A budget is the number of tokens seen in training: steps x batch x length."
    if not budgets.ended:
        told += (
            " Some of these models are checkpoints from the middle of runs, whose learning rate "
            "was still high: runs that end at each budget tell more."
        )
    if budgets.left_out:
        told += f" Left out, because they have not ended: {', '.join(budgets.left_out)}."
    drift = "The drift is the loss at a multiple of the training length minus that at that length."
    return [f"{told} {drift}"]


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
            width = f" ± {scale.told(change.half_width)}" * change.tested
            groups.setdefault(kind, []).append(f"{name} ({change.value:+.{scale.digits}f}{width})")
        if groups:
            kinds = sorted(groups, key=lambda kind: kind.startswith("not"))
            told = "; ".join(f"{kind} for {listed(groups[kind])}" for kind in kinds)
            words.append(
                f"At x{multiple:g}, the drift at the largest budget, compared with that at the "
                f"smallest, is {told}."
            )
    return words


def drift_tables(budgets: Budgets) -> list[Table]:
    """Tabulate drift by budget, and the same minus KERPLE's, for each multiple."""
    tables = []
    scale = budgets.scale
    unit = scale.unit[0].upper() + scale.unit[1:]
    for multiple in budgets.multiples:
        found = drifts(budgets, multiple)
        columns = [found.drift[tokens] for tokens in budgets.tokens]
        heads = [head(budgets, tokens) for tokens in budgets.tokens]
        tables.append(
            _table(
                f"{unit} at x{multiple:g} above the loss at the training length",
                [*heads, "last minus first"],
                [*columns, found.growth],
                list(budgets.series),
            )
        )
        if any(found.over_kerple.values()):
            tables.append(
                _table(
                    f"The same minus KERPLE's, at x{multiple:g}",
                    heads,
                    [found.over_kerple[tokens] for tokens in budgets.tokens],
                    [n for n in budgets.series if any(n in c for c in found.over_kerple.values())],
                )
            )
    return tables


def _table(
    caption: str, heads: Sequence[str], columns: Sequence[Tested], names: Sequence[str]
) -> Table:
    shown = [cell for column in columns for cell in column.values()]
    pairs = [sum(one.tested for one, _ in column.values()) for column in columns]
    body = [
        [name, *(difference_cell(*column[name], 3) if name in column else "" for column in columns)]
        for name in names
    ]
    return Table(f"{caption}: {explained(shown, pairs)}.", ["", *heads], body)
