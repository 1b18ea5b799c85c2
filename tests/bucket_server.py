"""The process of the storage server, which answers clients and obeys its Bucket (bucket.py).

It is a separate process because TensorFlow holds the interpreter lock while it retries a failed
write or writes a file that nobody closed: a server in the same process could never answer.
"""

import contextlib
import http.server
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from bucket_faults import (
    Cut,
    CutDownload,
    CutUpload,
    Denied,
    Fault,
    LostAnswer,
    Occasional,
    OneWriteASecond,
    Slow,
    Status,
)
from bucket_log import Request, operation
from bucket_store import Answer, Asked, Store, error

CLIENTS = {"TSL": "TensorFlow", "TensorFlow": "TensorFlow", "tensorstore": "tensorstore"}
HOSTS = (
    "www.googleapis.com",
    "storage.googleapis.com",
    "oauth2.googleapis.com",
    "accounts.google.com",
    "metadata.google.internal",
)


class Server:
    """The server; the Bucket calls its public methods, which take and return plain values."""

    def __init__(self, folder: Path, page_size: int, seed: int):
        self.store = Store(page_size)
        self.tls = certificates(folder)
        self.being_held: list[str] = []
        self._log: list[Request] = []
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._faults: list[Fault] = []
        self._used: dict[int, int] = {}  # by the fault's index in the list
        self._listener = _Listener(self)
        threading.Thread(target=self._listener.serve_forever, args=(0.02,), daemon=True).start()

    def port(self) -> int:
        return self._listener.server_address[1]

    def stop(self) -> None:
        self._listener.stop()

    def reset(self, names: Sequence[str]) -> None:
        with self.store.lock:
            self.store.buckets.clear()
            self.store.buckets.update({name: {} for name in names})
            self.store.unknown.clear()
        self.set_faults([])
        with self._lock:
            self._log.clear()

    def set_faults(self, faults: Sequence[Fault]) -> None:
        with self._lock:
            self._faults = list(faults)
            self._used.clear()

    def add_fault(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def faults(self) -> tuple[Fault, ...]:
        with self._lock:
            return tuple(self._faults)

    def requests(self, first: int, end: int | None) -> list[Request]:
        with self._lock:
            return self._log[first:end]

    def num_requests(self) -> int:
        with self._lock:
            return len(self._log)

    def held(self) -> list[str]:
        return list(self.being_held)

    def unknown(self) -> list[str]:
        return list(self.store.unknown)

    def objects(self, bucket: str) -> dict[str, bytes]:
        with self.store.lock:
            return {name: stored.content for name, stored in self.store.buckets[bucket].items()}

    def generation(self, bucket: str, name: str) -> int:
        with self.store.lock:
            return self.store.buckets[bucket][name].generation

    def put(self, bucket: str, name: str, content: bytes) -> None:
        self.store.put(bucket, name, content)

    def delete(self, bucket: str, name: str) -> None:
        with self.store.lock:
            del self.store.buckets[bucket][name]

    # Called by the serving threads.

    def choose(self, asked: Asked) -> list[Fault]:
        """Return the faults that apply to this request and count them as used."""
        chosen: list[Fault] = []
        line = asked.line
        what = operation(line)
        with self._lock:
            for place, fault in enumerate(self._faults):
                if not fault.matches(line):
                    continue
                if isinstance(fault, CutDownload) and what != "download":
                    continue
                if isinstance(fault, CutUpload) and (what != "upload" or not asked.content):
                    continue
                if isinstance(fault, Occasional):
                    seen = self._used.get(place, 0)
                    end = float("inf") if fault.times is None else fault.after + fault.times
                    if self._random.random() >= fault.chance or seen >= end:
                        continue
                    self._used[place] = seen + 1
                    if seen < fault.after:
                        continue
                chosen.append(fault)
                if not isinstance(fault, Slow | Denied | OneWriteASecond):
                    break  # this fault decides
        return chosen

    def note(self, request: Request) -> None:
        with self._lock:
            self._log.append(request)


def certificates(folder: Path) -> ssl.SSLContext:
    """Make a certificate authority, ca.pem, and a certificate for HOSTS signed by it."""
    names = ",".join(f"DNS:{host}" for host in HOSTS)
    (folder / "ext").write_text(f"subjectAltName={names},IP:127.0.0.1\n")
    new = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    authority = "-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign"
    signed = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out leaf.pem"
    for command in (
        f"req -x509 {new} -keyout ca.key -out ca.pem -days 2 -subj /CN=loopback {authority}",
        f"req {new} -keyout leaf.key -out leaf.csr -subj /CN=leaf",
        f"x509 -req -in leaf.csr {signed}",
    ):
        line = ["openssl", *command.split()]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(line)}: {done.stderr}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "leaf.pem", folder / "leaf.key")
    return context


