"""Tables and sentences on losses by budget, and the order of encodings beside the paper's."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from fire_lm.reporting.budgets import Budgets, Tested, drifts, head
from fire_lm.reporting.comparison import in_the_paper, tie
from fire_lm.reporting.differences import LEVEL, compare
from fire_lm.reporting.page import Table
from fire_lm.reporting.seeds import Line
from fire_lm.reporting.verdicts import BITS, NATS, difference_cell, explained, listed

PAPERS_MULTIPLES = (
    1.0,
    2.0,
    4.0,
)  # of the training length, at which the paper's Table 4 has losses


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
    scale, words = NATS if budgets.nats else BITS, []
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
    scale = NATS if budgets.nats else BITS
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


@dataclasses.dataclass(frozen=True)
class Order:
    """The order of encodings at one budget and multiple, beside the paper's.

    Attributes:
      ours: Our order in words, best first.
      papers: The paper's order of the same encodings.
      tau: Kendall's rank correlation of the two orders of means.
      least: Its value if all pairs that are not told apart were reversed.
      most: Its value if they all were in the paper's order.
      pairs: The number of pairs of encodings that the paper's digits separate.
      tested: Whether any pair is tested.
    """

    ours: str
    papers: str
    tau: float
    least: float
    most: float
    pairs: int
    tested: bool

    def __str__(self) -> str:
        told = f"{self.tau:+.2f}"
        if not self.tested:
            return f"{told} (no test)"
        return f"{told} ({self.least:+.2f} to {self.most:+.2f})"


def order(budgets: Budgets, tokens: int, multiple: float) -> Order | None:
    """Return the order at a budget and a multiple, or None with fewer than two encodings."""
    ours, theirs = in_the_paper(budgets.results, budgets.lines(tokens))
    cells = {
        name: theirs[name][multiple]
        for name, line in ours.items()
        if multiple in theirs[name] and _length(line, multiple) in line.losses(budgets.nats)
    }
    in_paper = sorted(cells, key=lambda name: cells[name].value or 0.0)
    pairs = [
        (one, other)
        for one, other in itertools.combinations(in_paper, 2)
        if ours[one].encoding != ours[other].encoding and not tie(cells[one], cells[other])
    ]
    if not pairs:
        return None
    samples = {n: ours[n].sample(_length(ours[n], multiple), budgets.nats) for n in cells}
    compared = compare(samples, pairs)
    signs = [-1 if compared.difference(*pair).value > 0 else 1 for pair in pairs]
    clear = [sign for sign, pair in zip(signs, pairs, strict=True) if compared.apart(*pair)]
    unclear = len(pairs) - len(clear)
    by_mean = sorted(samples, key=lambda name: samples[name].mean)
    seeds = {name: one for name, one in samples.items() if len(one.values) > 1}
    return Order(
        ours=compare(samples).ranking() if len(seeds) == len(samples) else " < ".join(by_mean),
        papers=" < ".join(ours[name].encoding for name in in_paper),
        tau=sum(signs) / len(pairs),
        least=(sum(clear) - unclear) / len(pairs),
        most=(sum(clear) + unclear) / len(pairs),
        pairs=len(pairs),
        tested=bool(compared.adjusted),
    )


def _length(line: Line, multiple: float) -> int:
    return round(multiple * line.train_length)


def orders(budgets: Budgets) -> dict[int, dict[float, Order]]:
    """Return, for each budget, the order at each multiple at which encodings can be compared."""
    found = {
        tokens: {
            multiple: one
            for multiple in PAPERS_MULTIPLES
            if (one := order(budgets, tokens, multiple))
        }
        for tokens in budgets.tokens
    }
    return {tokens: own for tokens, own in found.items() if own}


def same_encodings(found: Mapping[int, Mapping[float, Order]]) -> bool:
    """Return whether all budgets have the same encodings."""
    orders = [one.papers for own in found.values() for one in own.values()]
    return len({frozenset(names.split(" < ")) for names in orders}) == 1


def order_words(found: Mapping[int, Mapping[float, Order]]) -> list[str]:
    """Explain the tables of orders."""
    words = [
        "The order of encodings is compared with that of the paper's Table 4 (Table 2 for FIRE-S) "
        "by Kendall's tau: the pairs of encodings in the paper's order minus the reversed pairs, "
        "divided by all pairs that the paper's digits separate. It counts pairs, so that its error "
        "follows from tests of pairs."
    ]
    if not same_encodings(found):
        words.append("The budgets have different encodings, so their values are not comparable.")
    return words


def order_tables(budgets: Budgets, found: Mapping[int, Mapping[float, Order]]) -> list[Table]:
    """Tabulate the rank correlation with the paper, and the orders themselves."""
    multiples = sorted({multiple for own in found.values() for multiple in own})
    heads = [f"x{multiple:g}" for multiple in multiples]
    numbers, words = [], []
    for tokens, own in found.items():
        pairs = dict.fromkeys(str(one.pairs) for one in own.values())
        cells = [str(own[multiple]) if multiple in own else "" for multiple in multiples]
        numbers.append([head(budgets, tokens), ", ".join(pairs), *cells])
        cells = [own[multiple].ours if multiple in own else "" for multiple in multiples]
        words.append([head(budgets, tokens), *cells])
    most = max(found.values(), key=lambda own: max(one.pairs for one in own.values()))
    words.append(["the paper", *(most[m].papers if m in most else "" for m in multiples)])
    tests = [one for own in found.values() for one in own.values() if one.tested]
    errors = (
        "; in parentheses: the lowest and the highest value that the pairs allow that are not told "
        "apart over seeds (5 %, all pairs together)"
    ) * bool(tests)
    single = "; no test: a single run does not show how much seeds differ" * (
        len(tests) < sum(map(len, found.values()))
    )
    return [
        Table(
            f"Kendall's tau with the paper's order at multiples of the training length{errors}"
            f"{single}.",
            ["", "pairs", *heads],
            numbers,
        ),
        Table(
            "Encodings, best first; arms with a letter in common are not told apart "
            "if there are several seeds.",
            ["", *heads],
            words,
        ),
    ]
