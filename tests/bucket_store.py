"""The objects of the storage server (bucket.py), and the Google Cloud Storage API on them.

Only the requests that TensorFlow's gfile, tensorstore and Orbax send are supported. Any other is
answered with 400 and recorded in `Store.unknown`, so that a test can tell it from a missing object.
"""

import ast
import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from typing import Any
from urllib.parse import quote

from bucket_faults import Denied, Fault, OneWriteASecond


@dataclass(frozen=True)
class Asked:
    """A request that has been read completely. `path` and `query` are percent-decoded."""

    method: str
    scheme: str
    host: str
    path: str
    query: Mapping[str, str]
    headers: Message
    content: bytes
    route: Sequence[str] = ()  # the segments of the path, each decoded separately

    @property
    def line(self) -> str:
        query = "&".join(f"{name}={value}" for name, value in self.query.items())
        return f"{self.method} {self.path}" + (f"?{query}" if query else "")


@dataclass(frozen=True)
class Answer:
    status: int = 200
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""


class Refused(Exception):
    def __init__(self, status: int, message: str, fault: str = ""):
        super().__init__(message)
        self.answer = error(status, message, fault)


def error(status: int, message: str, fault: str = "") -> Answer:
    """Return an error in the service's JSON form; a 304 has no content."""
    detail = {"message": message, "domain": "global", "reason": "loopback"}
    content = {"error": {"code": status, "message": message, "errors": [detail]}}
    return Answer(status, b"" if status == 304 else _json(content), JSON, fault)


JSON = {"Content-Type": "application/json; charset=UTF-8"}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


@dataclass(frozen=True)
class Stored:
    """One object; its hash is computed when it is written."""

    bucket: str
    name: str
    content: bytes
    generation: int
    updated: float
    content_type: str
    md5: str

    def resource(self) -> dict[str, Any]:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self.updated))
        when += f".{int(self.updated % 1 * 1000):03}Z"
        return {
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "name": self.name,
            "bucket": self.bucket,
            "generation": str(self.generation),
            "metageneration": "1",
            "contentType": self.content_type,
            "storageClass": "STANDARD",
            "size": str(len(self.content)),
            "md5Hash": self.md5,
            "etag": str(self.generation),
            "timeCreated": when,
            "updated": when,
        }

    def headers(self) -> dict[str, str]:
        return {
            "Content-Type": self.content_type,
            "Accept-Ranges": "bytes",
            "ETag": f'"{self.generation}"',
            "x-goog-generation": str(self.generation),
            "x-goog-metageneration": "1",
            "x-goog-stored-content-length": str(len(self.content)),
            "x-goog-hash": f"md5={self.md5}",
        }


@dataclass
class Upload:
    """A resumable upload: the content received so far, and the answer once it is complete."""

    bucket: str
    name: str
    query: Mapping[str, str]
    content_type: str
    content: bytearray = field(default_factory=bytearray)
    answer: Answer | None = None


def preconditions_met(query: Mapping[str, str], now: Stored | None, prefix: str = "if") -> str:
    """Return the first precondition in `query` that is not met, or "" if all are met."""
    generation = 0 if now is None else now.generation
    metageneration = 0 if now is None else 1
    for what, value in (("Generation", generation), ("Metageneration", metageneration)):
        for name, wanted in ((f"{prefix}{what}Match", True), (f"{prefix}{what}NotMatch", False)):
            if name in query and (int(query[name]) == value) != wanted:
                return name
    return ""


