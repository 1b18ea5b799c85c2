"""Runs gcloud and kubectl from lists of arguments: no shell on this machine reads them."""

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
    "kubectl": "gcloud components install kubectl gke-gcloud-auth-plugin",
}
_SECONDS = 1800.0


def pause(seconds: float) -> None:
    """Between looks at what takes its time; tests have none of it."""
    time.sleep(seconds)


class CallFailed(RunFailed):
    """A call ended with an error that is nobody's slip here: a network, a service, a host."""


class NotFound(CallFailed):
    """The resource does not exist."""


class Refused(CallFailed):
    """Credentials, quota or permissions that are not there: a matter of the user's."""

    exit_code = 2


class Calls:
    """Makes the calls; in a dry run only prints them."""

    def __init__(self, dry_run: bool = False):
        self.dry_run = dry_run

    def change(self, arguments: Sequence[str], stdin: str = "") -> str:
        """Run a call that changes something; returns its output.

        Raises:
          UserError: the program is missing.
          Refused, NotFound, CallFailed: it ended with an error.
        """
        if self.dry_run:
            print(shlex.join(arguments) + (f" <<'END'\n{stdin}END" if stdin else ""))
            return ""
        return self._run(arguments, stdin)

    def read(self, arguments: Sequence[str]) -> str:
        """Run a call that changes nothing; returns its output, or nothing in a dry run."""
        return self.change(arguments)

    def ask(self, arguments: Sequence[str]) -> Any:
        """Return the JSON that a call prints; None for nothing."""
        told = self.read(arguments)
        try:
            return json.loads(told or "null")
        except ValueError as error:
            raise CallFailed(f"`{shlex.join(arguments)}` did not print JSON: {error}") from error

    def stream(self, arguments: Sequence[str]) -> None:
        """Run a call whose output goes straight to the terminal."""
        if self.dry_run:
            print(shlex.join(arguments))
            return
        try:
            code = subprocess.run(list(arguments), check=False).returncode
        except FileNotFoundError as error:
            raise _missing(arguments[0]) from error
        if code:
            raise CallFailed(f"`{shlex.join(arguments)}` ended with exit code {code}")

    def _run(self, arguments: Sequence[str], stdin: str = "") -> str:
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
        except FileNotFoundError as error:
            raise _missing(arguments[0]) from error
        except subprocess.TimeoutExpired as error:
            raise CallFailed(f"no answer in {_SECONDS:.0f} s: {shlex.join(arguments)}") from error
        if done.returncode:
            raise _failure(arguments, done.returncode, done.stderr or done.stdout)
        return done.stdout


def _missing(program: str) -> UserError:
    return UserError(f"{program} is not on PATH\n{_INSTALL.get(program, 'install it')}")


# What ends a call for want of something, and what to do about it.
_REFUSALS = (
    (
        r"ssh-add",
        "gcloud reaches several hosts with the key in ssh-agent only: "
        "eval $(ssh-agent) && ssh-add ~/.ssh/google_compute_engine",
    ),
    (
        r"RESOURCE_EXHAUSTED|[Qq]uota (limit|.*exceeded)",
        "ask for quota of this accelerator in this zone (tpu/README.md, Quota), or choose another "
        "--cluster.zone or --cluster.accelerator",
    ),
    (r"INVALID_ARGUMENT", "see --cluster.accelerator and --cluster.zone"),
    (
        r'resource type "jobsets?"',
        "the cluster needs JobSet: https://jobset.sigs.k8s.io/docs/installation",
    ),
    (r"PERMISSION_DENIED|\b403\b|Forbidden", "tpu/README.md lists the roles that are needed"),
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
# What gcloud's ssh tells of its own doings.
_CHATTER = re.compile(
    r"SSH: |See 'docker |Run 'docker |#####|WARNING|Using ssh batch size|Updating project ssh|\s*$"
)


def _failure(arguments: Sequence[str], code: int, stderr: str) -> CallFailed:
    """The error that fits what the program said."""
    lines = [line for line in stderr.splitlines() if not _CHATTER.match(line)]
    first = next((i for i, x in enumerate(lines) if re.match(r"ERROR|error|Error", x)), 0)
    remote = list(arguments[3:5]) == ["tpu-vm", "ssh"]
    # What a host said comes before ssh's own error, and its reason last.
    line = lines[: max(first, 1)][-1:] if remote else _worded(lines[first:])
    said = "".join(line or [f"exit code {code}"])
    said = re.sub(r"^ERROR: (\(gcloud[\w.-]*\) )?", "", said).strip()
    call = shlex.join(arguments[:6]) + (" ..." if len(arguments) > 6 else "")
    told = "\n".join(lines[first:])
    if _CREDENTIALS.search(told):
        return Refused(f"{said}\nrun `gcloud auth login`, then this again")
    if not _TRANSIENT.search(told):
        for pattern, mend in _REFUSALS:
            if re.search(pattern, told):
                return Refused(f"{said}\n{mend}")
        if not remote and _MISSING.search(told):
            return NotFound(f"{said} (`{call}`)")
    return CallFailed(f"{said} (`{call}`)")


def _worded(lines: Sequence[str]) -> Sequence[str]:
    """The first line; of an error in JSON, its message."""
    message = re.search(r'"message": "([^"]*)"', "\n".join(lines))
    return [message[1]] if message and lines[0].rstrip().endswith("{") else lines[:1]
