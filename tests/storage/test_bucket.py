"""The storage server (bucket.py): the API as bytes, then TensorFlow and tensorstore against it."""

import http.client
import json
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from bucket import Bucket
from bucket_faults import (
    PIECE,
    Cut,
    CutDownload,
    CutUpload,
    Denied,
    Fault,
    LostAnswer,
    OneWriteASecond,
    Slow,
    Status,
    parse,
)
from bucket_log import operation, operations, table
from etils import epath

ROOT = Path(__file__).resolve().parents[2]


class Client:
    """One connection that is kept, without TLS."""

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


def fails(client: Client, method: str, path: str, content: Any = None) -> bool:
    """Whether the connection ends without a whole answer."""
    try:
        client(method, path, content)
    except (http.client.HTTPException, OSError):
        client.connection.close()
        return True
    return False


def test_it_leads_nowhere_but_to_itself(bucket, client):
    for target in ("example.com:443", "www.googleapis.com.example.com:443"):
        assert client("CONNECT", target)[0] == 403
    assert client("GET", "http://example.com/")[0] == 403
    assert client("GET", "/", Host="example.com")[0] == 403
    assert [request.status for request in bucket.log.requests] == [403] * 4


def test_google_s_names_are_served_with_a_certificate_that_the_authority_signed(bucket):
    bucket.put("a", b"content")
    authority = bucket.environment()["CURL_CA_BUNDLE"]
    hosts = ["www.googleapis.com", "storage.googleapis.com", "metadata.google.internal"]
    for host in hosts:
        context = ssl.create_default_context(cafile=authority)
        connection = http.client.HTTPSConnection("127.0.0.1", bucket.port, context=context)
        connection.set_tunnel(host)
        connection.request("GET", f"/{bucket.name}/a")
        assert connection.getresponse().read() == b"content"
        connection.close()
    assert [request.host for request in bucket.log.requests] == hosts


def test_an_object_and_its_preconditions(bucket, client):
    name = "runs/a b/%é.json"
    assert client.put(name, b"one", "&ifGenerationMatch=0") == 200
    assert client.put(name, b"two", "&ifGenerationMatch=0") == 412
    assert bucket.objects == {name: b"one"}
    path = f"{client.objects}/{quote(name, safe='')}"
    first = client.json("GET", path)
    assert (first["name"], first["size"], first["metageneration"]) == (name, "3", "1")
    assert first["generation"] == str(bucket.generation(name))
    assert first["updated"].endswith("Z") and "." in first["updated"]
    assert client.put(name, b"three", f"&ifGenerationMatch={first['generation']}") == 200
    assert client.put(name, b"four", f"&ifGenerationMatch={first['generation']}") == 412
    assert client.put(name, b"five", "&ifMetagenerationMatch=2") == 412
    assert client.put("new", b"six", "&ifGenerationNotMatch=0") == 412
    assert bucket.objects == {name: b"three"} and bucket.generation(name) > int(first["generation"])
    media = f"{path}?alt=media&ifGeneration"
    status, body, headers = client("GET", f"{media}Match={bucket.generation(name)}")
    assert (status, body) == (200, b"three")
    assert headers["x-goog-generation"] == str(bucket.generation(name))
    assert client("GET", f"{media}Match={first['generation']}")[0] == 412
    assert client("GET", f"{media}NotMatch={bucket.generation(name)}")[:2] == (304, b"")
    assert client("GET", f"{media}NotMatch={first['generation']}")[1] == b"three"  # not garbage
    assert client("DELETE", f"{path}?ifGenerationMatch={first['generation']}")[0] == 412
    assert client("DELETE", path)[:2] == (204, b"") and bucket.objects == {}
    assert client("DELETE", path)[0] == client("GET", path)[0] == 404
    assert client("GET", "/storage/v1/b/another")[0] == client("GET", "/another/a")[0] == 404


