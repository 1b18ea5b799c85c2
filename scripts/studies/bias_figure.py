"""A figure of the terms that encodings add to attention logits, as functions of distance.

The caller computes the values; this module only draws them.

Shapes: N heads, S distances (column d is distance d).
"""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from etils import epath

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 6
LOWEST = -20.0  # e^-20 is negligible compared with the other terms of a softmax

# With these styles, both curves remain visible where they overlap.
SOLID: dict[str, Any] = {"linewidth": 2.5, "alpha": 0.4, "solid_capstyle": "butt"}
DASHED: dict[str, Any] = {"linewidth": 0.9, "linestyle": (0, (4, 1.5))}


@dataclasses.dataclass(frozen=True, eq=False)
class Panel:
    """The curves of one encoding.

    Attributes:
      title: The names of the encoding's gin files.
      quantity: The name of the plotted quantity.
      near_NS: The values for the last query of an input of the training length, with one row for
        each head, or a single row if the values are the same for all heads.
      far_NS: The values for the last query of a longer input, or None if the encoding does not
        support that length.
    """

    title: str
    quantity: str
    near_NS: np.ndarray
    far_NS: np.ndarray | None


def figure(panels: Sequence[Panel], heads: Sequence[int], path: epath.Path) -> None:
    """Write a PNG with a small plot for each panel.

    The curves for the training length are solid, and those for the longer input are dashed. `heads`
    contains the index of the head to which each row of the panels belongs.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import colormaps, pyplot

    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    colours = [colormaps["viridis"](shade) for shade in np.linspace(0, 0.85, len(heads))]
    drawing, axes = pyplot.subplots(
        rows,
        columns,
        figsize=(max(2.55 * columns, 5.5), 1.75 * rows + 1.2),
        layout="constrained",
        squeeze=False,
    )
    near = panels[0].near_NS.shape[1]
    far = max((p.far_NS.shape[1] for p in panels if p.far_NS is not None), default=near)
    for place, panel in zip(axes.flat, panels, strict=False):
        _draw(place, panel, colours)
        _scale(place, panel, near, far)
    for spare in axes.flat[len(panels) :]:
        spare.set_axis_off()
    drawing.suptitle(
        "Terms that positional encodings add to a logit before training, against the distance "
        f"i \u2212 j to the key (cut off below {LOWEST:g})",
        fontsize=10,
        wrap=True,
    )
    drawing.legend(
        *_legend(heads, colours, near, far), loc="outside lower center", ncols=4, fontsize=8
    )
    image = io.BytesIO()
    drawing.savefig(image, format="png", dpi=110)
    pyplot.close(drawing)
    path.write_bytes(_with_palette(image))


def _draw(axes: Axes, panel: Panel, colours: Sequence[Any]) -> None:
    if len(panel.near_NS) == 1:
        colours = ["black"]
    for row, colour in zip(panel.near_NS, colours, strict=True):
        axes.plot(row, color=colour, **SOLID)
    if panel.far_NS is not None:
        for row, colour in zip(panel.far_NS, colours, strict=True):
            axes.plot(row, color=colour, **DASHED)
    axes.set_title(panel.title, loc="left", fontsize=8, pad=3)
    axes.set_title(panel.quantity, loc="right", fontsize=6, color="dimgrey", pad=3)


def _scale(axes: Axes, panel: Panel, near: int, far: int) -> None:
    """Format the axes of a panel, with the same range of distances for all panels.

    `near` is the training length, and `far` is the longer length.
    """
    axes.axvline(near, color="grey", linestyle=":", linewidth=1)
    # Distance 0 is on the axis, so the scale is linear up to 1.
    axes.set_xscale("symlog", base=2, linthresh=1, linscale=0.5)
    ticks = [0, *(8**k for k in range(9) if 8**k < near / 2), *sorted({near, far})]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(-0.1, 1.2 * far)
    axes.set_ylim(*_limits(panel))
    axes.locator_params(axis="y", nbins=4)
    axes.tick_params(labelsize=6, length=2, pad=2)
    axes.grid(alpha=0.25, linewidth=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _limits(panel: Panel) -> tuple[float, float]:
    """Return limits of the y axis that include all values except those below `LOWEST`."""
    drawn = [panel.near_NS] if panel.far_NS is None else [panel.near_NS, panel.far_NS]
    low = max(min(float(values_NS.min()) for values_NS in drawn), LOWEST)
    high = max(float(values_NS.max()) for values_NS in drawn)
    margin = 0.06 * (high - low) or 1.0
    return low - margin, high + margin


def _legend(
    heads: Sequence[int], colours: Sequence[Any], near: int, far: int
) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    entries = {f"solid: last query of {near} tokens, the training length": {**SOLID}}
    if far > near:
        entries[f"dashed: last query of {far} tokens"] = {**DASHED}
    entries[f"training length {near}"] = {"linestyle": ":"}
    entries["identical for all heads"] = {"color": "black"}
    for head, colour in zip(heads, colours, strict=True):
        entries[f"head {head}"] = {"color": colour}
    lines = [Line2D([], [], **{"color": "grey", **style}) for style in entries.values()]
    return lines, list(entries)


def _with_palette(image: io.BytesIO) -> bytes:
    """Return the PNG reduced to 128 colours, which halves the size of the file."""
    from PIL import Image

    smaller = io.BytesIO()
    Image.open(image).convert("RGB").quantize(128).save(smaller, format="png", optimize=True)
    return smaller.getvalue()
