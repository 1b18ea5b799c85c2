"""Faults of the storage server (bucket.py), as values and as text.

A fault applies to the requests whose percent-decoded `METHOD path?query` its regular expression
`match` finds: `GET /storage/v1/b/bucket/o?prefix=runs/x/`. The first fault that applies decides,
except that `Slow`, `Denied` and `OneWriteASecond` combine with those after them. Most faults are
occasional: they skip the first `after` matching requests that no earlier fault decided, apply to at
most `times` of the rest, and to each of these with probability `chance`.

The text form, for a command line, is a kind with its value, then options: `status=503,chance=0.05`,
`slow=0.5,match=^DELETE`, `cut,times=2`. `match` comes last and may contain commas.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

PIECE = 256 * 1024  # a resumable upload keeps a multiple of this size


@dataclass(frozen=True, kw_only=True)
class Fault:
    match: str = ""

    def matches(self, line: str) -> bool:
        return re.search(self.match, line) is not None


@dataclass(frozen=True, kw_only=True)
class Occasional(Fault):
    times: int | None = None
    chance: float = 1.0
    after: int = 0


@dataclass(frozen=True)
class Status(Occasional):
    """Answers with this status without performing the request."""

    status: int = 503


@dataclass(frozen=True)
class Slow(Occasional):
    """Delays the request; if the client has disconnected by then, the request is not performed."""

    seconds: float = 1.0


@dataclass(frozen=True)
class Cut(Occasional):
    """Closes the connection without an answer and without performing the request."""


@dataclass(frozen=True)
class LostAnswer(Occasional):
    """Performs the request, then closes the connection without an answer."""


@dataclass(frozen=True)
class CutDownload(Occasional):
    """Closes the connection after `keep` bytes of the content (by default, half of it)."""

    keep: int | None = None


@dataclass(frozen=True)
class CutUpload(Occasional):
    """Closes the connection during an upload. A resumable upload keeps the first `keep` bytes.

    `keep` is rounded down to a multiple of 256 KiB; by default, half of the content is kept.
    """

    keep: int | None = None

    def kept(self, size: int) -> int:
        return min(size, size // 2 if self.keep is None else self.keep) // PIECE * PIECE


@dataclass(frozen=True)
class OneWriteASecond(Fault):
    """Answers 429 to a write to an object that was written less than a second ago."""


@dataclass(frozen=True)
class Denied(Fault):
    """Answers 403 to "reads", "writes" or "both" of objects whose names start with `prefix`."""

    prefix: str = ""
    to: str = "both"

    def __post_init__(self) -> None:
        if self.to not in ("reads", "writes", "both"):
            raise ValueError(f"to={self.to} is not reads, writes or both")

    def denies(self, access: str, name: str) -> bool:
        return self.to in (access, "both") and name.startswith(self.prefix)


KINDS: dict[str, type[Fault]] = {
    "status": Status,
    "slow": Slow,
    "cut": Cut,
    "lost_answer": LostAnswer,
    "cut_download": CutDownload,
    "cut_upload": CutUpload,
    "one_write_a_second": OneWriteASecond,
    "denied": Denied,
}
WITHOUT_VALUE = ("cut", "lost_answer", "one_write_a_second")
VALUES = {"status": int, "times": int, "after": int, "keep": int, "chance": float, "seconds": float}


def parse(rule: str) -> Fault:
    """Return the fault that `rule` describes; raise ValueError with one line if it is malformed."""
    head, _, match = rule.partition("match=")
    words = [word for word in head.split(",") if word]
    kind, _, first = words[0].partition("=") if words else ("", "", "")
    if kind not in KINDS:
        raise ValueError(f"{rule!r}: the kind must be one of {', '.join(KINDS)}")
    accepted = [field.name for field in fields(KINDS[kind])]
    own = None if kind in WITHOUT_VALUE else accepted[len(_common(KINDS[kind]))]
    given = dict([("match", match)] if match else [])
    for word in ([f"{own}={first}"] if first else []) + words[1:]:
        name, _, value = word.partition("=")
        if (first and own is None) or name not in accepted or not value:
            raise ValueError(f"{rule!r}: {words[0]!r} does not take {word!r}")
        given[name] = value
    try:
        re.compile(match)
        return KINDS[kind](**{name: VALUES.get(name, str)(text) for name, text in given.items()})
    except (ValueError, re.error) as error:
        raise ValueError(f"{rule!r}: {error}") from None


def _common(kind: type[Fault]) -> Sequence[str]:
    return [field.name for field in fields(Occasional if issubclass(kind, Occasional) else Fault)]