class Store:
    """The buckets and their objects. Thread-safe: handles one request at a time."""

    def __init__(self, page_size: int = 1000):
        self.page_size = page_size  # the most items and prefixes on a page of a listing
        self.unknown: list[str] = []
        self.lock = threading.RLock()
        self.buckets: dict[str, dict[str, Stored]] = {}
        self._uploads: dict[str, Upload] = {}
        self._written: dict[tuple[str, str], float] = {}
        self._generation = 0
        self._limits: Sequence[Fault] = ()

    def answer(self, asked: Asked, limits: Sequence[Fault] = ()) -> Answer:
        with self.lock:
            self._limits = limits
            try:
                return self._route(asked)
            except Refused as refused:
                return refused.answer

    def put(
        self, bucket: str, name: str, content: bytes, content_type: str = "application/octet-stream"
    ) -> Stored:
        """Write an object regardless of faults."""
        with self.lock:
            now = time.time()
            self._generation = max(self._generation + 1, int(now * 1e6))
            md5 = base64.b64encode(hashlib.md5(content).digest()).decode()
            made = Stored(bucket, name, content, self._generation, now, content_type, md5)
            self.buckets[bucket][name] = made
            self._written[bucket, name] = time.monotonic()
            return made

    def keep_part(self, asked: Asked, size: int) -> None:
        """Keep the first `size` bytes of an interrupted upload if it is resumable."""
        with self.lock:
            upload = self._uploads.get(asked.query.get("upload_id", ""))
            if upload is not None and upload.answer is None:
                first = re.match(r"bytes (\d+)-", asked.headers.get("Content-Range", "bytes 0-"))
                if first is not None and int(first[1]) == len(upload.content):
                    upload.content += asked.content[:size]

    def _route(self, asked: Asked) -> Answer:
        match asked.method, *asked.route:
            case "GET", "storage", "v1", "b", bucket:
                self._objects("reads", bucket, "")
                return _resource({"kind": "storage#bucket", "name": bucket, "id": bucket})
            case "GET", "storage", "v1", "b", bucket, "storageLayout":
                self._objects("reads", bucket, "")
                layout = {"hierarchicalNamespace": {"enabled": False}, "bucket": bucket}
                return _resource({**layout, "locationType": "region", "location": "LOOPBACK"})
            case "GET", "storage", "v1", "b", bucket, "o":
                return self._list(bucket, asked.query)
            case "GET", "storage", "v1", "b", bucket, "o", name:
                return self._get(bucket, name, asked, asked.query.get("alt") == "media")
            case "DELETE", "storage", "v1", "b", bucket, "o", name:
                return self._delete(bucket, name, asked.query)
            case "POST", "storage", "v1", "b", bucket, "o", name, "compose":
                return self._compose(bucket, name, asked)
            case "POST", "storage", "v1", "b", b1, "o", name1, "rewriteTo", "b", b2, "o", name2:
                return self._rewrite((b1, name1), (b2, name2), asked.query)
            case (("POST" | "PUT"), "upload", "storage", "v1", "b", bucket, "o"):
                return self._upload(bucket, asked)
            case "GET", "computeMetadata", "v1", *rest:
                return _metadata("/".join(rest))
            case (("GET" | "HEAD"), bucket, *names) if names and bucket != "storage":
                return self._get(bucket, "/".join(names), asked, True)
        self.unknown.append(asked.line)
        raise Refused(400, f"the storage server of the tests does not know {asked.line}")

    def _objects(self, access: str, bucket: str, name: str) -> dict[str, Stored]:
        if bucket not in self.buckets:
            raise Refused(404, "The specified bucket does not exist.")
        self._permit(access, name)
        return self.buckets[bucket]

    def _permit(self, access: str, name: str) -> None:
        for fault in self._limits:
            if isinstance(fault, Denied) and fault.denies(access, name):
                permission = "storage.objects." + ("get" if access == "reads" else "create")
                message = f"loopback does not have {permission} access to {name or 'the bucket'}."
                raise Refused(403, message, "denied")

    def _found(self, bucket: str, name: str) -> Stored:
        objects = self._objects("reads", bucket, name)
        if name not in objects:
            raise Refused(404, f"No such object: {bucket}/{name}")
        return objects[name]

    def _list(self, bucket: str, query: Mapping[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        objects = self._objects("reads", bucket, prefix or query.get("startOffset", ""))
        after = base64.urlsafe_b64decode(query.get("pageToken", "")).decode()
        first, end = query.get("startOffset", ""), query.get("endOffset", "")
        most = min(int(query.get("maxResults", self.page_size)), self.page_size)
        items: list[Stored] = []
        prefixes: list[str] = []
        last = ""
        for name in sorted(objects, key=str.encode):
            if not name.startswith(prefix) or name < first or (end and name >= end):
                continue
            stop = name.find(delimiter, len(prefix)) if delimiter else -1
            shown = name if stop < 0 else name[: stop + len(delimiter)]
            if shown == last or (after and shown <= after):
                continue
            if len(items) + len(prefixes) == most:
                token = base64.urlsafe_b64encode(last.encode()).decode()
                return _listing(items, prefixes, {"nextPageToken": token})
            last = shown
            if stop < 0:
                items.append(objects[name])
            else:
                prefixes.append(shown)
        return _listing(items, prefixes, {})

    def _get(self, bucket: str, name: str, asked: Asked, media: bool) -> Answer:
        now = self._found(bucket, name)
        if failed := preconditions_met(asked.query, now):
            status = 304 if "NotMatch" in failed else 412
            raise Refused(status, f"{failed} does not hold for {name}")
        if not media:
            return _resource(now.resource())
        size, wanted = len(now.content), asked.headers.get("Range", "")
        if not wanted:
            return Answer(200, now.content, now.headers())
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted)
        if found is None or found.groups() == ("", ""):
            return Answer(200, now.content, now.headers())  # as the HTTP standard requires
        if found[1]:
            first, last = int(found[1]), int(found[2] or size - 1)
        else:
            first, last = max(0, size - int(found[2])), size - 1
        if first >= size:
            headers = {"Content-Range": f"bytes */{size}"}
            return Answer(416, b"The requested range cannot be satisfied.", headers)
        part = now.content[first : last + 1]
        where = {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{size}"}
        return Answer(206, part, {**now.headers(), **where})

    def _delete(self, bucket: str, name: str, query: Mapping[str, str]) -> Answer:
        objects = self._objects("writes", bucket, name)
        if name not in objects:
            raise Refused(404, f"No such object: {bucket}/{name}")
        if failed := preconditions_met(query, objects[name]):
            raise Refused(412, f"{failed} does not hold for {name}")
        del objects[name]
        return Answer(204)

    def _check_write(self, bucket: str, name: str, query: Mapping[str, str]) -> None:
        objects = self._objects("writes", bucket, name)
        if failed := preconditions_met(query, objects.get(name)):
            raise Refused(412, f"{failed} does not hold for {name}")

    def _write(
        self, bucket: str, name: str, content: bytes, query: Mapping[str, str], content_type: str
    ) -> Stored:
        self._check_write(bucket, name, query)
        limited = any(isinstance(fault, OneWriteASecond) for fault in self._limits)
        if limited and time.monotonic() < self._written.get((bucket, name), -1e9) + 1:
            message = f"The object {bucket}/{name} exceeded the rate limit for object mutations."
            raise Refused(429, message, "one_write_a_second")
        return self.put(bucket, name, content, content_type)

    def _upload(self, bucket: str, asked: Asked) -> Answer:
        query = asked.query
        name, kind = query.get("name", ""), query.get("uploadType", "")
        content_type = asked.headers.get("Content-Type", "application/octet-stream")
        if asked.method == "POST" and kind == "media" and name:
            made = self._write(bucket, name, asked.content, query, content_type)
            return _resource(made.resource())
        if asked.method == "POST" and kind == "resumable" and name:
            self._check_write(bucket, name, query)
            key = f"upload-{len(self._uploads)}"
            content_type = asked.headers.get("X-Upload-Content-Type", "application/octet-stream")
            self._uploads[key] = Upload(bucket, name, dict(query), content_type)
            where = f"{asked.scheme}://{asked.host}/upload/storage/v1/b/{quote(bucket)}/o"
            where += f"?uploadType=resumable&name={quote(name, safe='')}&upload_id={key}"
            return Answer(200, headers={"Location": where})
        if asked.method == "PUT" and query.get("upload_id") in self._uploads:
            return self._resume(self._uploads[query["upload_id"]], asked)
        self.unknown.append(asked.line)
        raise Refused(400, f"the storage server of the tests does not know {asked.line}")

    def _resume(self, upload: Upload, asked: Asked) -> Answer:
        if upload.answer is not None:
            return upload.answer
        wanted = asked.headers.get("Content-Range", f"bytes 0-/{len(asked.content)}")
        found = re.fullmatch(r"bytes (?:\*|(\d+)-\d*)/(\d+|\*)", wanted)
        if found is None:
            raise Refused(400, f"Content-Range: {wanted}")
        whole = bytes(upload.content)
        if found[1] is not None:
            if int(found[1]) > len(whole):
                raise Refused(400, f"{wanted} leaves a gap after {len(whole)} bytes")
            whole = whole[: int(found[1])] + asked.content
        if found[2] == "*" or len(whole) < int(found[2]):
            upload.content[:] = whole
            kept = {"Range": f"bytes=0-{len(whole) - 1}"} if whole else {}
            return Answer(308, headers=kept)
        made = self._write(upload.bucket, upload.name, whole, upload.query, upload.content_type)
        upload.content.clear()
        upload.answer = _resource(made.resource())
        return upload.answer

    def _compose(self, bucket: str, name: str, asked: Asked) -> Answer:
        text = asked.content.decode()
        try:
            body = json.loads(text)
        except ValueError:
            body = ast.literal_eval(text)  # TensorFlow writes single quotes
        content, content_type = b"", "application/octet-stream"
        for source in body["sourceObjects"]:
            now = self._found(bucket, source["name"])
            if failed := preconditions_met(source.get("objectPreconditions", {}), now):
                raise Refused(412, f"{failed} does not hold for {now.name}")
            content, content_type = content + now.content, now.content_type
        made = self._write(bucket, name, content, asked.query, content_type)
        return _resource(made.resource())

    def _rewrite(
        self, source: tuple[str, str], target: tuple[str, str], query: Mapping[str, str]
    ) -> Answer:
        now = self._found(*source)
        if failed := preconditions_met(query, now, "ifSource"):
            raise Refused(412, f"{failed} does not hold for {now.name}")
        made = self._write(*target, now.content, query, now.content_type)
        size = str(len(now.content))
        done = {"done": True, "totalBytesRewritten": size, "objectSize": size}
        resource = made.resource()
        return _resource({"kind": "storage#rewriteResponse", **done, "resource": resource})


def _resource(value: Mapping[str, Any]) -> Answer:
    return Answer(200, _json(value), JSON)


def _listing(items: Sequence[Stored], prefixes: Sequence[str], more: Mapping[str, str]) -> Answer:
    def parts() -> Iterator[tuple[str, Any]]:
        if items:
            yield "items", [item.resource() for item in items]
        if prefixes:
            yield "prefixes", list(prefixes)

    return _resource({"kind": "storage#objects", **dict(parts()), **more})


def _metadata(path: str) -> Answer:
    """Answer as the virtual machine's metadata server, which issues access tokens."""
    account = {"aliases": ["default"], "email": "loopback@example.com", "scopes": ["all"]}
    values: dict[str, Any] = {
        "": account,
        "token": {"access_token": "loopback", "expires_in": 3600, "token_type": "Bearer"},
        "email": account["email"],
    }
    flavor = {"Metadata-Flavor": "Google"}
    asked = path.removeprefix("instance/service-accounts/default").strip("/")
    if not path.startswith("instance/service-accounts/default") or asked not in values:
        return Answer(404, b"", flavor)
    value = values[asked]
    content = value.encode() if isinstance(value, str) else _json(value)
    return Answer(200, content, {**flavor, "Content-Type": "application/json"})
