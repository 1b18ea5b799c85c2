"""What the stand-ins for gcloud, kubectl and docker know: one JSON file, and what the test planned.

The plan is in the same file: `states` of a queued resource, a list for each request, and
`containers`, a list for each launch: every look takes the next one, the last one stays.
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
    """Read and written by one process at a time."""
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = HOME / "cloud.json"
        found = json.loads(path.read_text())
        try:
            yield found
        finally:
            path.write_text(json.dumps(found, indent=1))


def take(plan: list[str]) -> str:
    """The next of a plan; its last one stays."""
    return plan.pop(0) if len(plan) > 1 else plan[0]


def fail(words: str, code: int = 1) -> NoReturn:
    print(words, file=sys.stderr)
    sys.exit(code)


def log(program: str, arguments: list[str]) -> None:
    path = HOME / "calls.jsonl"
    with path.open("a") as file:
        file.write(json.dumps([program, *arguments]) + "\n")
    if path.stat().st_size > 400_000:  # which ends whoever looks for ever
        fail("ERROR: too many calls for a test")


def flags(program: str, arguments: list[str], allowed: set[str]) -> dict[str, str]:
    """`--name=value` and `--name`; anything else is refused, as the real programs do."""
    found = {}
    for argument in arguments:
        name, _, value = argument.partition("=")
        if not name.startswith("--") or name[2:] not in allowed:
            fail(f"ERROR: ({program}) unrecognized arguments: {argument}", 2)
        found[name[2:]] = value
    return found
