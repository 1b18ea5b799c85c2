"""Pages of docs/, and pairs of arms of our studies compared by the rule of reports."""

import functools

from command import EVIDENCE, ROOT
from etils import epath

from fire_lm.reporting import differences
from fire_lm.reporting.losses import loss_lines
from fire_lm.reporting.series import Series
from fire_lm.results.folder import Results, read_results


def page(name: str) -> str:
    """Return the words of a page of docs/, separated by single spaces."""
    return " ".join((ROOT / "docs" / name).read_text().split())


@functools.cache
def results_of(study: str) -> Results:
    return read_results(epath.Path(EVIDENCE / study))


def unclear(study: str, *arms: str) -> list[int]:
    """Return the lengths at which two arms cannot be told apart, as a single comparison."""
    lengths = sorted(line_of(study, arms[0]).points)
    return [length for length in lengths if pair(study, length, *arms).p_value > 0.05]


@functools.cache
def lines_of(study: str) -> dict[str, Series]:
    (lines,) = loss_lines(results_of(study)).values()
    return {line.name: line for line in lines}


def line_of(study: str, arm: str) -> Series:
    return lines_of("fire_ablations" if study == "family" and arm == "fire" else study)[arm]


def pair(study: str, length: int, one: str, other: str) -> differences.Difference:
    return differences.difference(*(line_of(study, arm).points[length] for arm in (one, other)))


def interval(study: str, length: int, one: str, other: str, digits: int = 3) -> str:
    """Return by how much the first arm is worse, with its 95 % interval."""
    found = pair(study, length, one, other)
    return f"{found.value:.{digits}f} ± {found.half_width:.{digits}f}"


def ranged(study: str, length: int, one: str, other: str) -> str:
    """Return by how much the first arm is worse, with the ends of the 95 % interval."""
    found = pair(study, length, one, other)
    ends = (found.value - found.half_width, found.value + found.half_width)
    return f"{found.value:.3f} ({ends[0]:.3f} to {ends[1]:.3f})"
