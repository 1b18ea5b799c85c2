"""The log of a training run: `metrics.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from etils import epath

from fire_lm import storage


def of_a_step(facts: dict[str, Any]) -> bool:
    """Return whether the parsed line of a log belongs to a training step."""
    return type(facts.get("step")) is int


def whole_lines(
    content: bytes | None, ours: Callable[[dict[str, Any]], bool] = of_a_step
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the parsed object and the text of each JSON line for which `ours` returns True.

    Lines that are incomplete because of a kill or a crash, damaged on the disk, or added by other
    programs are skipped.
    """
    for line in (content or b"").decode(errors="replace").split("\n"):
        with suppress(ValueError):
            facts = json.loads(line)
            if isinstance(facts, dict) and ours(facts):
                yield facts, f"{line}\n"


def logged_steps(workdir: str | epath.Path) -> list[dict[str, Any]]:
    """Return the parsed lines of a run's `metrics.jsonl`, including all parts of the file."""
    content = b"".join(storage.read_parts(epath.Path(workdir) / "metrics.jsonl"))
    return [facts for facts, _ in whole_lines(content)]


class MetricsLines:
    """The `metrics.jsonl` of a run.

    Existing lines of steps after `resume_step` are removed. A killed run may have logged steps
    after its last checkpoint. The resumed run computes these steps again, bit for bit, so the file
    is truncated at the checkpoint and contains every step only once. In a bucket, a line is
    uploaded within half a minute (see `storage.appended`), and no step waits for the upload.
    """

    def __init__(self, workdir: str | epath.Path, resume_step: int):
        def up_to_resume_step(content: bytes) -> bytes:
            lines = [line for facts, line in whole_lines(content) if facts["step"] <= resume_step]
            return "".join(lines).encode()

        self._file = storage.append_to(epath.Path(workdir) / "metrics.jsonl", up_to_resume_step)

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """Append a line. If the disk is full, the line is kept for the next write."""
        self._file.append((json.dumps({"step": step, **values}) + "\n").encode())

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
