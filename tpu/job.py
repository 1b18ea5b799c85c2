"""Jobs: sequences of fire-lm commands that run under one name."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import re
from typing import TYPE_CHECKING, Protocol

from fire_lm.errors import UserError

if TYPE_CHECKING:
    from fire_lm.experiment import Experiment

# Names must satisfy the rules of Google (63 characters for queued resources) and of Kubernetes (63
# for pods, whose names end in up to 19 characters of JobSet's, such as -slice-10-127-abcde).
LONGEST_NAME = 44
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def check_name(name: str, longest: int = LONGEST_NAME) -> str:
    """Return the name after checking that it is valid for a TPU, a JobSet and a folder.

    Jobs that exist already may have longer names than new ones, up to `longest` characters.

    Raises:
      UserError: The name is invalid; the message suggests a valid one if possible.
    """
    if not _NAME.fullmatch(name) or len(name) > longest:
        valid = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")
        valid = valid[:LONGEST_NAME].rstrip("-")
        hint = f": {valid} would be valid" if valid else ""
        raise UserError(
            f"{name!r} cannot be the name of a run{hint}\n"
            f"use at most {LONGEST_NAME} lower-case letters, digits and dashes; begin with a letter"
        )
    return name


def bindings_of(config: Experiment) -> str:
    """Return the bindings of the gin files and flags, without defaults, which may gain settings."""
    return "".join(sorted(f"{name} = {value}\n" for name, value in config.bindings.items()))


@dataclasses.dataclass(frozen=True)
class Job:
    """A job that runs under one name.

    Attributes:
      name: The name of the job and its TPUs.
      commands: The commands, each a list of arguments, which run one after another on every host.
      folder: The folder in which `logs/` is created, in a bucket or on this machine.
      bindings: The gin bindings of the experiment, which the files in the commands may change.
      once: Whether a finished job has nothing left to do. Otherwise, it may run again.
      slices: The numbers of slices on which the job can continue when others are lost.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    folder: str
    bindings: str = ""
    once: bool = True
    slices: tuple[int, ...] = ()

    @property
    def digest(self) -> str:
        """A hash that distinguishes this job from others with the same name."""
        content = json.dumps(self.commands) + self.bindings
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def mark(self) -> str:
        """The path of the file that marks this job as done; empty if the job may run again."""
        return f"{self.folder}/logs/done-{self.digest}" if self.once else ""

    def on_host(self, restarts: int) -> list[str]:
        """Return the command that each host runs."""
        return [
            *("python", "-m", "tpu.host", f"--restarts={restarts}"),
            *(f"--folder={self.folder}", f"--mark={self.mark}"),
            f"--job={json.dumps(self.commands)}",
        ]


class Stage(enum.Enum):
    """The stages of a job, which determine the follower's next action."""

    ABSENT = "there is no TPU"
    WAITING = "waiting for TPUs"
    READY = "the TPUs are ready, but idle"
    FEWER = "a slice was lost"
    MORE = "a slice has returned"
    RUNNING = "running"
    SILENT = "the hosts do not respond"
    LOST = "the TPUs were lost"
    LEAVING = "the TPUs are being released"
    DONE = "done"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True)
class State:
    """The state of a job.

    Attributes:
      why: Further details, with instructions if the user can act on them.
      code: The exit code of a job that failed.
    """

    stage: Stage
    why: str = ""
    code: int = 0

    def __str__(self) -> str:
        return self.stage.value + (f": {self.why}" if self.why else "")


# The state of a job that is marked as done and has no resources left.
EARLIER = State(Stage.DONE, "earlier")


class Backend(Protocol):
    """A backend that runs jobs: queued resources or a GKE cluster.

    A backend keeps no state of its own.
    """

    def look(self, job: Job) -> State:
        """Return the job's state; raise UserError if a different job is running under its name."""

    def create(self, job: Job) -> None:
        """Request the TPUs."""

    def setup(self, name: str) -> None:
        """Pull the image on every host and check that every host can write to the bucket."""

    def launch(self, job: Job) -> None:
        """Start the job on all hosts, or raise RunFailed after ensuring that it runs on none."""

    def reset(self, name: str) -> None:
        """Clean up after a job that has ended, so that it can start again."""

    def tail(self, name: str, lines: int) -> str:
        """Return the last lines that a job printed on its first host."""

    def logs(self, name: str, host: int, lines: int, follow: bool) -> None:
        """Print the output of a job on one host."""

    def stop(self, name: str) -> None:
        """Make the job save its state and end, without deleting the requested resources."""

    def delete(self, name: str) -> str:
        """End the job and release its TPUs; return a description of the outcome."""

    def hosts(self, name: str) -> list[str]:
        """Return a line for each host with the state of the job there."""

    def listing(self) -> list[dict[str, str]]:
        """Return a row of `status` for each resource in the zone or cluster, whoever created it."""
