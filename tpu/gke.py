"""Jobs on a GKE cluster, as JobSets (https://jobset.sigs.k8s.io, jobset.x-k8s.io/v1alpha2).

GKE schedules either all pods of a slice or none, and JobSet restarts all pods when one fails or is
preempted, so this module needs to do neither.
"""

from __future__ import annotations

import json
import math
from typing import Any

import yaml
from ml_collections import ConfigDict

from fire_lm.errors import UserError
from tpu import host
from tpu.bucket import is_there
from tpu.cluster import command, slice_of
from tpu.commands import CallFailed, Calls, NotFound
from tpu.job import EARLIER, Job, Stage, State

# The label that GKE gives to nodes with each kind of TPU.
_ACCELERATOR = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
}
# The exit codes of a container after which a job is not restarted.
_FINAL = [code for code in host.FINAL if code]


def manifest(job: Job, cluster: ConfigDict) -> dict[str, Any]:
    """Return the JobSet, which has one job per slice and one pod per host of a slice."""
    slices = slice_of(cluster)
    hosts = slices.hosts // slices.count
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": job.name,
            "labels": {"app": "fire-lm"},
            "annotations": {
                # Place each job, which is one slice, on all nodes of a single node pool.
                "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool",
                "fire-lm/job": job.digest,
                "fire-lm/folder": job.folder,  # `status` reads this.
            },
        },
        "spec": {
            "failurePolicy": {
                "maxRestarts": cluster.retries,
                "rules": [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
            },
            "replicatedJobs": [
                {"name": "slice", "replicas": slices.count, "template": _job(job, cluster, hosts)}
            ],
        },
    }


def _job(job: Job, cluster: ConfigDict, hosts: int) -> dict[str, Any]:
    return {
        "spec": {
            "parallelism": hosts,
            "completions": hosts,
            "completionMode": "Indexed",
            "backoffLimit": 0,  # A failed pod ends the job, and JobSet restarts all pods.
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": _FINAL}}
                ]
            },
            "template": {"spec": _pod(job, cluster, hosts)},
        }
    }


