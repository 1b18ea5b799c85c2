"""A stand-in for docker on a TPU's host: one container, whose life the test has planned.

If the plan has a `port`, containers are real processes, which find each other as the hosts of
several slices do.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from cloud import HOME, fail, log, state, take

HOST = os.environ["FIRE_LM_STAND_IN_HOST"]
CONTAINER = HOME / "hosts" / HOST / "container.json"


def main(arguments: list[str]) -> None:
    log(f"docker@{HOST}", arguments)
    match arguments:
        case ["login", "--username=oauth2accesstoken", "--password-stdin", server]:
            if sys.stdin.read() != "a-token\n" or not server.startswith("https://"):
                fail("Error: Cannot perform an interactive login", 1)
        case ["pull", "--quiet", image]:
            print(image)
        case ["run", "--rm", _, "python", "-m", "tpu.host", bucket]:
            with state() as cloud:
                if cloud.get("bucket_refuses"):
                    fail(f"PermissionDenied: 403 {bucket}")
        case ["run", "--detach", *rest]:
            start(rest)
        case ["rm", "--force", "fire_lm"]:
            if not CONTAINER.exists():
                fail("Error: No such container: fire_lm")
            end(json.loads(CONTAINER.read_text()))
            CONTAINER.unlink()
        case ["ps", "--all", "--quiet", "--filter=name=^/?fire_lm$"]:
            with state() as cloud:
                daemon = take(cloud.get("daemons", {}).get(HOST, ["up"]))
                cloud["ending"] = daemon == "ending"
                if daemon == "down":
                    fail("Cannot connect to the Docker daemon. Is the docker daemon running?")
            if CONTAINER.exists():
                print("0123456789ab")
        case ["inspect", form, "fire_lm"]:
            with state() as cloud:
                if cloud.get("ending"):
                    fail("Cannot connect to the Docker daemon. Is the docker daemon running?")
            inspect(form)
        case ["kill", "--signal=SIGUSR1", "fire_lm"]:
            if not CONTAINER.exists():
                fail("Error response from daemon: No such container: fire_lm")
            found = json.loads(CONTAINER.read_text())
            CONTAINER.write_text(json.dumps({**found, "plan": ["exited:5"]}))
        case ["logs", *_, "fire_lm"]:
            print(f"step 100 of {HOST}")
        case _:
            fail(f"docker: unknown: {arguments}", 125)


def start(arguments: list[str]) -> None:
    given = [argument for argument in arguments if argument.startswith("--")]
    image, *command = arguments[next(i for i, a in enumerate(arguments) if a[:2] != "--") :]
    if CONTAINER.exists() or "--name=fire_lm" not in given or ":" not in image:
        fail('Error: Conflict. The container name "/fire_lm" is already in use', 125)
    label = next(a for a in given if a.startswith("--label=fire_lm_job="))
    with state() as cloud:
        launches = cloud["launches"].setdefault(HOST, 0)
        cloud["launches"][HOST] += 1
        if HOST in cloud.get("no_start", {}):
            cloud["no_start"][HOST] -= 1
            if cloud["no_start"][HOST] >= 0:
                fail("Error: no space left on device", 125)
        plans = cloud["containers"]
        plan = list(plans[min(launches, len(plans) - 1)])
    container: dict[str, Any] = {"command": command, "job": label.rpartition("=")[2], "plan": plan}
    if port := cloud.get("port"):
        variables = [a.partition("=")[2] for a in given if a.startswith("--env=")]
        container["pid"] = start_process(command, dict(v.split("=") for v in variables), port)
    CONTAINER.write_text(json.dumps(container))
    print("0123456789ab")


def start_process(command: list[str], variables: dict[str, str], port: int) -> int:
    """Start a container's command on a slice of one host; the metadata are of two slices."""
    own = HOST.rpartition(".")[0].rpartition("-")[2]
    slices = variables.get("MEGASCALE_NUM_SLICES", "2")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port + int(slices)}",
        "JAX_NUM_PROCESSES": slices,
        "JAX_PROCESS_ID": variables.get("MEGASCALE_SLICE_ID", own),
    }
    code = CONTAINER.with_name("code")
    code.unlink(missing_ok=True)
    with CONTAINER.with_name(f"log_of_{slices}").open("ab") as log:
        return subprocess.Popen(
            ["sh", "-c", '"$@"; echo $? > "$0"', str(code), *command],
            cwd=Path(__file__).resolve().parents[2],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ).pid


def end(found: dict) -> None:
    if "pid" in found:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(found["pid"], signal.SIGKILL)


def inspect(form: str) -> None:
    if not CONTAINER.exists():
        print()  # as docker does before it fails
        fail("Error: No such object: fire_lm")
    found = json.loads(CONTAINER.read_text())
    status, _, code = take(found["plan"]).partition(":")
    if "pid" in found:
        ended = CONTAINER.with_name("code")
        status, code = ("exited", ended.read_text().strip()) if ended.exists() else ("running", "")
    CONTAINER.write_text(json.dumps(found))
    told = form.removeprefix("--format=").replace("{{.State.Status}}", status)
    told = told.replace("{{.State.ExitCode}}", code or "0")
    print(told.replace("{{.Config.Labels.fire_lm_job}}", found["job"]))
    with state() as cloud:  # a finished job leaves a mark in the bucket
        mark = next((a for a in found["command"] if a.startswith("--mark=gs")), "")
        if (status, code) == ("exited", "0") and mark:
            cloud["objects"][mark.removeprefix("--mark=")] = ""


if __name__ == "__main__":
    main(sys.argv[1:])
