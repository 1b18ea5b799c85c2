"""The hosts of a job on queued resources: which are to run it, and what their containers show."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from fire_lm.errors import UserError
from tpu import host
from tpu.cluster import command
from tpu.job import Job, Stage, State


@dataclasses.dataclass(frozen=True)
class Standing:
    """The slices on which a job is to run.

    Attributes:
      hosts: The addresses of the hosts of each node.
      lost: Why other slices are lost, or "" if none is.
      ready: The addresses of the hosts of all nodes that are ready, some of which may be unused.
    """

    hosts: Mapping[str, Sequence[str]]
    lost: str = ""
    ready: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    def on(self, nodes: Sequence[str]) -> Standing:
        """Return the same slices for a job that runs on these ready nodes."""
        return dataclasses.replace(self, hosts={node: self.ready[node] for node in nodes})

    @property
    def count(self) -> int:
        return sum(map(len, self.hosts.values()))

    def label(self, job: Job) -> str:
        """Return the container's label, which shows for which slices the container was started."""
        return f"{job.digest}-on-{'-'.join(self.hosts)}" if self.lost else job.digest

    def environment(self, index: int) -> list[str]:
        """Return the variables through which libtpu and JAX on a slice find the other slices.

        They take precedence over the machine's metadata, which still has all slices.
        """
        first = next(iter(self.hosts.values()))[0]
        return [
            f"MEGASCALE_COORDINATOR_ADDRESS={first}",
            f"MEGASCALE_NUM_SLICES={len(self.hosts)}",
            f"MEGASCALE_SLICE_ID={index}",
        ]


def running_on(
    report: Sequence[tuple[str, ...]], ready: Sequence[str], nodes: Sequence[str], hosts: int
) -> list[str]:
    """Return the nodes of which a job runs on every host, or [] if it lacks one.

    Args:
      report: A row for each host of the `ready` nodes that responded; see `tpu.queued`.
      nodes: All nodes of the job.
      hosts: The number of hosts of a node.
    """
    for label, count in Counter(row[3] for row in report if row[1] == "running").items():
        _, _, named = label.partition("-on-")
        own = [node for node in nodes if not named or f"-{node}-" in f"-{named}-"]
        if set(own) <= set(ready) and count == hosts * len(own):
            return own
    return []


def judge(
    report: Sequence[tuple[str, ...]], standing: Standing, job: Job, where: ConfigDict
) -> State:
    """Return the state of a job according to the containers on its hosts.

    Args:
      report: A row for each host that responded; see `tpu.queued`.
      standing: The slices on which the job is to run.

    Raises:
      UserError: Another job is running on the hosts.
    """
    expected, label = standing.count, standing.label(job)
    others = [
        name
        for name, status, _, found in report
        if status == "running" and found.partition("-")[0] != job.digest
    ]
    if others:
        raise UserError(
            f"{job.name} is already running other commands ({len(others)} hosts)\n"
            f"end them with {command('stop', where, job.name)}, or choose another name"
        )
    if len(report) < expected:
        return State(Stage.SILENT, f"{len(report)} of {expected} hosts respond")
    ours = [row for row in report if row[3] == label and row[1] != "created"]
    if len(ours) < expected:
        return State(Stage.READY, f"the job is on {len(ours)} of {expected} hosts" if ours else "")
    codes = {int(code) for _, status, code, _ in ours if status != "running"}
    bad = sorted(codes - {0}, key=lambda code: (code not in host.FINAL, code))
    running = sum(status == "running" for _, status, _, _ in ours)
    if bad == [host.STOPPED] and running:
        return State(Stage.RUNNING, f"saving, still on {running} of {expected} hosts")
    if bad:
        failed = [name for name, _, code, _ in ours if code == str(bad[0])]
        return State(Stage.FAILED, f"exit code {bad[0]} on {', '.join(failed[:4])}", bad[0])
    if running:
        return State(Stage.RUNNING, f"on {running} of {expected} hosts")
    return State(Stage.DONE)
