"""What can end a command early, each with the exit code of the command-line contract."""

from __future__ import annotations

import re


class FireLMError(Exception):
    """An ending that is told in one or two plain lines, without a traceback."""

    exit_code = 1


class RunFailed(FireLMError):
    """The work itself failed: NaN loss, unreadable checkpoint, storage that refuses."""


class UserError(FireLMError):
    """Bad usage or configuration. Says what, where, and how to mend it."""

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
    """Whether a disk or a bucket refused; the errors of buckets are TensorFlow's, no OSError."""
    return isinstance(error, OSError) or type(error).__module__.startswith("tensorflow.")


def reason(error: Exception) -> str:
    """In one line: a bucket's own words within what TensorFlow quotes of its answer."""
    quoted = re.search(r'\\?"message\\?": \\?"([^"\\]*)', str(error))
    return quoted[1] if quoted else str(error).partition("\n")[0]
