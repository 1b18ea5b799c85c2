"""Jobs on Cloud TPU VMs that are requested as queued resources.

All state is read from Google Cloud when it is needed, and none is kept on this machine: the queued
resource shows whether the TPUs exist, and the container on each host shows the state of the job.
"""

from __future__ import annotations

import dataclasses
import getpass
import re
import shlex
from collections.abc import Sequence
from typing import Any, cast

from ml_collections import ConfigDict

from fire_lm.errors import RunFailed, UserError
from fire_lm.hardware.slices import Slice
from tpu import commands
from tpu.bucket import is_there
from tpu.cluster import command, slice_of
from tpu.commands import CallFailed, Calls, NotFound, Refused
from tpu.hosts import Standing, judge, running_on
from tpu.job import EARLIER, Job, Stage, State

_CONTAINER = "fire_lm"
_RUNTIME = {
    "v4": "tpu-ubuntu2204-base",
    "v5e": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
_WAITING = {
    "CREATING": "the request has been received",
    "ACCEPTED": "in the queue",
    "WAITING_FOR_RESOURCES": "in the queue",
    "PROVISIONING": "the TPUs are being prepared",
}
_LOST = {
    "SUSPENDING": "being preempted",
    "SUSPENDED": "preempted; the request still occupies quota and the name",
}
_LOST_NODE = ("PREEMPTED", "TERMINATED", "STOPPED", "DELETING")
_SAVED_WITHIN = 600  # seconds, more than a host gives its command
_SETUP_TRIES = 5  # A new host may reject SSH keys for a short time after it is READY.
# A command that prints a line with the host's name and its container's state, exit code and job, or
# "none" if the host has no container. It prints nothing if docker does not respond: a job that goes
# on then must not be taken for one that has not started.
_REPORT = (
    f"found=$(sudo docker ps --all --quiet --filter='name=^/?{_CONTAINER}$' 2>/dev/null) && "
    'if [ -n "$found" ]; then found=$(sudo docker inspect --format='
    "'{{.State.Status}}|{{.State.ExitCode}}|{{.Config.Labels.fire_lm_job}}' "
    f"{_CONTAINER} 2>/dev/null); else found=none; fi && "
    f'echo "{_CONTAINER}|$(hostname)|$found" || true'
)


class QueuedResources:
    """The backend for queued resources; `Backend` describes its methods."""

    def __init__(self, cluster: ConfigDict, caller: Calls):
        self._cluster, self._calls = cluster, caller
        self._where = [f"--project={cluster.project}", f"--zone={cluster.zone}"]
        self._slice = slice_of(cluster)

    def look(self, job: Job) -> State:
        found = self._describe(job.name)
        if self._calls.dry_run:
            self._standing(job)
            self._report(self._nodes(job.name))
        if found is None:
            done = job.mark and is_there(job.mark, self._calls)
            return EARLIER if done else State(Stage.ABSENT)
        name = _state_of(found)
        if name in (*_WAITING, "ACTIVE"):
            self._check_request(job.name, found)
        if name in _WAITING:
            return State(Stage.WAITING, f"{name}, {_WAITING[name]}")
        if name in _LOST:
            return State(Stage.LOST, f"{name}, {_LOST[name]}")
        if name == "DELETING":
            return State(Stage.LEAVING)
        if name != "ACTIVE":
            return State(Stage.FAILED, _failure_of(found) or name, code=1)
        return self._look_at_hosts(job)

    def _check_request(self, name: str, found: dict[str, Any]) -> None:
        """Raise UserError if a request is for other TPUs than those of the cluster's settings."""
        count, kind, tier = _requested(found)
        named, asked = _accelerator(self._slice)[0].partition("=")[::2]
        tier_asked = "spot" if self._cluster.spot else "on demand"
        known = bool(kind) and named == "--accelerator-type"
        wrong = count != self._slice.count or (known and kind != asked) or tier != tier_asked
        if count and wrong:
            delete = command("delete", self._cluster, name)
            raise UserError(
                f"{name} is a request for {_several(count, kind)}, {tier}, but "
                f"--cluster.accelerator={self._cluster.accelerator} --cluster.spot="
                f"{str(bool(self._cluster.spot)).lower()} asks for others\nto follow it, set these "
                f"flags to what it is; to replace it, first run {delete}"
            )

    def _look_at_hosts(self, job: Job) -> State:
        standing = self._standing(job)
        if isinstance(standing, State):
            return standing
        try:
            report = self._report(list(standing.hosts))
        except Refused:
            raise
        except CallFailed as error:
            return State(Stage.SILENT, str(error))
        state = judge(report, standing, job, self._cluster)
        if job.slices and state.stage is Stage.READY and (nodes := self._running_on(job.name)):
            if len(nodes) < len(standing.hosts):
                return State(Stage.MORE, f"on {len(nodes)} of {self._slice.count} slices so far")
            state = judge(self._report(nodes), standing.on(nodes), job, self._cluster)
        if not standing.lost:
            return state
        on = f"{len(standing.hosts)} of {self._slice.count} slices"
        if state.stage is Stage.READY:
            return State(Stage.FEWER, f"{standing.lost}; resuming on {on} with the same batches")
        if state.stage is Stage.RUNNING:
            return dataclasses.replace(state, why=f"{state.why}, {on}")
        return state

    def _standing(self, job: Job) -> Standing | State:
        """Return the slices on which the job is to run, or a state if it cannot run now."""
        lost, hosts = [], {}
        for node in self._all_nodes(job.name):
            try:
                found = self._calls.ask(self._vm("describe", node, "--format=json"))
            except NotFound as error:
                lost.append(f"the request is ACTIVE, but its TPU is gone: {error}")
                continue
            if found is None:  # This is a dry run.
                continue
            if found["state"] in _LOST_NODE:
                lost.append(f"{node} is {found['state']}")
            elif found["state"] != "READY":
                return State(Stage.WAITING, f"{node} is {found['state']}")
            else:
                hosts[node] = [point["ipAddress"] for point in found["networkEndpoints"]]
        if not lost:
            return Standing(hosts, ready=hosts)
        fitting = [count for count in job.slices if count <= len(hosts)]
        if not fitting:
            return State(Stage.LOST, lost[0])
        return Standing(dict(list(hosts.items())[: max(fitting)]), lost[0], hosts)

    def _report(self, nodes: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the name of each responding host with its container's state, exit code and job."""
        lines = self._on(nodes, _REPORT).splitlines()
        rows = [line.split("|")[1:] for line in lines if line.startswith(f"{_CONTAINER}|")]
        return [(*row, "", "")[:4] for row in rows]

    def create(self, job: Job) -> None:
        name, one, cluster = job.name, self._slice, self._cluster
        nodes = [f"--node-id={name}"]
        if one.count > 1:
            nodes = [f"--node-count={one.count}", f"--node-prefix={name}"]
        account = cluster.service_account
        self._calls.change(
            [
                *("gcloud", "compute", "tpus", "queued-resources", "create", name, *self._where),
                *_accelerator(one),
                f"--runtime-version={_RUNTIME[one.kind]}",
                *nodes,
                f"--labels=fire_lm=run,user={_label(getpass.getuser())}",
                f"--description={job.folder}",  # `status` reads this.
                *(["--spot"] if cluster.spot else []),
                *([f"--service-account={account}"] if account else []),
                "--quiet",
            ]
        )

    def setup(self, name: str) -> None:
        registry, image = self._cluster.image.partition("/")[0], self._cluster.image
        self._patiently(
            name,
            "set -e; gcloud auth print-access-token | sudo docker login --username="
            f"oauth2accesstoken --password-stdin {shlex.quote(f'https://{registry}')} >/dev/null; "
            + " ".join(["sudo docker pull --quiet", shlex.quote(image)]),
        )
        tried = ["python", "-m", "tpu.host", f"--try_bucket=gs://{self._cluster.bucket}/runs"]
        self._on_all(name, shlex.join(["sudo", "docker", "run", "--rm", image, *tried]))

    def launch(self, job: Job) -> None:
        if job.slices and not self._calls.dry_run:
            self._save(job)
        self._remove(job.name)
        try:
            standing = self._standing(job) if job.slices else Standing({})
            if isinstance(standing, State):  # A slice was lost a moment ago.
                raise CallFailed(str(standing))
            if not standing.lost:
                self._on_all(job.name, shlex.join(self._docker_run(job)))
            else:
                for index, node in enumerate(standing.hosts):
                    self._on([node], shlex.join(self._docker_run(job, standing, index)))
            if self._calls.dry_run:
                return
            state = self._look_at_hosts(job)
            started = state.stage in (Stage.RUNNING, Stage.MORE, Stage.DONE, Stage.FAILED)
            why = str(state)
        except CallFailed as error:
            started, why = False, str(error)
        if not started:
            self._remove(job.name)
            raise RunFailed(
                f"{job.name} did not start on every host and was removed from all of them: {why}"
            )

    def _save(self, job: Job) -> None:
        """Make a job that runs on fewer slices save and end, because others have returned.

        If one of its own slices is lost, it cannot save.
        """
        if nodes := self._running_on(job.name):
            stop = f"sudo docker stop --time={_SAVED_WITHIN} {_CONTAINER} >/dev/null"
            self._on(nodes, stop)

    def _running_on(self, name: str) -> list[str]:
        """Return the nodes of which a job runs on every host, or [] if it lacks one."""
        ready, hosts = self._nodes(name), self._slice.hosts // self._slice.count
        return running_on(self._report(ready), ready, self._all_nodes(name), hosts)

    def _docker_run(self, job: Job, standing: Standing | None = None, index: int = 0) -> list[str]:
        """Return the command that starts the job; `index` is that of one of `standing`'s slices."""
        fewer = [] if standing is None else standing.environment(index)
        return [
            *("sudo", "docker", "run", "--detach", f"--name={_CONTAINER}"),
            *("--privileged", "--net=host", "--shm-size=16g", "--log-opt=max-size=200m"),
            *(f"--env={variable}" for variable in fewer),
            f"--label=fire_lm_job={job.digest if standing is None else standing.label(job)}",
            self._cluster.image,
            *job.on_host(self._cluster.retries),
        ]

    def reset(self, name: str) -> None:
        """Remove the containers, or delete the request if its TPUs are not active."""
        found = self._describe(name)
        if found is not None and _state_of(found) == "ACTIVE":
            self._remove(name)
        else:
            self.delete(name)

    def _remove(self, name: str) -> None:
        self._on_all(name, f"sudo docker rm --force {_CONTAINER} >/dev/null 2>&1 || true")

    def tail(self, name: str, lines: int) -> str:
        command = f"sudo docker logs --tail={lines} {_CONTAINER} 2>&1"
        return self._calls.change(self._ssh(self._nodes(name)[0], command, worker="0"))

    def logs(self, name: str, host: int, lines: int, follow: bool) -> None:
        command = f"sudo docker logs --tail={lines} {'--follow ' if follow else ''}{_CONTAINER}"
        nodes = self._nodes(name)
        per_node = self._slice.hosts // self._slice.count
        if not 0 <= host < per_node * len(nodes):
            raise UserError(f"--host={host}: {name} has hosts 0 to {per_node * len(nodes) - 1}")
        node = nodes[host // per_node]
        self._calls.stream(self._ssh(node, command, worker=str(host % per_node)))

    def stop(self, name: str) -> None:
        """Make the job save and end, and keep its TPUs."""
        report = [] if self._calls.dry_run else self._report(self._nodes(name))
        if not self._calls.dry_run and not any(row[1] == "running" for row in report):
            see = command("status", self._cluster, name)
            raise UserError(f"nothing is running on {name}: see {see}")
        self._on_all(name, f"sudo docker kill --signal=SIGUSR1 {_CONTAINER} || true")

    def delete(self, name: str) -> str:
        command = ["gcloud", "compute", "tpus", "queued-resources", "delete", name, *self._where]
        try:
            self._calls.change([*command, "--force", "--quiet"])
        except NotFound:
            where = f"{self._cluster.project}, {self._cluster.zone}"
            return f"there is no such queued resource in {where}: nothing to delete"
        return "its TPUs are released"

    def hosts(self, name: str) -> list[str]:
        found = self._describe(name)
        if not self._calls.dry_run and (found is None or _state_of(found) != "ACTIVE"):
            return []
        return [
            f"{host}: "
            + (f"{status}, exit code {code}" if status == "exited" else status or "none")
            for host, status, code, _ in self._report(self._nodes(name))
        ]

    def listing(self) -> list[dict[str, str]]:
        """Return a row for each request and for each TPU VM that belongs to no request."""
        listed = ["list", *self._where, "--format=json"]
        requests = self._calls.ask(["gcloud", "compute", "tpus", "queued-resources", *listed])
        machines = self._calls.ask(["gcloud", "compute", "tpus", "tpu-vm", *listed]) or []
        rows = []
        for request in sorted(requests or [], key=_name_of):
            owned = [vm for vm in machines if _belongs(vm, request)]
            machines = [vm for vm in machines if vm not in owned]
            rows.append(_request_row(request, owned, self._cluster))
        for vm in sorted(machines, key=_name_of):
            delete = shlex.join(self._vm("delete", _name_of(vm)))
            rows.append(
                _machine_row(vm) | {"advice": f"created by other means: `{delete}` removes it"}
            )
        return rows

    def _describe(self, name: str) -> dict[str, Any] | None:
        command = ["gcloud", "compute", "tpus", "queued-resources", "describe", name, *self._where]
        try:
            return cast(dict[str, Any] | None, self._calls.ask([*command, "--format=json"]))
        except NotFound:
            return None

    def _all_nodes(self, name: str) -> list[str]:
        count = self._slice.count
        return [name] if count == 1 else [f"{name}-{index}" for index in range(count)]

    def _nodes(self, name: str) -> list[str]:
        """Return the nodes of a job, without those that are lost if it may run on fewer."""
        nodes = self._all_nodes(name)
        if self._calls.dry_run or not self._cluster.min_slices:
            return nodes
        return [node for node in nodes if self._is_ready(node)] or nodes

    def _is_ready(self, node: str) -> bool:
        try:
            found = self._calls.ask(self._vm("describe", node, "--format=json"))
        except NotFound:
            return False
        return bool(found["state"] == "READY")

    def _vm(self, verb: str, node: str, *more: str) -> list[str]:
        return ["gcloud", "compute", "tpus", "tpu-vm", verb, node, *self._where, *more]

    def _ssh(self, node: str, command: str, worker: str = "all") -> list[str]:
        """Return the gcloud arguments that run `command`, quoted for the host's shell, over SSH."""
        return self._vm("ssh", node, f"--worker={worker}", "--quiet", f"--command={command}")

    def _on_all(self, name: str, command: str) -> str:
        """Run a command on every host of every slice and return the combined output."""
        return self._on(self._nodes(name), command)

    def _on(self, nodes: Sequence[str], command: str) -> str:
        return "".join(self._calls.change(self._ssh(node, command)) for node in nodes)

    def _patiently(self, name: str, command: str) -> None:
        for attempt in range(_SETUP_TRIES):
            try:
                self._on_all(name, command)
                return
            except CallFailed:
                if attempt == _SETUP_TRIES - 1:
                    raise
                commands.pause(20.0)


def _state_of(found: dict[str, Any]) -> str:
    return str(found.get("state", {}).get("state", "STATE_UNSPECIFIED"))


def _failure_of(found: dict[str, Any]) -> str:
    error = found.get("state", {}).get("failedData", {}).get("error", {})
    return str(error.get("message", ""))


def _name_of(found: dict[str, Any]) -> str:
    return str(found["name"]).rpartition("/")[2]


def _belongs(machine: dict[str, Any], request: dict[str, Any]) -> bool:
    named = str(machine.get("queuedResource", "")).rpartition("/")[2]
    specs = request.get("tpu", {}).get("nodeSpec", [])
    return named == _name_of(request) or _name_of(machine) in [s.get("nodeId") for s in specs]


def _node_of(request: dict[str, Any]) -> dict[str, Any]:
    specs = request.get("tpu", {}).get("nodeSpec", [])
    return dict(specs[0].get("node", {})) if specs else {}


def _requested(request: dict[str, Any]) -> tuple[int, str, str]:
    """Return the number of slices of a request, their kind ("" if unknown), and the tier."""
    specs = request.get("tpu", {}).get("nodeSpec", [])
    count = sum(int(s.get("multisliceParams", {}).get("nodeCount", 1)) for s in specs)
    kind = str(_node_of(request).get("acceleratorType", ""))
    return count, kind, "spot" if "spot" in request else "on demand"


def _is_there(machine: dict[str, Any]) -> bool:
    return machine.get("state") not in _LOST_NODE


def _several(count: int, kind: str) -> str:
    return f"{count}x{kind}" if count > 1 else kind


def _request_row(
    request: dict[str, Any], machines: list[dict[str, Any]], where: ConfigDict
) -> dict[str, str]:
    state, name = _state_of(request), _name_of(request)
    count, kind, tier = _requested(request)
    node = _node_of(request)
    said = {**_WAITING, **_LOST, "FAILED": _failure_of(request)}.get(state, "")
    delete = command("delete", where, name)
    row = {
        "name": name,
        "state": f"{state}: {said}" if said else state,
        "accelerator": _several(count, kind),
        "tier": tier,
        "user": str(node.get("labels", {}).get("user", "")),
        "folder": str(node.get("description", "")),
        # Costs begin when machines exist, not when they are requested, and end with them.
        "since": min(
            (str(vm.get("createTime", ""))[:16] for vm in machines if _is_there(vm)), default=""
        ),
    }
    if state in ("FAILED", "SUSPENDED"):
        row["advice"] = f"{delete} removes the request; rerunning the job makes a new one"
    if state == "ACTIVE" and len(machines) < count:
        row["advice"] = (
            f"{len(machines)} of {count} TPUs exist: {delete} removes the request; the command "
            "that follows the job makes a new one"
        )
    return row


def _machine_row(machine: dict[str, Any]) -> dict[str, str]:
    return {
        "name": _name_of(machine),
        "state": f"{machine.get('state', '')}: a TPU VM without a queued resource",
        "accelerator": str(machine.get("acceleratorType", "")),
        "tier": "spot" if machine.get("schedulingConfig", {}).get("spot") else "on demand",
        "user": str(machine.get("labels", {}).get("user", "")),
        "since": str(machine.get("createTime", ""))[:16],
    }


def _accelerator(one: Slice) -> list[str]:
    """Return gcloud's flags for a slice: its name if Google has one, or else its kind and shape."""
    shape = "x".join(map(str, one.shape))
    if one.shape not in one.chip.shapes:
        return [f"--type={one.kind}", f"--topology={shape}"]
    name = Slice(one.kind, one.shape).name
    return [f"--accelerator-type={name.replace('v5e', 'v5litepod')}"]


def _label(text: str) -> str:
    """Convert `text` to a valid value of a Google Cloud label."""
    return re.sub(r"[^a-z0-9_-]", "_", text.lower())[:63]