def test_answers_without_content_end_with_their_headers(bucket):
    """Else the next answer on the connection is garbage; http.client would hide it."""
    bucket.put("a", b"x")
    path = f"/storage/v1/b/{bucket.name}/o/a"
    media = f"GET {path}?alt=media&ifGenerationNotMatch={bucket.generation('a')} HTTP/1.1"
    with socket.create_connection(("127.0.0.1", bucket.port)) as connection:
        for line, status in ((media, b" 304 "), (f"DELETE {path} HTTP/1.1", b" 204 ")):
            connection.sendall(f"{line}\r\nHost: localhost\r\n\r\n".encode())
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += connection.recv(10_000)
            time.sleep(0.05)
            with pytest.raises(BlockingIOError):
                connection.recv(1, socket.MSG_DONTWAIT)
            assert status in answer and answer.endswith(b"\r\n\r\n")
            assert b"Content-Length" not in answer


@pytest.mark.parametrize(
    "wanted, status, content, where",
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-4", 206, b"6789", "bytes 6-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-12", 416, None, "bytes */10"),
    ],
)
def test_ranges(bucket, client, wanted, status, content, where):
    bucket.put("a", b"0123456789")
    for path in (f"{client.objects}/a?alt=media", f"/{bucket.name}/a"):
        answer = client("GET", path, Range=wanted)
        assert (answer[0], answer[2]["Content-Range"]) == (status, where)
        assert content in (None, answer[1])
    bucket.put("a", b"")
    assert client("GET", path, Range=wanted)[0] == 416


def test_a_listing_in_pages_counts_its_prefixes(bucket, client):
    for name in ("a", "b/", "b/1", "b/2/3", "b/c", "d/1", "e", "é"):
        bucket.put(name, b"")
    found, token, pages = [], "", 0
    while True:
        page = client.list(f"delimiter=/&maxResults=2&pageToken={token}")
        found += [item["name"] for item in page.get("items", [])] + page.get("prefixes", [])
        pages += 1
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert (found, pages) == (["a", "b/", "e", "d/", "é"], 3)
    assert client.list("delimiter=/")["prefixes"] == ["b/", "d/"]
    below = client.list("delimiter=/&prefix=b/")
    assert [item["name"] for item in below["items"]] == ["b/", "b/1", "b/c"]
    assert below["prefixes"] == ["b/2/"]
    between = client.list("startOffset=b/1&endOffset=d/1")
    assert [item["name"] for item in between["items"]] == ["b/1", "b/2/3", "b/c"]
    assert "items" not in client.list("prefix=nothing")
    assert client("GET", "/storage/v1/b/another/o")[0] == 404
    with Bucket(["small"], page_size=3) as small:
        for name in "abcde":
            small.put(name, b"")
        few = Client(small)
        page = few.list("maxResults=1000")
        few.connection.close()
    assert len(page["items"]) == 3 and page["nextPageToken"]


def test_a_resumable_upload(bucket, client):
    start = f"{client.upload}?uploadType=resumable&name=a"
    status, _, headers = client("POST", start)
    where = headers["Location"]
    assert status == 200 and where.startswith(f"http://127.0.0.1:{bucket.port}/upload/")
    assert client("PUT", where, Content_Range="bytes */6")[::2][0] == 308
    assert "Range" not in client("PUT", where, Content_Range="bytes */6")[2]
    answer = client("PUT", where, b"abc", Content_Range="bytes 0-2/6")
    assert (answer[0], answer[2]["Range"]) == (308, "bytes=0-2")
    assert client("PUT", where, b"f", Content_Range="bytes 5-5/6")[0] == 400  # a gap
    assert bucket.objects == {}
    assert client("PUT", where, iter([b"d", b"ef"]), Content_Range="bytes 3-5/6")[0] == 200
    assert bucket.objects == {"a": b"abcdef"}  # its end came in chunks
    assert json.loads(client("PUT", where, Content_Range="bytes */6")[1])["size"] == "6"
    assert client("POST", f"{start}&ifGenerationMatch=0")[0] == 412


