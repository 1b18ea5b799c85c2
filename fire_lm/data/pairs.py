"""Pairs of an input and a target in a file of JSON lines, and their split by a hash."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from typing import TYPE_CHECKING, Any

from fire_lm.data.tokens import encode
from fire_lm.errors import UserError, first_line
from fire_lm.storage import place, read_bytes

if TYPE_CHECKING:
    from fire_lm.data.kinds import Pairs

_LINE = '{"inputs": "TEXT", "targets": "TEXT"}'


@dataclasses.dataclass(frozen=True)
class Pair:
    """An input and its target, in the given line of the file, counted from 1."""

    line: int
    inputs: str
    targets: str

    @property
    def place(self) -> float:
        """A number in [0, 1) that depends only on the input, uniform over inputs."""
        digest = hashlib.sha256(self.inputs.encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64


def file_sha256(file: str) -> str:
    """Return the SHA-256 of a file of pairs.

    Raises:
      UserError: The file cannot be read.
    """
    return hashlib.sha256(_content(file)).hexdigest()


def read_pairs(file: str) -> tuple[Pair, ...]:
    """Return the pairs of a file, in order. Blank lines and other fields are ignored.

    Raises:
      UserError: The file cannot be read, is empty, or has a line that is not a pair of texts.
    """
    return _parsed(file, _content(file))


def longest_target(data: Pairs) -> int:
    """Return the number of tokens of the longest target in a file of pairs.

    Raises:
      UserError: See `read_pairs`, or the vocabulary cannot be read.
    """
    return max(len(encode(data, pair.targets)) for pair in read_pairs(data.file))


def summary(data: Pairs, room: int) -> str:
    """Describe the pairs that a run reads and those that do not fit.

    `room` is the maximum number of input tokens in a row.

    Raises:
      UserError: See `splits_of`, or the vocabulary cannot be read.
    """
    splits = splits_of(data)
    pairs = [pair for members in splits.values() for pair in members]
    cut = sum(len(encode(data, pair.inputs)) > room for pair in pairs)
    skipped = sum(len(encode(data, pair.targets)) >= data.target_length for pair in pairs)
    parts = [
        f"{data.file}: {len(splits['train']):,} pairs to train on, "
        f"{len(splits['validation']):,} to validate (a share of {data.validation_share:g}, by a "
        "hash of the input)"
    ]
    if cut:
        parts.append(
            f"{cut:,} inputs have more than {room} tokens and are truncated ({data.truncation})"
        )
    if skipped:
        parts.append(f"{skipped:,} targets do not fit into TARGET_LENGTH and are skipped")
    return "; ".join(parts)


def splits_of(data: Pairs) -> dict[str, list[Pair]]:
    """Return the pairs of the splits 'train' and 'validation', in the order of the file.

    Raises:
      UserError: See `read_pairs`, or the file is not the one with the hash `data.sha256`, or a
        split has no pair.
    """
    if data.sha256 and file_sha256(data.file) != data.sha256:
        raise UserError(
            f"{data.file} has changed: its SHA-256 is not {data.sha256[:12]}..., with which the "
            "run was started\nrestore the file, or start another run with another --workdir"
        )
    pairs = read_pairs(data.file)
    splits: dict[str, list[Pair]] = {"train": [], "validation": []}
    for pair in pairs:
        splits["validation" if pair.place < data.validation_share else "train"].append(pair)
    for name, members in splits.items():
        if not members:
            count = "1 pair" if len(pairs) == 1 else f"{len(pairs)} pairs"
            raise UserError(
                f"{data.file} has too few examples: with {count} and Pairs.validation_share "
                f"{data.validation_share:g}, the split {name!r} is empty\nadd pairs with other "
                f"inputs{_fitting(pairs)}"
            )
    return splits


def _fitting(pairs: tuple[Pair, ...]) -> str:
    """Return the advice to set a share with which both splits have a pair, or "" if none exists."""
    places = [pair.place for pair in pairs]
    shares = [n / 20 for n in range(1, 20)]
    share = next(
        (candidate for candidate in shares if min(places) < candidate <= max(places)), None
    )
    return f", or set --gin.Pairs.validation_share={share:g}" if share else ""


def _content(file: str) -> bytes:
    try:
        content = read_bytes(place(file))
    except OSError as error:
        raise UserError(f"cannot read the pairs in {file}: {first_line(error)}") from None
    if content is None:
        raise UserError(f"there is no file {file}: give a file with a line {_LINE} per example")
    return content


@functools.lru_cache(maxsize=2)
def _parsed(file: str, content: bytes) -> tuple[Pair, ...]:
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")  # some editors write a BOM
    pairs = tuple(_pair(file, n, line) for n, line in enumerate(lines, 1) if line.strip())
    if not pairs:
        raise UserError(f"{file} is empty: give a line {_LINE} per example")
    return pairs


def _pair(file: str, number: int, line: bytes) -> Pair:
    where = f"{file}, line {number}"
    try:
        value: Any = json.loads(line.decode())
    except UnicodeDecodeError:
        raise UserError(f"{where}, is not UTF-8: save the file as UTF-8") from None
    except (ValueError, RecursionError):
        raise UserError(f"{where}, is not JSON: each line must be {_LINE}") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}, is not an object: each line must be {_LINE}")
    for field in ("inputs", "targets"):
        if field not in value:
            others = ", ".join(map(str, value)) or "no other field"
            raise UserError(f"{where}, has no field {field!r}, only {others}: it must be {_LINE}")
        if not isinstance(value[field], str):
            raise UserError(f"{where}: {field} is {value[field]!r:.80}: it must be text")
        if not value[field].strip():
            raise UserError(f"{where}: {field} is empty: remove the line, or add the text")
        if any("\ud800" <= letter <= "\udfff" for letter in value[field]):
            raise UserError(f"{where}: {field} has half of a surrogate pair, which is not text")
    return Pair(number, value["inputs"], value["targets"])
