"""How configuration errors are worded: one plain line, with the nearest name where one is near."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The most similar of `names`, ignoring case, or None if nothing is near."""
    by_lower: dict[str, str] = {}
    for candidate in sorted(set(names)):
        by_lower.setdefault(candidate.lower(), candidate)
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, names: Iterable[str], prefix: str = "") -> str:
    """A sentence with the nearest name; else the whole list if short; else nothing."""
    known = sorted(set(names))
    near = nearest(name, known)
    if near is not None:
        return f" Did you mean {prefix}{near}?"
    if known and len(known) <= 12:
        return " Known: " + ", ".join(prefix + k for k in known) + "."
    return ""


def shown(value: Any) -> str:
    """`value` on one line of at most 80 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def first_line(error: BaseException) -> str:
    """The message of a foreign exception, on one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
