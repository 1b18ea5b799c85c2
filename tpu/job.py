"""A job: one or more fire-lm commands, one after another, under one name."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import re
from typing import Protocol

from fire_lm.errors import UserError

# Both Google's (queued resources: 63 characters) and Kubernetes's rule for names, with room for
# what JobSet adds to the names of pods.
LONGEST_NAME = 49
_NAME = re.compile(rf"[a-z]([-a-z0-9]{{0,{LONGEST_NAME - 2}}}[a-z0-9])?")


def check_name(name: str) -> str:
    """A name that is one for a TPU, a JobSet and a folder.

    Raises:
      UserError: it is not; says which would be.
    """
    if not _NAME.fullmatch(name):
        mended = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")
        mended = mended[:LONGEST_NAME].rstrip("-")
        hint = f": {mended} would do" if mended else ""
        raise UserError(
            f"{name!r} cannot be the name of a run{hint}\n"
            f"lower-case letters, digits and dashes, a letter first, at most {LONGEST_NAME}"
        )
    return name


@dataclasses.dataclass(frozen=True)
class Job:
    """Attributes:
    name: of its TPUs.
    commands: each a list of arguments, run one after another on every host.
    folder: where its logs go, on a bucket or here.
    once: whether it has nothing more to do once it is done; else it may be run again.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    folder: str
    once: bool = True

    @property
    def digest(self) -> str:
        """The identity of this job among others under the same name."""
        return hashlib.sha256(json.dumps(self.commands).encode()).hexdigest()[:16]

    @property
    def mark(self) -> str:
        """The file that says that this very job is done; nothing if it may be run again."""
        return f"{self.folder}/logs/done-{self.digest}" if self.once else ""

    def on_host(self, restarts: int) -> list[str]:
        """The command that each host runs."""
        return [
            *("python", "-m", "tpu.host", f"--restarts={restarts}"),
            *(f"--folder={self.folder}", f"--mark={self.mark}"),
            f"--job={json.dumps(self.commands)}",
        ]


class Stage(enum.Enum):
    """The stage of a job, on which alone depends what `follow` does next."""

    ABSENT = "there is no TPU"
    WAITING = "waiting for TPUs"
    READY = "TPUs are there, nothing runs on them"
    RUNNING = "running"
    SILENT = "the hosts do not answer"
    LOST = "the TPUs were taken away"
    LEAVING = "the TPUs are being given back"
    DONE = "done"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True)
class State:
    """Attributes:
    stage: see there.
    why: what is known beyond it, and what to do about it.
    code: exit code of the job, where it failed.
    """

    stage: Stage
    why: str = ""
    code: int = 0

    def __str__(self) -> str:
        return self.stage.value + (f": {self.why}" if self.why else "")


# A job that is marked as done, and of which nothing exists.
EARLIER = State(Stage.DONE, "earlier")


class Backend(Protocol):
    """What runs jobs: queued resources or a GKE cluster. It keeps no state of its own."""

    def look(self, job: Job) -> State:
        """Return the job's state. Raises UserError if another job runs under its name."""

    def create(self, job: Job) -> None:
        """Ask for the TPUs."""

    def setup(self, name: str) -> None:
        """Bring the image to every host, and try the bucket from each."""

    def launch(self, job: Job) -> None:
        """Start the job on all hosts or on none. Raises RunFailed if it could not."""

    def reset(self, name: str) -> None:
        """Make room for the job to start again after it failed."""

    def tail(self, name: str, lines: int) -> str:
        """The last lines that a job printed on its first host."""

    def logs(self, name: str, host: int, lines: int, follow: bool) -> None:
        """Print what a job prints on a host."""

    def stop(self, name: str) -> None:
        """End the job, after it has saved; its TPUs stay."""

    def delete(self, name: str) -> str:
        """End the job and give its TPUs back; say what that did."""

    def hosts(self, name: str) -> list[str]:
        """A line for each host: what became of the job there."""

    def listing(self) -> list[dict[str, str]]:
        """List everything in this backend, ours or others': a row each for `status`."""