def test_compose_and_rewrite(bucket, client):
    bucket.put("a", b"1")
    bucket.put("b", b"2")
    sources = "{'name': 'b', 'objectPreconditions': {'ifGenerationMatch': {}}}"
    body = f"{{'sourceObjects': [{{'name': 'a'}}, {sources}]}}"  # as TensorFlow writes it
    good = body.replace("{}", str(bucket.generation("b"))).encode()
    assert client("POST", f"{client.objects}/a/compose", good)[0] == 200
    assert client("POST", f"{client.objects}/a/compose", body.replace("{}", "1").encode())[0] == 412
    assert client("POST", f"{client.objects}/a/compose?ifGenerationMatch=0", good)[0] == 412
    assert bucket.objects == {"a": b"12", "b": b"2"}
    to = f"{client.objects}/a/rewriteTo/b/{bucket.name}/o/c%2Fd"
    assert client.json("POST", to)["done"] is True
    assert client("POST", f"{to}?ifSourceGenerationMatch=1")[0] == 412
    assert bucket.objects == {"a": b"12", "b": b"2", "c/d": b"12"}


def test_the_rest_of_what_the_libraries_ask(bucket, client):
    layout = client.json("GET", f"/storage/v1/b/{bucket.name}/storageLayout")
    assert layout["hierarchicalNamespace"] == {"enabled": False}
    account = "/computeMetadata/v1/instance/service-accounts/default/"
    status, body, headers = client("GET", f"{account}token")
    assert headers["Metadata-Flavor"] == "Google" and "access_token" in json.loads(body)
    assert client("GET", f"{account}email")[1] == b"loopback@example.com"
    assert bucket.unknown == []
    assert client("POST", "/storage/v1/b")[0] == 400
    assert bucket.unknown == ["POST /storage/v1/b"]
    bucket.reset([bucket.name])


@pytest.mark.parametrize(
    "rule, fault",
    [
        ("status=503,chance=0.05", Status(503, chance=0.05)),
        ("status=403,times=3,match=^POST.*a,b", Status(403, times=3, match="^POST.*a,b")),
        ("slow=0.5,after=2", Slow(0.5, after=2)),
        ("cut,chance=0.02", Cut(chance=0.02)),
        ("lost_answer", LostAnswer()),
        ("cut_download=10", CutDownload(10)),
        ("cut_upload", CutUpload()),
        ("one_write_a_second,match=manifest", OneWriteASecond(match="manifest")),
        ("denied=runs/,to=writes", Denied("runs/", "writes")),
    ],
)
def test_rules(rule, fault):
    assert parse(rule) == fault


@pytest.mark.parametrize(
    "rule, told",
    [
        ("", "the kind must be one of status, slow"),
        ("nonsense=1", "'nonsense=1': the kind must be one of"),
        ("status=many", "'many'"),
        ("cut=1", "'cut=1' does not take"),
        ("cut,often=1", "does not take 'often=1'"),
        ("cut,times", "does not take 'times'"),
        ("one_write_a_second,times=1", "does not take 'times=1'"),
        ("denied=x,to=all", "to=all is not reads, writes or both"),
        ("cut,match=(", "unterminated subpattern"),
    ],
)
def test_bad_rules_are_one_line(rule, told):
    with pytest.raises(ValueError) as failure:
        parse(rule)
    assert told in str(failure.value) and "\n" not in str(failure.value)


def test_which_requests_a_fault_applies_to(bucket, client):
    def statuses(number: int) -> list[int]:
        return [client("GET", f"/{bucket.name}/a")[0] for _ in range(number)]

    bucket.put("a", b"x")
    bucket.faults = [Status(503, times=2, after=1, match="/a$"), Status(429, times=4, after=1)]
    assert statuses(6) == [200, 503, 503, 429, 429, 429]
    bucket.faults = bucket.faults
    bucket.add_fault(Status(500))
    assert statuses(2) == [500, 503]  # all counts have started again
    bucket.faults = [Status(503, match="^DELETE")]
    assert statuses(2) == [200, 200]
    bucket.faults = [Status(503, chance=0.3)]
    assert 20 < sum(status == 503 for status in statuses(100)) < 40


