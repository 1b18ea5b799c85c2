"""Text in figures that covers a curve, other text or the edge of its panel."""

import itertools
from collections.abc import Iterator

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox


def overprinted(figure: Figure) -> list[str]:
    """Return the texts within panels that a curve or a band crosses, or that leave their panel.

    The result also contains pairs of overlapping texts, and legends that cover a panel. The numbers
    of a heat map, which lie on filled cells by design, are not examined.
    """
    figure.draw_without_rendering()
    found = []
    for axes in figure.axes:
        boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
        if not axes.lines and not axes.collections:
            continue
        found += [label for label, box in boxes.items() if crossed(axes, box)]
        found += [
            f"{one} and {other}"
            for one, other in itertools.combinations(boxes, 2)
            if boxes[one].overlaps(boxes[other])
        ]
    for legend in figure.legends:
        box = legend.get_window_extent()
        panels = [axes.get_tightbbox() for axes in figure.axes]
        covered = any(panel is not None and box.overlaps(panel) for panel in panels)
        inside = box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y0 >= 0
        found += ["legend"] * (covered or not inside)
    return found


def crossed(axes: Axes, box: Bbox) -> bool:
    """Return whether a box of text in a panel meets a curve or a band, or leaves the panel."""
    edge = axes.get_window_extent()
    inside = edge.containsx(box.x0) and edge.containsx(box.x1) and edge.containsy(box.y0)
    curves = (line.get_transform().transform_path(line.get_path()) for line in axes.lines)
    bands = (
        band.get_transform().transform_path(path)
        for band in axes.collections
        for path in band.get_paths()
    )
    return (
        not inside
        or any(path.intersects_bbox(box, filled=False) for path in curves)
        or any(path.intersects_bbox(box, filled=True) for path in bands)
    )


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    """Return a list to which every figure that is saved during the test is added."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *arguments: object, **how: object) -> None:
        figures.append(figure)
        save(figure, *arguments, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(Figure, "savefig", keep)
    yield figures
