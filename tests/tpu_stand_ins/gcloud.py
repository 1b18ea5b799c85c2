"""A stand-in for gcloud: checks its arguments as gcloud does and answers by the test's plan."""

import fnmatch
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from cloud import HOME, fail, flags, log, state, take

TPUS = ("compute", "tpus")
WHERE = {"project", "zone"}
CREATE = {
    *("accelerator-type", "type", "topology", "runtime-version", "node-id", "node-count"),
    *("node-prefix", "labels", "description", "spot", "service-account", "quiet"),
}
HOSTS_OF = {
    "v4-8": 1,
    "v4-16": 2,
    "v4-32": 4,
    "v5litepod-1": 1,
    "v5litepod-8": 1,
    "v5litepod-16": 4,
}


def main(arguments: list[str]) -> None:
    log("gcloud", arguments)
    with state() as cloud:
        if cloud.get("fails"):
            words = cloud["fails"].pop(0)
            if words:
                fail(words)
    match arguments:
        case ["auth", "list", *rest]:
            flags("gcloud.auth.list", rest, {"filter", "format"})
            with state() as cloud:
                print(json.dumps(cloud["accounts"]))
        case ["auth", "print-access-token"]:
            print("a-token")
        case ["storage", *rest]:
            storage(rest)
        case ["artifacts", "docker", "images", "describe", image, *rest]:
            flags("gcloud.artifacts", rest, {"format", "project"})
            with state() as cloud:
                if image not in cloud["images"]:
                    fail(f"ERROR: (gcloud.artifacts.docker.images.describe) NOT_FOUND: {image}")
            print("{}")
        case ["compute", "tpus", "queued-resources", verb, *rest]:
            queued(verb, rest)
        case ["compute", "tpus", "tpu-vm", verb, *rest]:
            machine(verb, rest)
        case _:
            fail(f"ERROR: (gcloud) Invalid choice: {arguments}", 2)


def storage(arguments: list[str]) -> None:
    with state() as cloud:
        match arguments:
            case ["buckets", "describe", url, "--format=json"]:
                name = url.removeprefix("gs://")
                if name not in cloud["buckets"]:
                    fail(f"ERROR: (gcloud.storage.buckets.describe) gs://{name} not found: 404.")
                print(json.dumps({"name": name, "location": cloud["buckets"][name]}))
            case ["ls", *urls]:
                for url in urls:
                    if url in cloud.get("forbidden", []):
                        fail("ERROR: (gcloud.storage.ls) HTTPError 403: no storage.objects.list")
                    found = fnmatch.filter(sorted(cloud["objects"]), url)
                    # The data of runs exist, unless the test says otherwise.
                    unwritten = "/logs/done-" in url or "*" in url
                    if not found and (unwritten or url in cloud.get("missing", [])):
                        fail("ERROR: (gcloud.storage.ls) One or more URLs matched no objects.")
                    print(*(found or [url]), sep="\n")
            case ["cat", url] if url in cloud["objects"]:
                print(cloud["objects"][url], end="")
            case ["cat", "--range=-4096", url]:
                found = fnmatch.filter(sorted(cloud["objects"]), url)
                if not found:
                    fail("ERROR: (gcloud.storage.cat) The following URLs matched no objects")
                print(*(cloud["objects"][name] for name in found), sep="", end="")
            case _:
                fail(f"ERROR: (gcloud.storage) unrecognized arguments: {arguments}", 2)


def queued(verb: str, arguments: list[str]) -> None:
    program = f"gcloud.compute.tpus.queued-resources.{verb}"
    with state() as cloud:
        if verb == "list":
            flags(program, arguments, {*WHERE, "format"})
            print(json.dumps([answer(name, cloud) for name in cloud["requests"]]))
            return
        name, *rest = arguments
        given = flags(program, rest, {*WHERE, "format", "force", "quiet", *CREATE})
        if not given.get("project") or not given.get("zone"):
            fail(f"ERROR: ({program}) argument --zone: Must be specified.", 2)
        if verb == "create":
            create(name, given, cloud)
        elif name not in cloud["requests"]:
            path = f"projects/{given['project']}/locations/{given['zone']}/queuedResources/{name}"
            fail(f"ERROR: ({program}) NOT_FOUND: Resource '{path}' was not found")
        elif verb == "describe":
            cloud["requests"][name]["state"] = take(cloud["requests"][name]["plan"])
            print(json.dumps(answer(name, cloud)))
        elif verb == "delete":
            request = cloud["requests"][name]
            if request["state"] in ("ACTIVE", "PROVISIONING") and "force" not in given:
                fail(f"ERROR: ({program}) FAILED_PRECONDITION: it has nodes, use --force")
            del cloud["requests"][name]
            for node in nodes_of(name, request):
                for file in (HOME / "hosts").glob(f"{node}.*/container.json"):
                    file.unlink()
        else:
            fail(f"ERROR: (gcloud) Invalid choice: {verb}", 2)


