"""The differences between our losses and those of another report, tested over seeds and text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fire_lm.reporting.differences import Sample, compare
from fire_lm.reporting.page import Table
from fire_lm.reporting.series import Scale, Series, lengths_of
from fire_lm.reporting.verdicts import difference_cell, explained


def against(
    lines: Sequence[Series], others: Sequence[Series], name: str, scale: Scale
) -> Table | None:
    """Tabulate the differences between our losses and those of another report.

    Each line is compared with the line of the same name in `others`. If there is no such line and
    `others` contains only one line, the comparison is with that line.

    Args:
      lines: Our losses.
      others: The losses of the other report.
      name: The name of the other report.
      scale: The scale of both.

    Returns:
      The table, or None if no line can be compared.
    """
    by_name = {line.name: line for line in others}
    chosen = {
        line.name: other
        for line in lines
        if (other := by_name.get(line.name) or (others[0] if len(others) == 1 else None))
    }
    if not chosen:
        return None
    lengths = lengths_of(lines)
    cells: dict[str, dict[int, str]] = {name: {} for name in chosen}
    shown, families = [], []
    for length in lengths:
        samples: dict[str, Sample] = {}
        for line in lines:
            other = chosen.get(line.name)
            if other and length in line.points and length in other.points:
                mine, their = (one.points[length].sample for one in (line, other))
                samples |= {line.name: mine, f"{line.name} of {name}": _renamed(their, mine, name)}
        pairs = [(one, f"{one} of {name}") for one in cells if one in samples]
        found = compare(samples, pairs)
        families.append(len(found.adjusted))
        for pair in pairs:
            shown.append((found.difference(*pair), found.apart(*pair)))
            cells[pair[0]][length] = difference_cell(*shown[-1], 3)
    if not shown:
        return None
    rows = [
        [f"{one} - {other.name}", *(cells[one].get(length, "") for length in lengths)]
        for one, other in chosen.items()
    ]
    what = explained(shown, families)
    caption = f"Difference from {name} ({scale.unit}); where negative, our loss is lower. {what}."
    return Table(caption, ["", *map(str, lengths)], rows)


def _renamed(their: Sample, mine: Sample, source: str) -> Sample:
    """Return a sample of another report, whose runs keep their names only if they are ours."""

    def name(run: str) -> str:
        return run if mine.values.get(run) == their.values[run] else f"{run} of {source}"

    return dataclasses.replace(
        their,
        values={name(run): value for run, value in their.values.items()},
        sums_R={name(run): sums_R for run, sums_R in their.sums_R.items()},
    )
