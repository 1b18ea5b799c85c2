"""A stand-in for kubectl in a cluster with JobSet: checks its arguments, answers by the plan.

`conditions` has a list for each applied JobSet, with the result of each look: "" (it runs),
"Pending", "Completed", "Failed" or "Suspended".
"""

import json
import sys

import yaml
from cloud import fail, flags, log, state, take


def main(arguments: list[str]) -> None:
    log("kubectl", arguments)
    if not arguments or not arguments[0].startswith("--context=gke_"):
        fail(f"error: context {arguments[0].partition('=')[2]!r} does not exist")
    match arguments[1:]:
        case ["apply", "--filename=-"]:
            apply(yaml.safe_load(sys.stdin))
        case ["get", "jobset", name, "-o", "json"]:
            with state() as cloud:
                print(json.dumps(jobset(existing(name, cloud))))
        case ["get", "jobsets", "-o", "json"]:
            with state() as cloud:
                print(json.dumps({"items": [jobset(found) for found in cloud["jobsets"].values()]}))
        case ["get", "pods", selector, "-o", "json"]:
            pods(selector.rpartition("=")[2])
        case ["logs", pod, *rest]:
            flags("kubectl logs", rest, {"tail", "follow"})
            print(f"step 100 of {pod}")
        case ["patch", "jobset", name, "--type=merge", patch]:
            with state() as cloud:
                suspend = json.loads(patch.removeprefix("--patch="))["spec"]["suspend"]
                existing(name, cloud)["plan"] = ["Suspended" if suspend else ""]
        case ["delete", "jobset", name, "--ignore-not-found", "--cascade=foreground"]:
            with state() as cloud:
                cloud["jobsets"].pop(name, None)
        case _:
            fail(f"error: unknown command {arguments[1:]}")


def apply(found: dict) -> None:
    name = found["metadata"]["name"]
    (job,) = found["spec"]["replicatedJobs"]
    last = f"{job['replicas'] - 1}-{job['template']['spec']['completions'] - 1}"
    if len(f"{name}-{job['name']}-{last}-abcde") > 63:
        fail('Error from server (Forbidden): admission webhook "vjobset.kb.io" denied the request')
    with state() as cloud:
        if name in cloud["jobsets"]:
            fail(f"The JobSet {name!r} is invalid: spec: Invalid value: field is immutable")
        plan = cloud["conditions"].pop(0) if cloud["conditions"] else ["", "Completed"]
        cloud["jobsets"][name] = {"manifest": found, "plan": plan, "now": ""}
    print(f"jobset.jobset.x-k8s.io/{name} created")


def existing(name: str, cloud: dict) -> dict:
    if name not in cloud["jobsets"]:
        fail(f'Error from server (NotFound): jobsets.jobset.x-k8s.io "{name}" not found')
    found: dict = cloud["jobsets"][name]
    return found


def jobset(found: dict) -> dict:
    found["now"] = take(found["plan"])
    kind = found["now"] if found["now"] in ("Completed", "Failed", "Suspended") else ""
    message = "jobset failed due to PodFailurePolicy" if kind == "Failed" else ""
    conditions = [{"type": kind, "status": "True", "message": message}] if kind else []
    return {**found["manifest"], "status": {"conditions": conditions, "restarts": 1}}


def pods(name: str) -> None:
    with state() as cloud:
        found = existing(name, cloud)
        (job,) = found["manifest"]["spec"]["replicatedJobs"]
        jobs, hosts = range(job["replicas"]), range(job["template"]["spec"]["completions"])
        pending, code = found["now"] == "Pending", cloud.get("pod_code")
    status: dict
    waits = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available"}
    status = {"phase": "Pending", "conditions": [waits]} if pending else {"phase": "Running"}
    if code is not None and found["now"] == "Failed":
        status = {"phase": "Failed"}
        status["containerStatuses"] = [{"state": {"terminated": {"exitCode": code}}}]
    # The API server lists pods by name.
    names = sorted(f"{name}-slice-{i}-{j}-abcde" for i in jobs for j in hosts)
    items = [{"metadata": {"name": one}, "status": status} for one in names]
    print(json.dumps({"items": items}))


if __name__ == "__main__":
    main(sys.argv[1:])
