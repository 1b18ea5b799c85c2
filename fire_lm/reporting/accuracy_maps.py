"""Maps of mean accuracies: a row for each task, and a column for each arm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_UNREAD = "length and place alone"


class Cell(NamedTuple):
    """A mean in percent, and whether it is over other lengths than those of most arms."""

    value: float
    other_lengths: bool


def heat_map(
    names: Sequence[str], cells: Mapping[tuple[str, str], Cell], unread: Mapping[str, float | None]
) -> tuple[Callable[[Figure], None], float, float]:
    """Return a function that draws a map, and the width and height of the figure in inches.

    `cells` has the means by task and name. `unread` has, for each task, the mean of the best answer
    from length and place alone, which is the first column, or None if it is unknown.
    """
    labels = [name.replace(" (", "\n(") for name in (_UNREAD, *names)]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, (task, guess) in enumerate(unread.items()):
            if guess is not None:
                axes.text(0.5, row + 0.5, f"{guess:.0f}", ha="center", va="center")
            for column, name in enumerate(names, start=1):
                if cell := cells.get((task, name)):
                    _draw_cell(axes, column, row, cell, guess or 0.0)
        axes.grid(False)
        axes.set_xlim(0, len(labels))
        axes.set_ylim(len(unread), 0)
        axes.set_yticks([row + 0.5 for row in range(len(unread))], list(unread))
        columns = [column + 0.5 for column in range(len(labels))]
        axes.set_xticks(columns, labels, rotation=40, ha="right", rotation_mode="anchor")

    # A character is 0.08 inches wide. The labels of columns are rotated by 40 degrees: 0.77 of
    # their length extends to the left of their column, and 0.65 of it downwards.
    label = 0.08 * max(len(part) for text in labels for part in text.split("\n"))
    left = max(0.09 * max(map(len, unread)), 0.77 * label - 0.25) + 0.3
    return draw, left + 0.55 * len(labels), 0.5 + 0.32 * len(unread) + 0.65 * label


def _draw_cell(axes: Axes, column: int, row: int, cell: Cell, unread: float) -> None:
    import matplotlib

    share = min(1.0, max(0.0, (cell.value - unread) / max(1e-9, 100 - unread)))
    colour = matplotlib.colormaps["viridis"](share)
    corners = ([column, column + 1, column + 1, column], [row, row, row + 1, row + 1])
    axes.fill(*corners, color=colour, linewidth=0)
    ink = "#000000" if share > 0.55 else "#ffffff"
    centre = (column + 0.5, row + 0.5)
    text = f"{cell.value:.0f}{'*' * cell.other_lengths}"
    axes.text(*centre, text, color=ink, ha="center", va="center")
