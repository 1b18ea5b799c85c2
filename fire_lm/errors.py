"""The errors that end a command early, and their exit codes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class FireLMError(Exception):
    """An expected failure, reported in one or two plain lines without a traceback.

    Attributes:
      exit_code: The exit code of a command that fails with this error.
      everywhere: Whether every process of the job raises this error.
    """

    exit_code = 1

    def __init__(self, message: object = "", everywhere: bool = False):
        super().__init__(message)
        self.everywhere = everywhere


class RunFailed(FireLMError):
    """A failure of the work itself, such as a NaN loss, an unreadable checkpoint or a full disk."""


class OutputLost(RunFailed):
    """A result that could not be written to stdout."""


class ReaderEnded(OutputLost):
    """The end of the command that reads stdout, such as `head`; it has no message, as elsewhere."""

    exit_code = 141  # of a process that SIGPIPE ends, in a shell


class UserError(FireLMError):
    """Invalid usage or configuration; the message says what is wrong, where, and how to fix it."""

    exit_code = 2


class Preempted(FireLMError):
    """An interruption from outside, after which rerunning the same command resumes the work."""

    exit_code = 3


def printable(text: str) -> str:
    """Return a message in a form that is safe to print to a terminal.

    Very long words and lines, which usually come from the user's input, are shortened. Control
    characters, which could hide the rest of the message, are replaced by escape sequences.
    """
    shown = "".join(
        c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )
    shown = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda word: _middle_cut(word[0], 240), shown)
    lines = shown.split("\n")
    return "\n".join(
        line if len(line) <= _LONGEST_LINE else _middle_cut(line, 1200) for line in lines
    )


# In characters. Long paths count as words, and a list of a checkpoint's parameters can be one line.
_LONGEST_WORD, _LONGEST_LINE = 500, 3000


def _middle_cut(text: str, kept: int) -> str:
    return f"{text[: kept // 2]}...{text[-kept // 2 :]}"


def is_of_storage(error: Exception) -> bool:
    """Return whether an error came from a disk or a bucket.

    Errors from a bucket are instances of TensorFlow's own classes, which do not derive from
    OSError.
    """
    return isinstance(error, OSError) or type(error).__module__.startswith("tensorflow.")


def reason(error: Exception) -> str:
    """Return the reason for an error in one line.

    If TensorFlow quotes a message from the bucket, the reason is this message; otherwise, it is the
    first line of the error.
    """
    quoted = re.search(r'\\?"message\\?": \\?"([^"\\]*)', str(error))
    return quoted[1] if quoted else str(error).partition("\n")[0]


def first_line(error: BaseException) -> str:
    """Return an error's first line, cut to 300 characters, or its class name if it has none."""
    return (str(error).strip() or type(error).__name__).split("\n")[0].rstrip()[:300]


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the most similar of `names`, ignoring case, or None if no name is similar enough."""
    by_lower: dict[str, str] = {}
    for candidate in sorted(set(names)):
        by_lower.setdefault(candidate.lower(), candidate)
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None


def did_you_mean(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return the end of a message, which suggests the name most similar to `name`.

    If no name is similar, it lists all `names`, or is empty if there are more than 12 or none.
    """
    known = sorted(set(names))
    near = nearest(name, known)
    if near is not None:
        return f". Did you mean {prefix}{near}?"
    if known and len(known) <= 12:
        return ". Known: " + ", ".join(prefix + k for k in known)
    return ""
