"""The common style of figures, which are drawn as SVG and as PNG images.

Identical data gives identical bytes, because the files contain no dates or random identifiers. Text
in an SVG uses the reader's fonts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Readers with red-green colour blindness can distinguish these colours, which are visible on both
# white and black.
_COLOURS = (
    "#d1495b", "#2e86ab", "#e08a1e", "#3a9d5d", "#9067c6",
    "#b0663a", "#d667a0", "#84922c", "#1aa0a0", "#7a8288",
)  # fmt: skip
FIRST, GREY = _COLOURS[0], _COLOURS[-1]
_MARKERS = "osD^vPX*<>"
_TRAINED = "trained: "  # the beginning of a label
# In an SVG, the colour `_INK_MARK` is a placeholder for the colour of the page's text.
_INK, _INK_MARK = "#1c1c1c", "#010203"
_STYLE = "<style>svg{color:#1c1c1c}@media(prefers-color-scheme:dark){svg{color:#e6e6e6}}</style>"


@dataclasses.dataclass(frozen=True)
class Image:
    """A figure as an SVG and as a PNG.

    `svg` has no background and adapts to light and dark pages; `png` is black on white.
    """

    svg: str
    png: bytes


def drawn(draw: Callable[[Figure], None], width: float, height: float) -> Image:
    """Draw an image with `draw`, which adds axes to an empty figure of the given size in inches."""
    return Image(_svg(draw, width, height), png(draw, width, height))


def _svg(draw: Callable[[Figure], None], width: float, height: float) -> str:
    with _settings(_INK_MARK):
        data = _saved(draw, width, height, format="svg", transparent=True, metadata=_NO_METADATA)
    text = data.decode().replace(_INK_MARK, "currentColor")
    opening = text.index(">", text.index("<svg")) + 1
    return text[:opening] + _STYLE + text[opening:]


def png(draw: Callable[[Figure], None], width: float, height: float) -> bytes:
    """Return an image as a PNG; the arguments are those of `drawn`."""
    with _settings(_INK):
        return _saved(draw, width, height, format="png", dpi=150, metadata={"Software": None})


# By default, matplotlib writes its version and the current time to the file.
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def _saved(draw: Callable[[Figure], None], width: float, height: float, **how: Any) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    draw(figure)
    data = io.BytesIO()
    figure.savefig(data, **how)
    return data.getvalue()


@contextmanager
def _settings(ink: str) -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(
        {
            "text.color": ink,
            "axes.edgecolor": ink,
            "axes.labelcolor": ink,
            "axes.titlecolor": ink,
            "xtick.color": ink,
            "ytick.color": ink,
            "grid.color": ink,
            "legend.labelcolor": ink,
            "svg.fonttype": "none",
            "svg.hashsalt": "fire_lm",
            "font.family": "sans-serif",
            "font.size": 10,
            "axes.titlesize": 10,
            "legend.fontsize": 9,
            "legend.frameon": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.15,
            "lines.linewidth": 1.6,
        }
    ):
        yield


def styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return a colour, marker and line style for each name.

    The styles depend only on the sequence of names.
    """
    return {
        name: {
            "color": _COLOURS[index % len(_COLOURS)],
            "marker": _MARKERS[index % len(_MARKERS)],
            "linestyle": ("-", "--", ":")[index // len(_COLOURS) % 3],
        }
        for index, name in enumerate(names)
    }


def varied(style: dict[str, Any], number: int) -> dict[str, Any]:
    """Return variation `number` of a style: the same colour, another marker and dash pattern."""
    marker = _MARKERS[(_MARKERS.index(style["marker"]) + 1 + number) % len(_MARKERS)]
    dashes = ((5, 2), (1, 1.5), (5, 1.5, 1, 1.5), (8, 3))
    return {**style, "marker": marker, "linestyle": (0, dashes[number % len(dashes)])}


def shades(count: int) -> list[str]:
    """Return colours for `count` layers or heads, with similar contrast to white and to black."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    ends = ("#c8553d", "#b4508f", "#7a64c8", "#2e7fb8", "#2f8f6b", "#84812c")
    colours = LinearSegmentedColormap.from_list("shades", ends)
    return [to_hex(colours(index / max(1, count - 1))) for index in range(count)]


def length_axis(axes: Axes, lengths: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("sequence length (tokens)")


def training_length(axes: Axes, lengths: Sequence[int]) -> None:
    """Mark the training lengths with dotted vertical lines, which the legend names.

    A label within the panel would cover curves in some figures.
    """
    trained = sorted(set(lengths))
    label = f"{_TRAINED}{', '.join(map(str, trained))}"
    for number, length in enumerate(trained):
        name = f"_{label}" if number else label  # the legend omits names with an underscore
        axes.axvline(length, color=GREY, linestyle=":", linewidth=1, label=name)


def legend_below(figure: Figure, panels: Sequence[Axes]) -> None:
    """Draw a single legend below all panels, in which each name appears once."""
    named: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    labels = sorted(named, key=lambda label: label.startswith(_TRAINED))  # names of curves first
    handles = [named[label] for label in labels]
    # With the usual length, the marker hides the dashes that tell variants of an arm apart.
    dashed = any(_is_dashed(handle) for handle in handles)
    length = _LONG_HANDLE if dashed else None
    columns = legend_columns([f"{label}{'   ' * dashed}" for label in labels])
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=length)


_LONG_HANDLE = 3.6  # in units of the font size; matplotlib's own is 2


def _is_dashed(handle: Any) -> bool:
    from matplotlib.container import ErrorbarContainer

    line = handle[0] if isinstance(handle, ErrorbarContainer) else handle
    marked = line is not None and line.get_marker() not in ("", "None")
    return marked and line.get_linestyle() == "--"


def legend_columns(labels: Sequence[str]) -> int:
    """Return the number of legend columns that fit side by side."""
    return max(1, min(6, 72 // (7 + max(map(len, labels), default=1))))


def size(labels: Sequence[str]) -> tuple[float, float]:
    """Return the width and height in inches of a chart with a legend below it.

    The legend has `labels` and the training length.
    """
    names = {*labels, f"{_TRAINED}2048"}
    lines = -(-len(names) // legend_columns(list(names)))
    return 6.2, 4.0 + 0.2 * lines


def slug(text: str) -> str:
    """Return a file name without a suffix for `text`, which is truncated and hashed if long."""
    name = re.sub("[^a-z0-9]+", "_", text.lower()).strip("_")
    if len(name) <= 80:
        return name
    return f"{name[:71]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
