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
    """What was asked for is not there."""


class Calls:
    """Makes the calls; in a dry run only prints them."""

    def __init__(self, dry_run: bool = False):
        self.dry_run = dry_run

    def change(self, arguments: Sequence[str], stdin: str = "") -> str:
        """Runs a call that changes something; its output.

        Raises:
          UserError: the program or the credentials are missing, or quota or permission.
          NotFound, CallFailed: it ended with another error.
        """
        if self.dry_run:
            print(shlex.join(arguments) + (f" <<'END'\n{stdin}END" if stdin else ""))
            return ""
        return self._run(arguments, stdin)

    def read(self, arguments: Sequence[str]) -> str:
        """Runs a call that changes nothing; its output, or nothing in a dry run."""
        return self.change(arguments)

    def ask(self, arguments: Sequence[str]) -> Any:
        """As `read`, of a call that prints JSON; None for nothing."""
        told = self.read(arguments)
        try:
            return json.loads(told or "null")
        except ValueError as error:
            raise CallFailed(f"`{shlex.join(arguments)}` did not print JSON: {error}") from error

    def stream(self, arguments: Sequence[str]) -> None:
        """Runs a call whose output goes straight to the terminal."""
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


def _failure(arguments: Sequence[str], code: int, stderr: str) -> UserError | CallFailed:
    """The error that fits what the program said."""
    errors = [line for line in stderr.splitlines() if re.match(r"ERROR|error|Error", line)]
    said = (errors or stderr.strip().splitlines() or [f"exit code {code}"])[0].strip()
    said = re.sub(r"^ERROR: (\(gcloud[\w.-]*\) )?", "", said)
    call = shlex.join(arguments[:6]) + (" ..." if len(arguments) > 6 else "")
    if re.search(r"not currently have an active account|gcloud auth login|[Rr]eauth", stderr):
        return UserError(
            "gcloud has no valid credentials\nrun `gcloud auth login`, then this again"
        )
    if re.search(r"RESOURCE_EXHAUSTED|[Qq]uota", stderr):
        return UserError(
            f"{said}\nask for quota of this accelerator in this zone (tpu/README.md, Quota), or "
            "choose another --cluster.zone or --cluster.accelerator"
        )
    if re.search(r"PERMISSION_DENIED|\b403\b|Forbidden", stderr):
        return UserError(f"{said}\ntpu/README.md lists the roles that are needed")
    if re.search(r"NOT_FOUND|\bNotFound\b|not found|matched no objects|\b404\b", stderr):
        return NotFound(f"{said} (`{call}`)")
    return CallFailed(f"{said} (`{call}`)")
