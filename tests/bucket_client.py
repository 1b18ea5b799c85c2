"""A client that sends requests to the storage server (bucket.py) as bytes."""

import http.client
import json
from typing import Any
from urllib.parse import quote

import pytest
from bucket import Bucket


class Client:
    """One persistent connection without TLS."""

    def __init__(self, bucket: Bucket):
        self.bucket = bucket
        self.connection = http.client.HTTPConnection("127.0.0.1", bucket.port, timeout=20)
        self.objects = f"/storage/v1/b/{bucket.name}/o"
        self.upload = f"/upload{self.objects}"

    def __call__(
        self, method: str, path: str, content: Any = None, **headers: str
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, content, names)
        answer = self.connection.getresponse()
        return answer.status, answer.read(), answer.headers

    def json(self, method: str, path: str, content: Any = None) -> Any:
        status, body, _ = self(method, path, content)
        assert status == 200, body
        return json.loads(body)

    def put(self, name: str, content: Any, query: str = "") -> int:
        path = f"{self.upload}?uploadType=media&name={quote(name, safe='')}{query}"
        return self("POST", path, content)[0]

    def list(self, query: str) -> Any:
        return self.json("GET", f"{self.objects}?{query}")


@pytest.fixture
def client(bucket):
    client = Client(bucket)
    yield client
    client.connection.close()
