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


def is_of_storage(error: Exception) -> bool:
    """Whether a disk or a bucket refused; the errors of buckets are TensorFlow's, no OSError."""
    return isinstance(error, OSError) or type(error).__module__.startswith("tensorflow.")


def reason(error: Exception) -> str:
    """In one line: a bucket's own words within what TensorFlow quotes of its answer."""
    quoted = re.search(r'\\?"message\\?": \\?"([^"\\]*)', str(error))
    return quoted[1] if quoted else str(error).partition("\n")[0]
