"""Calls to gcloud and kubectl, as lists of arguments that no shell on this machine interprets."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from fire_lm.errors import RunFailed, UserError

_INSTALL = {
    "gcloud": "install the Google Cloud CLI: https://cloud.google.com/sdk/docs/install",
    "kubectl": "install it: gcloud components install kubectl gke-gcloud-auth-plugin",
}
# The libraries that read from buckets do not use the account of `gcloud auth login`.
LIBRARIES_LOGIN = "without credentials, run `gcloud auth application-default login`"
_SECONDS = 1800.0


def pause(seconds: float) -> None:
    """Sleep before the next attempt; tests replace this function."""
    time.sleep(seconds)


class CallFailed(RunFailed):
    """A failed call; unless a subclass says otherwise, the network, a service or a host failed."""


class NotFound(CallFailed):
    """A call that failed because the resource does not exist."""


class Refused(CallFailed):
    """A call that was refused, for example for lack of credentials, quota or permissions.

    The user must fix the cause.
    """

    exit_code = 2


class NoAccount(Refused):
    """A call that was refused because nobody has logged in."""


def in_one_line(error: Exception) -> str:
    """Return an error with what to do about it, as a part of a line."""
    return "; ".join(line.rstrip(".") for line in str(error).split("\n"))


class Calls:
    """The interface to external programs; in a dry run, calls are printed instead of made."""

    def __init__(self, dry_run: bool = False):
        self.dry_run = dry_run
        self.told: set[str] = set()  # what a dry run has printed and checked, which it says once

    def change(self, arguments: Sequence[str], stdin: str = "") -> str:
        """Make a call that changes resources, and return its output.

        Raises:
          UserError: The program is missing.
          Refused, NotFound, CallFailed: The call ended with an error.
        """
        if self.dry_run:
            print(shlex.join(arguments) + (f" <<'END'\n{stdin}END" if stdin else ""))
            return ""
        try:
            done = subprocess.run(
                list(arguments),
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
            )
        except OSError as error:
            raise _missing(arguments[0], error) from error
        except subprocess.TimeoutExpired as error:
            raise CallFailed(f"no reply in {_SECONDS:.0f} s: {shlex.join(arguments)}") from error
        if done.returncode:
            raise _failure(arguments, done.returncode, done.stderr or done.stdout)
        return done.stdout

    def read(self, arguments: Sequence[str]) -> str:
        """Make a call that changes nothing, and return its output, which is empty in a dry run."""
        if self.dry_run:
            call = shlex.join(arguments)
            if call in self.told:
                return ""
            self.told.add(call)
        return self.change(arguments)

    def ask(self, arguments: Sequence[str]) -> Any:
        """Make a call that prints JSON, and return the parsed value; None if nothing is printed."""
        printed = self.read(arguments)
        try:
            return json.loads(printed or "null")
        except ValueError as error:
            raise CallFailed(f"`{shlex.join(arguments)}` did not print JSON: {error}") from error

    def stream(self, arguments: Sequence[str]) -> None:
        """Make a call whose output goes directly to the terminal."""
        if self.dry_run:
            print(shlex.join(arguments))
            return
        try:
            code = subprocess.run(list(arguments), check=False).returncode
        except OSError as error:
            raise _missing(arguments[0], error) from error
        if code:
            raise CallFailed(f"`{shlex.join(arguments)}` ended with exit code {code}")


def _missing(program: str, error: OSError) -> UserError:
    problem = "is not on PATH" if isinstance(error, FileNotFoundError) else "cannot be run"
    return UserError(f"{program} {problem}\n{_INSTALL.get(program, 'install it')}")


# Patterns that show why a call was refused, each with instructions for fixing the cause.
_REFUSALS = (
    (
        r"ssh-add",
        "to reach several hosts, gcloud needs the key in ssh-agent: run "
        "eval $(ssh-agent) && ssh-add ~/.ssh/google_compute_engine",
    ),
    (
        r"RESOURCE_EXHAUSTED|[Qq]uota (limit|.*exceeded)",
        "request quota for this accelerator in this zone (tpu/README.md, Quota), or choose another "
        "--cluster.zone or --cluster.accelerator",
    ),
    (r"INVALID_ARGUMENT", "check --cluster.accelerator and --cluster.zone"),
    (
        r'resource type "jobsets?"',
        "the cluster needs JobSet: https://jobset.sigs.k8s.io/docs/installation",
    ),
    (r"PERMISSION_DENIED|\b403\b|Forbidden", "tpu/README.md lists the required roles"),
    (
        r"context .*does not exist|no context exists",
        "`kubectl config get-contexts` lists the available ones, for --cluster.gke_context",
    ),
)
_CREDENTIALS = re.compile(
    r"not currently have an active account|[Rr]eauthentication|invalid_grant|\(Unauthorized\)"
)
_TRANSIENT = re.compile(r"per minute|problem refreshing|try again later|UNAVAILABLE")
_MISSING = re.compile(r"NOT_FOUND|\(NotFound\)|not found|matched no objects|\b404\b")
# Lines in which gcloud's ssh command and Docker report their own progress or give hints.
_CHATTER = re.compile(
    r"SSH: |See 'docker |Run 'docker |#####|WARNING|Using ssh batch size|Updating project ssh|\s*$"
)


def _failure(arguments: Sequence[str], code: int, stderr: str) -> CallFailed:
    """Return the error that describes the failure, based on the program's output."""
    lines = [line for line in stderr.splitlines() if not _CHATTER.match(line)]
    first = next((i for i, x in enumerate(lines) if re.match(r"ERROR|error|Error", x)), 0)
    remote = list(arguments[3:5]) == ["tpu-vm", "ssh"]
    # A host's output precedes ssh's own error, and the last line of that output gives the reason.
    line = lines[: max(first, 1)][-1:] if remote else _worded(lines[first:])
    said = "".join(line or [f"exit code {code}"])
    said = re.sub(r"^ERROR: (\(gcloud[\w.-]*\) )?", "", said).strip()
    call = shlex.join(arguments[:6]) + (" ..." if len(arguments) > 6 else "")
    text = "\n".join(lines[first:])
    if _CREDENTIALS.search(text):
        return NoAccount(f"{said}\nrun `gcloud auth login`, then rerun this command")
    if not _TRANSIENT.search(text):
        for pattern, fix in _REFUSALS:
            if re.search(pattern, text):
                return Refused(f"{said}\n{fix}")
        if not remote and _MISSING.search(text):
            return NotFound(f"{said} (`{call}`)")
    return CallFailed(f"{said} (`{call}`)")


def _worded(lines: Sequence[str]) -> Sequence[str]:
    """Return the first line or, if the error is in JSON, its message."""
    message = re.search(r'"message": "([^"]*)"', "\n".join(lines))
    return [message[1]] if message and lines[0].rstrip().endswith("{") else lines[:1]
