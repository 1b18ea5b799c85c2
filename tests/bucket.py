"""A storage server on loopback that speaks Google Cloud Storage to TensorFlow and tensorstore.

    with Bucket() as bucket:
        subprocess.run([...], env=bucket.child_environment())
        assert bucket.objects["runs/x/config.gin"]
        assert bucket.count("^DELETE") == 0

The libraries' host names are compiled in, but they obey `https_proxy`. One port therefore serves as
a plain HTTP server and as an HTTPS proxy. The proxy answers CONNECT itself, with its own
certificate and for Google's host names only. The server never opens a connection.

The server runs in a process of its own (bucket_server.py says why); a Bucket is a handle to it.
"""

import atexit
import contextlib
import functools
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bucket_faults import Fault
from bucket_log import Log

UNSET = (
    *("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "NO_PROXY"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST", "GCE_METADATA_ROOT"),
    *("TENSORSTORE_GCS_HTTP_URL", "STORAGE_EMULATOR_HOST", "EPATH_USE_TF"),
)


class Bucket:
    """A handle to the server; `objects`, `put` and `url` refer to the first bucket by default."""

    def __init__(
        self,
        names: Sequence[str] = ("bucket",),
        faults: Iterable[Fault] = (),
        page_size: int = 1000,
        seed: int = 0,
    ):
        self.name = names[0]
        self.log = Log(lambda: self._call("requests", 0, None))
        self._names, self._first_faults = names, tuple(faults)
        self._page_size, self._seed = page_size, seed
        self._lock = threading.Lock()

    def __enter__(self) -> "Bucket":
        ours, theirs = socket.socketpair()
        program = Path(__file__).with_name("bucket_server.py")
        line = [sys.executable, "-B", "-S", "-E", str(program), str(theirs.fileno())]
        line += [str(self._page_size), str(self._seed)]
        # A session of its own, so that Ctrl-C in a terminal reaches only the clients.
        descriptors = [theirs.fileno()]
        self._process = subprocess.Popen(line, pass_fds=descriptors, start_new_session=True)
        theirs.close()
        self._orders = Connection(ours.detach())
        _, self.port, self._authority = self._orders.recv()
        self.reset(self._names)
        self.faults = self._first_faults
        return self

    def __exit__(self, *error: Any) -> None:
        self._call("stop")
        self._orders.close()
        self._process.wait(timeout=10)

    def _call(self, method: str, *arguments: Any) -> Any:
        with self._lock:
            self._orders.send((method, arguments))
            result, error = self._orders.recv()
        if error is not None:
            raise error
        return result

    def reset(self, names: Sequence[str]) -> None:
        """Start over with these buckets, empty, with no faults and an empty log."""
        self.name = names[0]
        self._call("reset", list(names))

    @property
    def faults(self) -> Sequence[Fault]:
        """The faults in force. Assigning them at any time restarts all counts of use."""
        return self._call("faults")

    @faults.setter
    def faults(self, faults: Iterable[Fault]) -> None:
        self._call("set_faults", list(faults))

    def add_fault(self, fault: Fault) -> None:
        self._call("add_fault", fault)

    @property
    def held(self) -> list[str]:
        """`METHOD path?query` of each request that a `Slow` fault is currently holding back."""
        return self._call("held")

    @property
    def num_requests(self) -> int:
        """The number of requests that have been answered, which costs less than `count`."""
        return self._call("num_requests")

    @property
    def unknown(self) -> list[str]:
        """The requests that the server does not support and answered with 400."""
        return self._call("unknown")

    def url(self, name: str = "", bucket: str | None = None) -> str:
        return f"gs://{bucket or self.name}/{name}"

    @property
    def objects(self) -> dict[str, bytes]:
        return self.objects_of(self.name)

    def objects_of(self, bucket: str) -> dict[str, bytes]:
        return self._call("objects", bucket)

    def generation(self, name: str) -> int:
        return self._call("generation", self.name, name)

    def put(self, name: str, content: bytes, bucket: str | None = None) -> None:
        """Write an object regardless of faults."""
        self._call("put", bucket or self.name, name, content)

    def delete(self, name: str, bucket: str | None = None) -> None:
        self._call("delete", bucket or self.name, name)

    def count(self, match: str = "", **fields: Any) -> int:
        return self.log.count(match, **fields)

    @contextlib.contextmanager
    def counting(self) -> Iterator[Log]:
        """Yield a log of the requests that are answered inside the block."""
        first = self.num_requests
        log = Log(lambda: self._call("requests", first, None))
        try:
            yield log
        finally:
            log.freeze()

    def environment(self, retry_ms: float | None = 0, **more: str) -> dict[str, str]:
        """Return the variables that a client process needs, and `more`; it must have none of UNSET.

        TensorFlow reads GCS_* once, when it is loaded, and adds a random delay of up to a second
        before each retry unless the delay is 0. It reads the other variables at each request. With
        `retry_ms=None` it uses its own delays.
        """
        delays = ("GCS_RETRY_CONFIG_INIT_DELAY_TIME_US", "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US")
        proxy = f"http://127.0.0.1:{self.port}"
        return {
            "https_proxy": proxy,
            "no_proxy": "127.0.0.1,localhost",  # jax.distributed connects to itself via gRPC
            "CURL_CA_BUNDLE": str(self._authority),
            "TENSORSTORE_CA_BUNDLE": str(self._authority),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "loopback",
            **({} if retry_ms is None else dict.fromkeys(delays, str(int(retry_ms * 1000)))),
            **more,
        }

    def child_environment(self, retry_ms: float | None = 0, **more: str) -> dict[str, str]:
        """Return the complete environment for a client process."""
        kept = {name: value for name, value in os.environ.items() if name not in UNSET}
        return kept | self.environment(retry_ms, **more)


@functools.cache
def shared() -> Bucket:
    """Start the server that all tests share whose libraries run inside this process."""
    bucket = Bucket().__enter__()
    atexit.register(bucket.__exit__)
    return bucket


@contextlib.contextmanager
def in_process(monkeypatch: Any) -> Iterator[Bucket]:
    """Yield `shared()` with one empty bucket, for TensorFlow and tensorstore in this process.

    The bucket has a fresh name because both libraries cache objects. conftest.py sets
    GCS_RETRY_CONFIG_INIT_DELAY_TIME_US=0, which only has an effect before TensorFlow is loaded.
    """
    bucket = shared()
    bucket.reset([f"bucket-{next(_numbers)}"])
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    for name, value in bucket.environment().items():
        monkeypatch.setenv(name, value)
    yield bucket
    bucket.faults = ()
    assert not bucket.unknown, "requests that the server does not know"


_numbers = itertools.count()
