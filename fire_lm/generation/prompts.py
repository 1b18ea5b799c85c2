"""Files of prompts and files of continuations, both in JSON Lines format.

Each line with a prompt has the form `{"id": ..., "prompt": "..."}`. The default id is the number of
the line, starting at 1. Each line with a result contains the same id, the settings with which the
result was generated, and the continuations.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from fire_lm.errors import UserError
from fire_lm.generation.continuations import Continuation, Writer, width
from fire_lm.generation.result_lines import whole_lines
from fire_lm.storage import read_bytes


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A prompt in a file; `number` is the number of its line, starting at 1."""

    id: str | int
    text: str
    number: int


def read_prompts(content: bytes, name: str) -> list[Prompt]:
    """Return the prompts in the content of the file `name`, skipping blank lines.

    Only a line feed ends a line, because JSON may contain the other line separators of Unicode.

    Raises:
      UserError: A line is malformed or not UTF-8, two lines have the same id, or the file has no
        prompts.
    """
    by_id: dict[str | int, Prompt] = {}
    for number, raw in enumerate(content.split(b"\n"), 1):
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}, line {number}: not UTF-8 ({error.reason} at byte "
                f"{error.start + 1}): convert the file to UTF-8"
            ) from None
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            json.dumps(fields, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{name}, line {number} contains a lone surrogate, which is not a character: "
                "remove it"
            ) from None
        except ValueError:
            fields = None
        text = fields.get("prompt") if isinstance(fields, dict) else None
        key = fields.get("id", number) if isinstance(fields, dict) else None
        if not isinstance(text, str) or not isinstance(key, str | int) or isinstance(key, bool):
            raise UserError(
                f'{name}, line {number}: expected {{"prompt": "TEXT"}}, optionally with "id" (text '
                f"or a number), got {line.strip()[:60]}"
            )
        if key in by_id:
            raise UserError(
                f"{name}, line {number}: line {by_id[key].number} already has the id {key!r}: "
                "make the ids unique"
            )
        by_id[key] = Prompt(key, text, number)
    if not by_id:
        raise UserError(f'{name} contains no prompts: add a line such as {{"prompt": "TEXT"}}')
    return list(by_id.values())


def finished(
    path: epath.Path, settings: Mapping[str, Any], prompts: Sequence[Prompt]
) -> list[str | int]:
    """Return the ids of the `prompts` whose results an earlier command has written to `path`.

    Raises:
      UserError: A line is not a result, was generated with other settings, or continues
        a different prompt with the same id.
    """
    texts, ids = {prompt.id: prompt.text for prompt in prompts}, []
    lines = whole_lines(read_bytes(path) or b"").split(b"\n")[:-1]
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            key, text = fields["id"], fields["prompt"]
            there = key in texts
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{path}, line {number}: not a result of `fire-lm generate`\n"
                "choose another --output"
            ) from None
        for name, value in settings.items():
            if fields.get(name) != value:
                raise UserError(
                    f"{path} contains continuations with {name} = {fields.get(name)!r}, not "
                    f"{value!r}: choose another --output"
                )
        if there and text != texts[key]:
            raise UserError(
                f"{path}, line {number}: the prompt with id {key!r} was {text[:40]!r}, but is now "
                f"{texts[key][:40]!r}: choose another --output"
            )
        if there:
            ids.append(key)
    return ids


def result_line(
    prompt: Prompt, settings: Mapping[str, Any], continuations: Sequence[Continuation]
) -> str:
    """Return a result, with the settings of its generation, as a line of JSON with a line feed."""
    fields = {
        "id": prompt.id,
        "prompt": prompt.text,
        "continuations": [dataclasses.asdict(continuation) for continuation in continuations],
        **settings,
    }
    return json.dumps(fields, ensure_ascii=False) + "\n"


def continued(
    writer: Writer,
    prompts: Sequence[tuple[Prompt, np.ndarray]],
    batch_size: int,
    context_length: int,
) -> Iterator[list[tuple[Prompt, list[Continuation]]]]:
    """Yield the continuations batch by batch, starting with the shortest prompts.

    All prompts in a batch are padded to the same width, so that few programs are compiled.
    """
    widths: dict[int, list[tuple[Prompt, np.ndarray]]] = {}
    for prompt, ids in sorted(prompts, key=lambda pair: len(pair[1])):
        widths.setdefault(width(len(ids)), []).append((prompt, ids))
    for alike in widths.values():
        for start in range(0, len(alike), batch_size):
            batch = alike[start : start + batch_size]
            filled = batch + [batch[-1]] * (
                batch_size - len(batch) if len(alike) > batch_size else 0
            )
            continuations = writer.continue_prompts(
                [ids for _, ids in filled], [prompt.number for prompt, _ in filled], context_length
            )
            yield [
                (prompt, of_prompt)
                for (prompt, _), of_prompt in zip(batch, continuations, strict=False)
            ]
