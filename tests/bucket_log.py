"""The log of the storage server (bucket.py), and its table of requests by operation and library."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

OPERATIONS = ("list", "stat", "download", "upload", "compose", "rewrite", "delete", "bucket")


@dataclass(frozen=True)
class Request:
    """A request and its answer; status 0 means that it was not performed and not answered."""

    time: float
    client: str
    method: str
    host: str
    path: str
    query: str
    status: int
    received: int
    sent: int
    fault: str = ""

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}" + (f"?{self.query}" if self.query else "")

    @property
    def operation(self) -> str:
        return operation(self.line)


def operation(line: str) -> str:
    """Return one of OPERATIONS, or "other", for a line `METHOD path?query`."""
    if re.match(r"(POST|PUT) /upload/", line):
        return "upload"
    found = re.match(r"(\w+) /storage/v1/b/[^/?]+(/o)?(/[^?]+)?(.*)", line)
    if found is None:
        other = re.match(r"\w+ [^/]|CONNECT|\w+ /computeMetadata/", line)
        return "download" if line.startswith(("GET /", "HEAD /")) and not other else "other"
    method, objects, name, query = found.groups()
    if not objects:
        return "bucket"
    if not name:
        return "list"
    if method == "POST":
        return "compose" if name.endswith("/compose") else "rewrite"
    if method == "DELETE":
        return "delete"
    return "download" if re.search(r"[?&]alt=media\b", query) else "stat"


class Log:
    """The requests in the order of their answers, read from the server until the log is frozen."""

    def __init__(self, read: Callable[[], list[Request]]):
        self._read = read

    @property
    def requests(self) -> list[Request]:
        return self._read()

    def freeze(self) -> None:
        requests = self.requests
        self._read = lambda: list(requests)

    def find(
        self, match: str = "", *, operation: str = "", client: str = "", status: int | None = None
    ) -> list[Request]:
        """Return the requests that match the regular expression `match` and the other arguments."""
        return [
            request
            for request in self.requests
            if re.search(match, request.line)
            and (not operation or request.operation == operation)
            and (not client or request.client == client)
            and (status is None or request.status == status)
        ]

    def count(
        self, match: str = "", *, operation: str = "", client: str = "", status: int | None = None
    ) -> int:
        return len(self.find(match, operation=operation, client=client, status=status))

    def operations(self) -> dict[str, dict[str, int]]:
        return operations(self.requests)


def operations(log: Iterable[Request]) -> dict[str, dict[str, int]]:
    """Return the number of requests by operation, then by client library."""
    table: dict[str, dict[str, int]] = {}
    counts = Counter((request.operation, request.client) for request in log)
    for (operation, client), count in sorted(counts.items()):
        table.setdefault(operation, {})[client] = count
    return table


def table(log: Iterable[Request]) -> str:
    """Format `operations`, with bytes and faults, as a table for a terminal."""
    log = list(log)
    clients = sorted({request.client for request in log})
    rows = [["operation", *clients, "total", "MB in", "MB out", "errors", "faults"]]
    for name in (*OPERATIONS, "other", "total"):
        some = [request for request in log if name in (request.operation, "total")]
        if some:
            by_client = Counter(request.client for request in some)
            received, sent = sum(r.received for r in some), sum(r.sent for r in some)
            errors = sum(r.status >= 400 for r in some)
            faults = sum(bool(r.fault) for r in some)
            numbers = [*(by_client[client] for client in clients), len(some)]
            megabytes = [f"{received / 1e6:.1f}", f"{sent / 1e6:.1f}"]
            rows.append([name, *map(str, numbers), *megabytes, str(errors), str(faults)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        lines.append("  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(cells)))
    return "\n".join(lines)
