"""The state of the stand-ins for gcloud, kubectl and docker, with the test's plan, as a JSON file.

The plan has `states`, a list for each queued resource that is requested, and `containers`, a list
for each launch. Each look takes the next item of a list; the last item remains.
"""

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

HOME = Path(os.environ["FIRE_LM_STAND_IN"])


@contextlib.contextmanager
def state() -> Iterator[dict[str, Any]]:
    """Yield the state, which only one process at a time reads and writes."""
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = HOME / "cloud.json"
        found = json.loads(path.read_text())
        try:
            yield found
        finally:
            path.write_text(json.dumps(found, indent=1))


def take(plan: list[str]) -> str:
    """Remove and return the next item of a plan; its last item remains."""
    return plan.pop(0) if len(plan) > 1 else plan[0]


def fail(words: str, code: int = 1) -> NoReturn:
    print(words, file=sys.stderr)
    sys.exit(code)


def log(program: str, arguments: list[str]) -> None:
    path = HOME / "calls.jsonl"
    with path.open("a") as file:
        file.write(json.dumps([program, *arguments]) + "\n")
    if path.stat().st_size > 400_000:  # stops a program that polls forever
        fail("ERROR: too many calls for a test")


def flags(program: str, arguments: list[str], allowed: set[str]) -> dict[str, str]:
    """Parse `--name=value` and `--name`; refuse anything else, as the real programs do."""
    found = {}
    for argument in arguments:
        name, _, value = argument.partition("=")
        if not name.startswith("--") or name[2:] not in allowed:
            fail(f"ERROR: ({program}) unrecognized arguments: {argument}", 2)
        found[name[2:]] = value
    return found
