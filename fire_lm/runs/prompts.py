"""Prompts in JSON lines, and what a model has written after them.

A line of prompts is `{"id": ..., "prompt": "..."}`; without an id the line's number, from 1, is
taken. A line of results has the same id, how it was made, and the continuations.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from fire_lm.errors import UserError
from fire_lm.runs.continuations import Continuation, Writer, width
from fire_lm.storage import read_bytes


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One of a file; `number` is its line, from 1."""

    id: str | int
    text: str
    number: int


def read_prompts(lines: Iterable[str], name: str) -> list[Prompt]:
    """The prompts of the file `name`; blank lines are skipped.

    Raises:
      UserError: a line is not as it must be, an id is there twice, or there is no prompt.
    """
    found: dict[str | int, Prompt] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError:
            fields = None
        text = fields.get("prompt") if isinstance(fields, dict) else None
        key = fields.get("id", number) if isinstance(fields, dict) else None
        if not isinstance(text, str) or not isinstance(key, str | int) or isinstance(key, bool):
            raise UserError(
                f'{name}, line {number}: expected {{"prompt": "TEXT"}}, with "id" (text or a '
                f"number) if you like, got {line.strip()[:60]}"
            )
        if key in found:
            raise UserError(f"{name}, line {number}: the id {key!r} is that of line "
                            f"{found[key].number} too: make ids unique")  # fmt: skip
        found[key] = Prompt(key, text, number)
    if not found:
        raise UserError(f"{name} holds no prompt")
    return list(found.values())


def finished(path: epath.Path, made: Mapping[str, Any]) -> set[str | int]:
    """The ids of an earlier output whose lines were `made` the same way.

    Raises:
      UserError: a line is no result, or was made otherwise.
    """
    ids = set()
    for number, line in enumerate(whole_lines(read_bytes(path) or b"").splitlines(), 1):
        try:
            fields = json.loads(line)
            ids.add(fields["id"])
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{path}, line {number}: no result of fire-lm generate\ngive another --output"
            ) from None
        for key, value in made.items():
            if fields.get(key) != value:
                raise UserError(
                    f"{path} holds continuations with {key} = {fields.get(key)!r}, not "
                    f"{value!r}: give another --output"
                )
    return ids


def whole_lines(content: bytes) -> bytes:
    """Without the last line, if a kill has left half of it."""
    return content[: content.rfind(b"\n") + 1]


def result_line(prompt: Prompt, made: Mapping[str, Any], found: Sequence[Continuation]) -> str:
    """JSON, with a line break."""
    fields = {
        "id": prompt.id,
        "prompt": prompt.text,
        "continuations": [dataclasses.asdict(one) for one in found],
        **made,
    }
    return json.dumps(fields, ensure_ascii=False) + "\n"


def continued(
    writer: Writer,
    prompts: Sequence[tuple[Prompt, np.ndarray]],
    batch_size: int,
    context_length: int,
) -> Iterator[list[tuple[Prompt, list[Continuation]]]]:
    """Batch by batch, the shortest prompts first; a batch is of one width, so that few programs
    are compiled."""
    widths: dict[int, list[tuple[Prompt, np.ndarray]]] = {}
    for one in sorted(prompts, key=lambda one: len(one[1])):
        widths.setdefault(width(len(one[1])), []).append(one)
    for alike in widths.values():
        for start in range(0, len(alike), batch_size):
            batch = alike[start : start + batch_size]
            filled = batch + [batch[-1]] * (
                batch_size - len(batch) if len(alike) > batch_size else 0
            )
            found = writer.continue_prompts(
                [ids for _, ids in filled], [prompt.number for prompt, _ in filled], context_length
            )
            yield [(prompt, one) for (prompt, _), one in zip(batch, found, strict=False)]