def test_faults_that_cut(bucket, client):
    bucket.put("a", b"0123456789")
    get, path = f"/{bucket.name}/a", f"{client.upload}?uploadType=media&name=b"
    bucket.faults = [Cut(times=1)]
    assert fails(client, "POST", path, b"x") and "b" not in bucket.objects
    bucket.faults = [LostAnswer(times=1)]
    assert fails(client, "POST", path, b"x") and bucket.objects["b"] == b"x"
    bucket.faults = [CutDownload(4, times=1)]
    client.connection.request("GET", get)
    with pytest.raises(http.client.IncompleteRead) as cut:
        client.connection.getresponse().read()
    assert cut.value.partial == b"0123"
    client.connection.close()
    assert client("GET", get)[1] == b"0123456789"
    where = client("POST", f"{client.upload}?uploadType=resumable&name=c")[2]["Location"]
    bucket.faults = [CutUpload(PIECE + 5, times=1)]
    assert fails(client, "PUT", where, bytes(3 * PIECE))
    answer = client("PUT", where, Content_Range=f"bytes */{3 * PIECE}")
    assert (answer[0], answer[2]["Range"]) == (308, f"bytes=0-{PIECE - 1}")
    faults = [request.fault for request in bucket.log.requests if request.fault]
    assert faults == ["cut", "lost_answer", "cut_download", "cut_upload"]


def test_a_held_request_is_done_only_if_its_client_stays(bucket, client):
    path = f"{client.upload}?uploadType=media&name=a"
    bucket.faults = [Slow(0.2, times=1), Status(429, times=1, after=1)]
    start = time.monotonic()
    assert client("POST", path, b"patient")[0] == 200 and time.monotonic() - start > 0.2
    assert client("POST", path, b"refused")[0] == 429
    bucket.faults = [Slow(20)]
    client.connection.request("POST", path, b"gone")
    wait_for(lambda: bucket.held)
    client.connection.close()
    wait_for(lambda: not bucket.held)
    assert bucket.objects == {"a": b"patient"}
    assert bucket.log.requests[-1].fault == "slow, and the client has gone"