def create(name: str, given: dict, cloud: dict) -> None:
    program = "gcloud.compute.tpus.queued-resources.create"
    if name in cloud["requests"]:
        fail(f"ERROR: ({program}) ALREADY_EXISTS: {name}")
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name):
        fail(f"ERROR: ({program}) INVALID_ARGUMENT: {name}")
    if ("node-id" in given) == ("node-count" in given):
        fail(f"ERROR: ({program}) Exactly one of (--node-count | --node-id) must be specified.", 2)
    if given.get("accelerator-type") not in HOSTS_OF:
        fail(f"ERROR: ({program}) INVALID_ARGUMENT: accelerator {given.get('accelerator-type')}")
    for label in given.get("labels", "").split(","):
        if not re.fullmatch(r"[a-z][-_a-z0-9]{0,62}=[-_a-z0-9]{0,63}", label):
            fail(f"ERROR: ({program}) Bad value for --labels: {label}", 2)
    cloud["requests"][name] = {
        "flags": given,
        "plan": cloud["states"].pop(0) if cloud["states"] else ["ACTIVE"],
        "state": "CREATING",
    }


def nodes_of(name: str, request: dict) -> list[str]:
    count = int(request["flags"].get("node-count", 1))
    return (
        [name] if count == 1 else [f"{request['flags']['node-prefix']}-{i}" for i in range(count)]
    )


def answer(name: str, cloud: dict) -> dict:
    """Return a queued resource as `describe` prints it."""
    request = cloud["requests"][name]
    given, found = request["flags"], {"state": request["state"]}
    if request["state"] == "FAILED":
        found["failedData"] = {"error": {"code": 8, "message": cloud["failure"]}}
    labels = dict(pair.split("=") for pair in given["labels"].split(","))
    node = {"acceleratorType": given["accelerator-type"], "labels": labels}
    spec: dict = {"node": {**node, "description": given["description"]}}
    if "node-count" in given:
        spec["multisliceParams"] = {
            "nodeCount": int(given["node-count"]),
            "nodePrefix": given["node-prefix"],
        }
    else:
        spec["nodeId"] = given["node-id"]
    where = f"projects/{given['project']}/locations/{given['zone']}"
    return {
        "name": f"{where}/queuedResources/{name}",
        "createTime": "2026-11-22T08:00:00.123456789Z",
        "state": found,
        "tpu": {"nodeSpec": [spec]},
        **({"spot": {}} if "spot" in given else {}),
    }


def machine(verb: str, arguments: list[str]) -> None:
    program = f"gcloud.compute.tpus.tpu-vm.{verb}"
    with state() as cloud:
        there = {
            node: (name, request)
            for name, request in cloud["requests"].items()
            if request["state"] == "ACTIVE"
            for node in nodes_of(name, request)
            if node not in cloud.get("gone", [])
        }
        if verb == "list":
            flags(program, arguments, {*WHERE, "format"})
            print(json.dumps([vm(node, *there[node]) for node in there] + cloud["strays"]))
            return
        node, *rest = arguments
        given = flags(program, rest, {*WHERE, "format", "worker", "quiet", "command"})
        if node not in there:
            fail(f"ERROR: ({program}) NOT_FOUND: Resource '{node}' was not found")
        if verb == "describe":
            print(json.dumps(vm(node, *there[node])))
            return
        hosts = HOSTS_OF[there[node][1]["flags"]["accelerator-type"]]
        mute = cloud.get("mute", [])
    if verb != "ssh" or "command" not in given:
        fail(f"ERROR: (gcloud) Invalid choice: {verb}", 2)
    workers = range(hosts) if given["worker"] == "all" else [int(given["worker"])]
    print("Using ssh batch size of 1. Attempting to SSH into 1 nodes.", file=sys.stderr)
    codes = [run(f"{node}.{worker}", given["command"]) for worker in workers if worker not in mute]
    if any(codes):
        print("##### Command execution on worker 0 failed with exit status 1.", file=sys.stderr)
        fail(f"ERROR: ({program}) [/usr/bin/ssh] exited with return code [{max(codes)}].")


def vm(node: str, name: str, request: dict) -> dict:
    given = request["flags"]
    where = f"projects/{given['project']}/locations/{given['zone']}"
    return {
        "name": f"{where}/nodes/{node}",
        "acceleratorType": given["accelerator-type"],
        "state": "READY",
        "createTime": "2026-11-22T09:00:00.123456789Z",
        "networkEndpoints": [
            {"ipAddress": f"10.0.0.{i}"} for i in range(HOSTS_OF[given["accelerator-type"]])
        ],
        "queuedResource": f"{where}/queuedResources/{name}",
    }


def run(host: str, command: str) -> int:
    """Run the command in a real shell with the host's stand-ins on PATH; return the exit code."""
    home = HOME / "hosts" / host
    home.mkdir(parents=True, exist_ok=True)
    worker = host.rpartition(".")[2]
    print(f"SSH: Attempting to connect to worker {worker}...", file=sys.stderr)
    path = f"{HOME / 'bin'}:{Path('/usr/bin')}:/bin"
    environment = {**os.environ, "PATH": path, "FIRE_LM_STAND_IN_HOST": host}
    return subprocess.run(["bash", "-c", command], env=environment, check=False).returncode


if __name__ == "__main__":
    main(sys.argv[1:])
