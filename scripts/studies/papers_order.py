"""The order of encodings at each budget beside that of the FIRE paper: tables and a figure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from published import Published, log_perplexity_cells, published, tie

from fire_lm.reporting import charts
from fire_lm.reporting.budget_sections import budget_axis
from fire_lm.reporting.budgets import Budgets, by_budget, head
from fire_lm.reporting.differences import Sample, compare
from fire_lm.reporting.losses import Scored
from fire_lm.reporting.page import Picture, Section, Table
from fire_lm.reporting.series import Series
from fire_lm.results.folder import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAIN_LENGTH = 2048
_LARGE = 250e6  # parameters; the paper reports no losses of larger models
_MULTIPLES = (1.0, 2.0, 4.0)  # of the training length, at which the paper's Table 4 has losses


def sections(results: Results) -> list[Section]:
    """Return a section for each text with several budgets and encodings of the paper."""
    made = []
    for scored, budgets in by_budget(results).items():
        if found := orders(budgets):
            parts: list[Table | Picture] = [
                *order_tables(budgets, found),
                picture(scored, budgets, found),
            ]
            made.append(Section(f"Order by budget: {scored}", order_words(found), parts))
    return made


def papers_model(encoding: str) -> str | None:
    """Return the base model whose log perplexities the paper reports for an encoding, or None."""
    for cell in published():
        same = cell.encoding == encoding and cell.train_length == TRAIN_LENGTH
        if same and cell.metric == "log_perplexity" and cell.printed:
            return cell.model
    return None


def in_the_paper(
    results: Results, lines: Sequence[Series]
) -> tuple[dict[str, Series], dict[str, Mapping[float, Published]]]:
    """Return the lines that the paper has losses of, and these losses, both by the line's name.

    The losses are by length as a multiple of the training length. Lines with a change at
    evaluation, and models of 250M parameters or more, are omitted.
    """
    ours: dict[str, Series] = {}
    theirs: dict[str, Mapping[float, Published]] = {}
    for line in lines:
        runs = results.arms()[line.arm]
        model = papers_model(line.encoding)
        if model and not line.variant and runs[0].parameters < _LARGE:
            ours[line.name] = line
            theirs[line.name] = {
                length / TRAIN_LENGTH: cell for length, cell in log_perplexity_cells(model).items()
            }
    return ours, theirs


def samples_at(multiple: float, lines: Sequence[Series]) -> dict[str, Sample]:
    """Return the losses of all lines at a multiple of the training length, for tests."""
    known = [line for line in lines if length_at(line, multiple) in line.points]
    return {line.name: line.points[length_at(line, multiple)] for line in known}


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
    ours, theirs = in_the_paper(budgets.results, budgets.at(tokens))
    cells = {
        name: theirs[name][multiple]
        for name, line in ours.items()
        if multiple in theirs[name] and length_at(line, multiple) in line.points
    }
    in_paper = sorted(cells, key=lambda name: cells[name].value or 0.0)
    pairs = [
        (one, other)
        for one, other in itertools.combinations(in_paper, 2)
        if ours[one].encoding != ours[other].encoding and not tie(cells[one], cells[other])
    ]
    if not pairs:
        return None
    family = samples_at(multiple, budgets.at(tokens))
    samples = {name: family[name] for name in cells}
    compared = compare(family)
    signs = [-1 if compared.difference(*pair).value > 0 else 1 for pair in pairs]
    clear = [sign for sign, pair in zip(signs, pairs, strict=True) if compared.apart(*pair)]
    unclear = len(pairs) - len(clear)
    by_mean = sorted(samples, key=lambda name: samples[name].mean)
    several = all(len(one.values) > 1 for one in samples.values())
    means = {name: mean for name, mean in compared.means.items() if name in samples}
    ranking = dataclasses.replace(compared, means=means).ranking  # apart in the family of all arms
    return Order(
        ours=ranking() if several else " < ".join(by_mean),
        papers=" < ".join(ours[name].encoding for name in in_paper),
        tau=sum(signs) / len(pairs),
        least=(sum(clear) - unclear) / len(pairs),
        most=(sum(clear) + unclear) / len(pairs),
        pairs=len(pairs),
        tested=bool(compared.adjusted),
    )


def length_at(line: Series, multiple: float) -> int:
    return round(multiple * line.train_length)


def orders(budgets: Budgets) -> dict[int, dict[float, Order]]:
    """Return, for each budget, the order at each multiple at which encodings can be compared."""
    found = {
        tokens: {
            multiple: one for multiple in _MULTIPLES if (one := order(budgets, tokens, multiple))
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


def picture(
    scored: Scored, budgets: Budgets, found: Mapping[int, Mapping[float, Order]]
) -> Picture:
    """Draw the rank correlation with the paper's order against tokens per parameter."""
    multiples = sorted({multiple for own in found.values() for multiple in own})
    names = [f"x{multiple:g}" for multiple in multiples]
    styles = charts.styles(names)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for number, multiple in enumerate(multiples):
            points = [(tokens, own[multiple]) for tokens, own in found.items() if multiple in own]
            aside = 1.02 ** (number - (len(multiples) - 1) / 2)  # so that no bar hides another
            ratios = [budgets.at(tokens)[0].per_parameter * aside for tokens, _ in points]
            taus = [one.tau for _, one in points]
            tests = [(one.least, one.most) if one.tested else (one.tau,) * 2 for _, one in points]
            errors = [
                [tau - low for tau, (low, _) in zip(taus, tests, strict=True)],
                [high - tau for tau, (_, high) in zip(taus, tests, strict=True)],
            ]
            style = styles[f"x{multiple:g}"]
            if not same_encodings(found):
                style = {**style, "linestyle": ""}
            label = f"x{multiple:g} the training length"
            axes.errorbar(ratios, taus, errors, label=label, markersize=4, capsize=2, **style)
        axes.axhline(0, color=charts.GREY, linewidth=1)
        budget_axis(axes, budgets)
        axes.set_ylim(-1.05, 1.05)
        axes.set_xlabel("training tokens per parameter")
        axes.set_ylabel("Kendall's tau with the paper's order")
        charts.legend_below(figure, [axes])

    told = "; ".join(
        f"{name} " + ", ".join(f"{own[m].tau:+.2f}" for own in found.values() if m in own)
        for name, m in zip(names, multiples, strict=True)
    )
    apart = "" if same_encodings(found) else "; not joined, because the encodings differ"
    return Picture(
        name=charts.slug(f"order {scored}"),
        caption="Kendall's tau of our order of encodings with the paper's, against training tokens "
        f"per parameter, on {scored}; bars: the values that the pairs allow that are not told "
        f"apart, none for single runs{apart}.",
        alt=f"Line chart of Kendall's tau with the paper's order. By budget: {told}.",
        image=charts.drawn(draw, *charts.size(names)),
    )
