"""What can end a command early, each with the exit code of the command-line contract."""

from __future__ import annotations


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