def wait_for(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_write_a_second(bucket, client):
    bucket.faults = [OneWriteASecond()]
    assert [client.put(name, b"x") for name in ("a", "b", "a")] == [200, 200, 429]
    assert client("DELETE", f"{client.objects}/b")[0] == 204
    time.sleep(1.01)
    assert client.put("a", b"y") == 200 and bucket.objects == {"a": b"y"}


@pytest.mark.parametrize("to", ["reads", "writes", "both"])
def test_denied(bucket, client, to):
    for name in ("open", "shut/a"):
        bucket.put(name, b"x")
    bucket.faults = [Denied("shut/", to)]
    reads, writes = (403 if to in (kind, "both") else 200 for kind in ("reads", "writes"))
    a = f"{client.objects}/shut%2Fa"
    assert [client("GET", path)[0] for path in (a, f"{a}?alt=media", f"/{bucket.name}/shut/a")] == [
        reads,
        reads,
        reads,
    ]
    for query in ("prefix=shut/", "startOffset=shut/&endOffset=shut0"):
        assert client("GET", f"{client.objects}?{query}")[0] == reads
    copy = f"/rewriteTo/b/{bucket.name}/o/"
    assert client("POST", f"{a}{copy}open")[0] == reads
    assert client("POST", f"{client.objects}/open{copy}shut%2Fb")[0] == writes
    assert client.put("shut/b", b"y") == writes
    assert client("DELETE", a)[0] == (writes if writes == 403 else 204)
    assert client.put("open", b"y") == 200 and client("GET", f"/{bucket.name}/open")[0] == 200


def test_the_log_and_its_table(bucket, client):
    client.put("a", b"12345")
    with bucket.counting() as counted:
        client("GET", f"/{bucket.name}/a", User_Agent="tensorstore/0.1")
        client("GET", f"{client.objects}/a?alt=media")
        client("GET", f"{client.objects}/none")
        assert counted.count() == 3  # noted before the answer
    client("DELETE", f"{client.objects}/a")
    expected = {"download": {"other": 1, "tensorstore": 1}, "stat": {"other": 1}}
    assert counted.operations() == expected == operations(counted.requests)
    assert counted.count("alt=media") == counted.count(status=404) == 1
    assert counted.count(operation="download", client="tensorstore") == 1
    assert [request.sent for request in counted.requests[:2]] == [5, 5]
    assert bucket.log.requests[0].received == 5 and bucket.count("^DELETE") == 1
    shown = table(bucket.log.requests).splitlines()
    assert shown[0].split()[:4] == ["operation", "other", "tensorstore", "total"]
    assert shown[-1].split() == ["total", "4", "1", "5", "0.0", "0.0", "1", "0"]


@pytest.mark.parametrize(
    "line, expected",
    [
        ("GET /storage/v1/b/x", "bucket"),
        ("GET /storage/v1/b/x/storageLayout", "bucket"),
        ("GET /storage/v1/b/x/o?prefix=a/b", "list"),
        ("GET /storage/v1/b/x/o/a/b?fields=size", "stat"),
        ("GET /storage/v1/b/x/o/a/b?alt=media", "download"),
        ("GET /x/a/b", "download"),
        ("POST /upload/storage/v1/b/x/o?uploadType=media&name=a", "upload"),
        ("POST /storage/v1/b/x/o/a/compose", "compose"),
        ("POST /storage/v1/b/x/o/a/rewriteTo/b/x/o/b", "rewrite"),
        ("DELETE /storage/v1/b/x/o/a", "delete"),
        ("GET /computeMetadata/v1/instance/service-accounts/default/token", "other"),
        ("CONNECT example.com:443", "other"),
    ],
)
def test_operations(line, expected):
    assert operation(line) == expected


def test_files_and_folders_by_tensorflow(bucket):
    root = epath.Path(bucket.url("runs/x"))
    root.mkdir(parents=True)
    names = [f"{number:04}.txt" for number in range(5)]
    for name in names:
        (root / name).write_text(name)
    (root / "empty").write_text("")
    with (root / names[0]).open("a") as file:
        file.write(" and more")
    assert bucket.objects["runs/x/0000.txt"] == b"0000.txt and more"
    assert sorted(path.name for path in root.iterdir()) == [*names, "empty"]
    assert (root / "empty").read_text() == "" and (root / names[3]).read_text() == names[3]
    assert (root / names[1]).stat().length == 8
    root.rename(bucket.url("runs/y"))
    assert bucket.objects["runs/y/0004.txt"] == b"0004.txt" and "runs/x/0004.txt" not in (
        bucket.objects
    )
    epath.Path(bucket.url("runs/y")).rmtree()
    assert bucket.objects == {"runs/": b""}
    assert {request.client for request in bucket.log.requests} == {"TensorFlow"}


def test_a_long_listing_by_tensorflow_comes_in_pages(bucket):
    for number in range(1500):
        bucket.put(f"many/{number}", b"")
    assert len(list(epath.Path(bucket.url("many")).iterdir())) == 1500
    assert bucket.count("prefix=many/", operation="list") == 3  # the folder, and two pages


CONTENT = bytes(range(256)) * 4096  # 1 MiB


@pytest.mark.parametrize(
    "fault",
    [
        Status(503, times=2),
        Status(429, times=2, after=1),
        Cut(times=2),
        Cut(times=1, after=1),
        LostAnswer(times=1, after=1),
        CutUpload(times=1),
        CutUpload(2 * PIECE, times=2),
        CutDownload(times=1),
        Slow(0.01),
    ],
    ids=str,
)
def test_what_tensorflow_writes_and_reads_survives(bucket, fault: Fault):
    path = epath.Path(bucket.url("a"))
    bucket.faults = [fault]
    path.write_bytes(CONTENT)
    assert bucket.objects == {"a": CONTENT}
    assert path.read_bytes() == CONTENT
    assert any(request.fault for request in bucket.log.requests)


def test_a_cut_upload_by_tensorflow_goes_on_where_it_was_cut(bucket):
    bucket.faults = [CutUpload(3 * PIECE, times=1)]
    epath.Path(bucket.url("a")).write_bytes(CONTENT)
    puts = [request.received for request in bucket.log.find("^PUT")]
    assert puts == [4 * PIECE, 0, PIECE]  # all of it, the question, the rest


def test_a_write_by_tensorflow_that_is_refused_ends(bucket):
    """It tries again in the destructor, where it holds the interpreter lock."""
    bucket.faults = [Denied(to="writes")]
    with pytest.raises(Exception, match="storage.objects.create"):
        epath.Path(bucket.url("a")).write_text("x")


def kvstore(bucket: Bucket) -> Any:
    import tensorstore

    quick = {"max_retries": 5, "initial_delay": "1ms", "max_delay": "1ms"}
    spec = {"driver": "gcs", "bucket": bucket.name, "path": "k/"}
    return tensorstore.KvStore.open({**spec, "context": {"gcs_request_retries": quick}}).result()


def test_objects_by_tensorstore(bucket):
    store = kvstore(bucket)
    absent = store.read("a").result().stamp.generation
    first = store.write("a", b"0123456789", if_equal=absent).result().generation
    assert store.write("a", b"late", if_equal=absent).result().generation == b""  # refused
    assert bucket.objects == {"k/a": b"0123456789"}
    assert store.read("a", if_not_equal=first).result().state == "unspecified"
    second = store.write("a", b"x", if_equal=first).result().generation
    assert second not in (b"", first) and bucket.objects == {"k/a": b"x"}
    assert store.write("a", None, if_equal=first).result().generation == b""
    assert store.list().result() == [b"a"]
    store.write("a", None, if_equal=second).result()
    assert bucket.objects == {}
    assert {request.client for request in bucket.log.requests} == {"tensorstore"}


@pytest.mark.parametrize(
    "fault",
    [
        Status(503, times=2),
        Cut(times=2),
        LostAnswer(times=1),
        CutUpload(times=1),
        CutDownload(times=1),
    ],
    ids=str,
)
def test_what_tensorstore_writes_and_reads_survives(bucket, fault: Fault):
    store = kvstore(bucket)
    bucket.faults = [fault]
    store.write("a", CONTENT).result()
    assert store.read("a").result().value == CONTENT and bucket.objects == {"k/a": CONTENT}
    assert any(request.fault for request in bucket.log.requests)


def test_arrays_by_tensorstore_read_ranges(bucket):
    import tensorstore

    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "gcs", "bucket": bucket.name, "path": "array/"},
        "metadata": {
            "shape": [64],
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [64]}},
            "codecs": [
                {
                    "name": "sharding_indexed",
                    "configuration": {
                        "chunk_shape": [8],
                        "codecs": [{"name": "bytes"}],
                        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                    },
                }
            ],
        },
    }
    array = tensorstore.open(spec, create=True).result()
    array[:] = range(64)
    with bucket.counting() as counted:
        assert array[16:24].read().result().tolist() == list(range(16, 24))
    assert counted.count(operation="download") == counted.count(status=206) > 0