class _Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, owner: Server):
        self.owner = owner
        self.stopping = False
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def stop(self) -> None:
        self.stopping = True
        self.shutdown()
        self.server_close()
        for connection in list(self.connections):  # idle ones that a client keeps open
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError | ValueError):  # otherwise the client has left
            traceback.print_exc()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener
    secure_host = ""  # the host of CONNECT once it is answered

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_CONNECT(self) -> None:
        host = self.path.rpartition(":")[0]
        if host not in HOSTS or self.secure_host:
            asked = Asked("CONNECT", "http", self.path, self.path, {}, self.headers, b"")
            return self._send(asked, error(403, f"{self.path} is not on loopback"))
        self.send_response_only(200)
        self.end_headers()
        self.server.connections.discard(self.connection)
        self.connection = self.server.owner.tls.wrap_socket(self.connection, server_side=True)
        self.server.connections.add(self.connection)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", 0)
        self.secure_host = host
        self.close_connection = False  # whatever version of HTTP the client used

    def _serve(self) -> None:
        owner = self.server.owner
        asked = self._read()
        if asked is None:
            return self._close()
        faults = owner.choose(asked)
        for fault in faults:
            if isinstance(fault, Slow) and not self._hold(fault.seconds, asked.line):
                return self._cut(asked, 0, "slow, and the client has gone")
        if any(isinstance(fault, Cut) for fault in faults):
            return self._cut(asked, 0, "cut")
        for fault in faults:
            if isinstance(fault, CutUpload):
                owner.store.keep_part(asked, fault.kept(len(asked.content)))
                return self._cut(asked, 0, "cut_upload")
            if isinstance(fault, Status):
                message = f"{fault.status}, as a fault of the tests"
                return self._send(asked, error(fault.status, message, "status"))
        limits = [fault for fault in faults if isinstance(fault, Denied | OneWriteASecond)]
        answer = self._answer(asked, limits)
        for fault in faults:
            if isinstance(fault, LostAnswer):
                return self._cut(asked, answer.status, "lost_answer")
            if isinstance(fault, CutDownload) and answer.content and answer.status < 300:
                keep = len(answer.content) // 2 if fault.keep is None else fault.keep
                answer = replace(answer, fault="cut_download")
                return self._send(asked, answer, min(keep, len(answer.content) - 1))
        slow = any(isinstance(fault, Slow) for fault in faults)
        self._send(asked, replace(answer, fault="slow") if slow and not answer.fault else answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    def _answer(self, asked: Asked, limits: Sequence[Fault]) -> Answer:
        if asked.host.partition(":")[0] not in ("127.0.0.1", "localhost", *HOSTS):
            return error(403, f"{asked.host} is not on loopback")
        try:
            return self.server.owner.store.answer(asked, limits)
        except Exception:  # an error of the server, or a request that it cannot parse
            self.server.owner.store.unknown.append(f"{asked.line}\n{traceback.format_exc()}")
            return error(400, traceback.format_exc())

    def _read(self) -> Asked | None:
        """Read the request with its content; return None if the client left before its end."""
        parts = urlsplit(self.path)  # a proxy's requests include scheme and host
        scheme = "https" if self.secure_host else "http"
        host = parts.netloc or self.headers.get("Host", "")
        route = [unquote(segment) for segment in parts.path.split("/")[1:]]
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        content = self._content()
        if content is None:
            return None
        path = unquote(parts.path)
        return Asked(self.command, scheme, host, path, query, self.headers, content, route)

    def _content(self) -> bytes | None:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            size = int(self.headers.get("Content-Length", 0))
            content = self.rfile.read(size)
            return content if len(content) == size else None
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0] or b"-1", 16):
            pieces.append(self.rfile.read(size + 2)[:-2])
            if size < 0 or len(pieces[-1]) != size:
                return None
        while self.rfile.readline().strip():
            pass
        return b"".join(pieces)

    def _hold(self, seconds: float, line: str) -> bool:
        """Wait; return False as soon as the client, from which no more data is due, disconnects."""
        held = self.server.owner.being_held
        end = time.monotonic() + seconds
        held.append(line)
        try:
            while time.monotonic() < end and not self.server.stopping:
                try:  # bypass TLS: both its close_notify and the end of the connection count
                    flags = socket.MSG_PEEK | socket.MSG_DONTWAIT
                    socket.socket.recv(self.connection, 1, flags)
                    return False
                except BlockingIOError:
                    time.sleep(0.01)
                except OSError:
                    return False
            return not self.server.stopping
        finally:
            held.remove(line)

    def _note(self, asked: Asked, status: int, sent: int, fault: str) -> None:
        agent = self.headers.get("User-Agent", "")
        client = next((name for word, name in CLIENTS.items() if word in agent), "other")
        method, _, target = asked.line.partition(" ")
        path, _, query = target.partition("?")
        received = len(asked.content)
        self.server.owner.note(
            Request(
                *(time.time(), client, method, asked.host.partition(":")[0], path, query),
                *(status, received, sent, fault),
            )
        )

    def _send(self, asked: Asked, answer: Answer, keep: int | None = None) -> None:
        """Log the request, then answer it; with `keep`, close after that many bytes of content."""
        content = b"" if asked.method == "HEAD" else answer.content[:keep]
        self._note(asked, answer.status, len(content), answer.fault)
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status not in (204, 304):
            self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(content)
        if keep is not None:
            self._close()

    def _cut(self, asked: Asked, status: int, fault: str) -> None:
        self._note(asked, status, 0, fault)
        self._close()

    def _close(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def main(descriptor: str, page_size: str, seed: str) -> None:
    """Obey the Bucket at the other end of this socket until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder = Path(tempfile.mkdtemp(prefix="bucket-"))
    orders = Connection(int(descriptor))
    try:
        server = Server(folder, int(page_size), int(seed))
        orders.send(("ready", server.port(), folder / "ca.pem"))
        while True:
            method, arguments = orders.recv()
            try:
                orders.send((getattr(server, method)(*arguments), None))
            except Exception as error:
                orders.send((None, error))
    except (EOFError, OSError):  # the Bucket is closed, or its process has ended
        pass
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
