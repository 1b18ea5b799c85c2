"""The errors that end a command early, each with its exit code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class FireLMError(Exception):
    """An expected failure, reported in one or two plain lines without a traceback."""

    exit_code = 1


class RunFailed(FireLMError):
    """The work itself failed: NaN loss, unreadable checkpoint, storage that refuses."""


class UserError(FireLMError):
    """Bad usage or configuration; the message says what, where, and how to fix it."""

    exit_code = 2


class Preempted(FireLMError):
    """Stopped from outside after the state was saved; the same command resumes."""

    exit_code = 3


def printable(text: str) -> str:
    """A message as a terminal may have it: what it quotes of the user's is cut where it is very
    long, and control characters, which could hide the rest, are written as escapes."""
    shown = "".join(
        c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )
    shown = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda word: _middle_cut(word[0], 240), shown)
    lines = shown.split("\n")
    return "\n".join(
        line if len(line) <= _LONGEST_LINE else _middle_cut(line, 1200) for line in lines
    )


# A path may be long; a line that lists all parameters of a checkpoint is longer.
_LONGEST_WORD, _LONGEST_LINE = 500, 3000


def _middle_cut(text: str, kept: int) -> str:
    return f"{text[: kept // 2]}...{text[-kept // 2 :]}"


def is_of_storage(error: Exception) -> bool:
    """Return whether a disk or a bucket refused; a bucket's errors are TensorFlow's, no OSError."""
    return isinstance(error, OSError) or type(error).__module__.startswith("tensorflow.")


def reason(error: Exception) -> str:
    """The reason in one line: a bucket's own words within what TensorFlow quotes of them."""
    quoted = re.search(r'\\?"message\\?": \\?"([^"\\]*)', str(error))
    return quoted[1] if quoted else str(error).partition("\n")[0]


def first_line(error: BaseException) -> str:
    """The message of a foreign exception on one line; the name of its class if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The most similar of `names`, ignoring case, or None if nothing is near."""
    by_lower: dict[str, str] = {}
    for candidate in sorted(set(names)):
        by_lower.setdefault(candidate.lower(), candidate)
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, names: Iterable[str], prefix: str = "") -> str:
    """A sentence with the nearest name; else the whole list if it is short; else nothing."""
    known = sorted(set(names))
    near = nearest(name, known)
    if near is not None:
        return f" Did you mean {prefix}{near}?"
    if known and len(known) <= 12:
        return " Known: " + ", ".join(prefix + k for k in known) + "."
    return ""