APPENDS = """
import sys
import tensorflow as tf
with tf.io.gfile.GFile(sys.argv[1], "a") as file:
    for _ in range(3):
        file.write("line\\n")
        file.flush()
"""


def test_a_client_process_that_appends_by_composition(bucket):
    done = subprocess.run(
        [sys.executable, "-c", APPENDS, bucket.url("a")],
        env=bucket.child_environment(GCS_APPEND_MODE="compose"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert bucket.objects == {"a": b"line\n" * 3}
    assert bucket.count(operation="compose", status=200) == 2


PROGRAM = """
import http.client, os, sys
client = http.client.HTTPConnection("127.0.0.1", int(os.environ["https_proxy"].split(":")[2]))
def ask(*request):
    client.request(*request)
    answer = client.getresponse()
    return answer.status, answer.read()
content = ask("GET", "/bucket/a/../b%2F")[1]
for name in ("a/../b/", "a", "refused"):
    ask("POST", f"/upload/storage/v1/b/bucket/o?uploadType=media&name={name}", b"kept")
sys.exit(3 if content == b"kept" else 4)
"""


def test_the_command_for_developers(tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "scripts/bucket.py"), *arguments]
        command += [sys.executable, "-S", "-c", PROGRAM]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    keep = f"--keep={tmp_path / 'kept'}"
    first = run("--fault=status=403,match=name=refused", keep)
    assert first.returncode == 4, first.stderr
    assert first.stdout.split()[-7:] == ["total", "4", "4", "0.0", "0.0", "2", "1"]
    kept = {path.name for path in (tmp_path / "kept").rglob("*") if path.is_file()}
    assert kept == {"%", "a%"}
    assert run(keep).returncode == 3 and run().returncode == 4
    refused = run("--fault=cut,often=1")
    assert refused.returncode == 2 and "does not take 'often=1'" in refused.stderr