def _pod(job: Job, cluster: ConfigDict, hosts: int) -> dict[str, Any]:
    slices = slice_of(cluster)
    chips = slices.chips // slices.hosts
    selector = {
        "cloud.google.com/gke-tpu-accelerator": _ACCELERATOR[slices.kind],
        "cloud.google.com/gke-tpu-topology": "x".join(map(str, slices.shape)),
    }
    if cluster.spot:
        selector["cloud.google.com/gke-spot"] = "true"
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 600,  # The job saves after SIGTERM.
        "nodeSelector": selector,
        "containers": [
            {
                "name": "fire-lm",
                "image": cluster.image,
                "command": job.on_host(restarts=0),
                "ports": [{"containerPort": 8471}, {"containerPort": 8080}],  # used by libtpu
                "resources": {
                    "requests": {"google.com/tpu": chips},
                    "limits": {"google.com/tpu": chips},
                },
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    # On GKE, this is a Kubernetes account, which workload identity binds to a Google account.
    if cluster.service_account:
        pod["serviceAccountName"] = cluster.service_account
    return pod


class GKE:
    """The backend for a GKE cluster; `Backend` describes its methods."""

    def __init__(self, cluster: ConfigDict, calls: Calls):
        self._cluster, self._calls = cluster, calls
        self._kubectl = ["kubectl", f"--context={cluster.gke_context}"]

    def look(self, job: Job) -> State:
        try:
            found = self._calls.ask([*self._kubectl, "get", "jobset", job.name, "-o", "json"])
        except NotFound:
            done = job.mark and is_there(job.mark, self._calls)
            return EARLIER if done else State(Stage.ABSENT)
        if found is None:  # This is a dry run.
            self._pods(job.name)
            return State(Stage.ABSENT)
        if found["metadata"].get("deletionTimestamp"):
            return State(Stage.LEAVING)
        ended = _ended(found, self._codes(job.name))
        other = found["metadata"].get("annotations", {}).get("fire-lm/job") != job.digest
        if other and ended is not None:
            return State(Stage.LOST, "another job with this name has ended, but was not deleted")
        if other:
            raise UserError(
                f"{job.name} is already running other commands\n"
                f"end them with {command('delete', self._cluster, job.name)}, or choose another "
                "name"
            )
        if ended is None:
            self._check_tpus(job, found)
        return ended or self._look_at_pods(job.name, found)

    def _check_tpus(self, job: Job, found: dict[str, Any]) -> None:
        """Raise UserError if a JobSet is for other TPUs than those of the cluster's settings."""
        there, asked = map(_tpus, (found, manifest(job, self._cluster)))
        if there and there != asked:
            raise UserError(
                f"{job.name} is for other TPUs ({there}) than --cluster.accelerator and "
                f"--cluster.spot say ({asked})\nto follow it, set these flags to what it is; to "
                f"replace it, first run {command('delete', self._cluster, job.name)}"
            )

    def _look_at_pods(self, name: str, found: dict[str, Any]) -> State:
        pods = self._pods(name)
        running = sum(pod["status"].get("phase") == "Running" for pod in pods)
        hosts = slice_of(self._cluster).hosts
        restarts = found.get("status", {}).get("restarts", 0)
        pods_running = f"{running} of {hosts} pods, {restarts} restarts"
        if running == hosts:
            return State(Stage.RUNNING, pods_running)
        waits = [w for pod in pods for w in _reasons(pod)]
        return State(Stage.WAITING, "; ".join([pods_running, *dict.fromkeys(waits)]))

    def _pods(self, name: str) -> list[dict[str, Any]]:
        """Return the pods of a job, in the order of its slices and their hosts."""
        selector = f"--selector=jobset.sigs.k8s.io/jobset-name={name}"
        found = self._calls.ask([*self._kubectl, "get", "pods", selector, "-o", "json"])
        return sorted((found or {"items": []})["items"], key=_indices)

    def _codes(self, name: str) -> set[int]:
        """Return the exit codes of the containers that have ended."""
        ended = [
            container.get("state", {}).get("terminated", {})
            for pod in self._pods(name)
            for container in pod["status"].get("containerStatuses", [])
        ]
        return {int(one["exitCode"]) for one in ended if "exitCode" in one}

    def create(self, job: Job) -> None:
        """Apply the job's manifest, which requests the TPUs and starts the job."""
        text = yaml.safe_dump(manifest(job, self._cluster), sort_keys=False)
        self._calls.change([*self._kubectl, "apply", "--filename=-"], stdin=text)

    def setup(self, name: str) -> None:
        """Do nothing, because Kubernetes pulls the image."""

    def launch(self, job: Job) -> None:
        """Do nothing, because JobSet has already started the job."""

    def reset(self, name: str) -> None:
        """Delete the JobSet, so that the job can start again."""
        self.delete(name)

    def tail(self, name: str, lines: int) -> str:
        """Return the last lines that the job printed on the first slice, or why there are none."""
        try:
            return self._calls.change(
                [*self._kubectl, "logs", f"job/{name}-slice-0", f"--tail={lines}"]
            )
        except CallFailed as error:  # Failed pods may have been removed.
            return f"{error}\n"

    def logs(self, name: str, host: int, lines: int, follow: bool) -> None:
        pods = self._pods(name)
        if not 0 <= host < len(pods) and not self._calls.dry_run:
            known = f"pods 0 to {len(pods) - 1}" if pods else "no pods"
            raise UserError(f"--host={host}: {name} has {known}")
        if self._calls.dry_run:
            print(f"# POD is the pod of host {host} among these")
        pod = "POD" if self._calls.dry_run else pods[host]["metadata"]["name"]
        follows = ["--follow"] if follow else []
        self._calls.stream([*self._kubectl, "logs", pod, f"--tail={lines}", *follows])

    def stop(self, name: str) -> None:
        """Suspend the JobSet: its pods receive SIGTERM, save, and release their TPUs."""
        patch = json.dumps({"spec": {"suspend": True}})
        self._calls.change(
            [*self._kubectl, "patch", "jobset", name, "--type=merge", f"--patch={patch}"]
        )

    def delete(self, name: str) -> str:
        """Delete the JobSet if it exists, and describe the outcome once no pods are left."""
        self._calls.change(
            [*self._kubectl, "delete", "jobset", name, "--ignore-not-found"]
            # With this flag, the call waits until the pods, which may be saving, have ended.
            + ["--cascade=foreground"]
        )
        return "no pods are left; the node pool costs money until it has scaled down"

    def hosts(self, name: str) -> list[str]:
        return [
            f"{pod['metadata']['name']}: {pod['status'].get('phase', '')} "
            + "; ".join(_reasons(pod))
            for pod in self._pods(name)
        ]

    def listing(self) -> list[dict[str, str]]:
        """Return a row for each JobSet."""
        found = self._calls.ask([*self._kubectl, "get", "jobsets", "-o", "json"])
        return [_row(one, self._cluster) for one in (found or {"items": []})["items"]]


def _tpus(jobset: dict[str, Any]) -> str:
    """Return the slices of a JobSet in words, or "" if they are unknown."""
    jobs = jobset.get("spec", {}).get("replicatedJobs", [])
    pods = (one["template"]["spec"]["template"]["spec"].get("nodeSelector") for one in jobs)
    return "; ".join(
        f"{one['replicas']} x " + ", ".join(f"{name}={pod[name]}" for name in sorted(pod))
        for one, pod in zip(jobs, pods, strict=True)
        if pod
    )


def _indices(pod: dict[str, Any]) -> tuple[int, ...]:
    """Return the indices of a pod's slice and host, from its name NAME-slice-1-10-abcde."""
    return tuple(int(index) for index in pod["metadata"]["name"].split("-")[-3:-1])


def _ended(found: dict[str, Any], codes: set[int] | None = None) -> State | None:
    """Return the final state of a JobSet according to its conditions, or None if it has not ended.

    `codes` are the exit codes of its containers.
    """
    conditions = {
        condition["type"]: condition
        for condition in found.get("status", {}).get("conditions", [])
        if condition["status"] == "True"
    }
    if "Completed" in conditions:
        return State(Stage.DONE)
    if "Failed" in conditions:
        code = next((code for code in _FINAL if code in (codes or ())), 1)
        return State(Stage.FAILED, str(conditions["Failed"].get("message", "")), code)
    if "Suspended" in conditions or found["spec"].get("suspend"):
        return State(Stage.FAILED, "stopped by `python -m tpu stop`", host.STOPPED)
    return None


def _reasons(pod: dict[str, Any]) -> list[str]:
    """Return the reasons why a pod is not running yet, such as missing nodes or a missing image."""
    status = pod.get("status", {})
    told = [
        condition.get("message", "")
        for condition in status.get("conditions", [])
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]
    waiting = [c.get("state", {}).get("waiting", {}) for c in status.get("containerStatuses", [])]
    return [t for t in told if t] + [w["reason"] for w in waiting if w.get("reason")]


def _row(found: dict[str, Any], cluster: ConfigDict) -> dict[str, str]:
    ended = _ended(found)
    jobs = found["spec"]["replicatedJobs"]
    pod = jobs[0]["template"]["spec"]["template"]["spec"] if jobs else {}
    selector = pod.get("nodeSelector", {})
    slices = int(jobs[0].get("replicas", 1)) if jobs else 0
    ready = sum(
        int(s.get("ready", 0)) for s in found.get("status", {}).get("replicatedJobsStatus", [])
    )
    topology = selector.get("cloud.google.com/gke-tpu-topology", "")
    chips = math.prod(int(side) for side in topology.split("x")) if topology else 0
    return {
        "name": str(found["metadata"]["name"]),
        "state": str(ended) if ended else f"{ready} of {slices} slices running",
        "accelerator": f"{selector.get('cloud.google.com/gke-tpu-accelerator', '')} {topology}",
        "chips": str(chips * ready),
        "since": ""
        if ended or not ready
        else str(found["metadata"].get("creationTimestamp", ""))[:16],
        "folder": str(found["metadata"].get("annotations", {}).get("fire-lm/folder", "")),
        "tier": "spot" if selector.get("cloud.google.com/gke-spot") else "on demand",
        "user": "",
    }
