"""The storage server (bucket.py): its API, byte for byte."""

import http.client
import json
import socket
import ssl
import time
from urllib.parse import quote

import pytest
from bucket import Bucket
from bucket_client import Client, client

__all__ = ["client"]  # fixtures


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
    assert client("GET", f"{media}NotMatch={first['generation']}")[1] == b"three"  # no garbage
    assert client("DELETE", f"{path}?ifGenerationMatch={first['generation']}")[0] == 412
    assert client("DELETE", path)[:2] == (204, b"") and bucket.objects == {}
    assert client("DELETE", path)[0] == client("GET", path)[0] == 404
    assert client("GET", "/storage/v1/b/another")[0] == client("GET", "/another/a")[0] == 404


def test_answers_without_content_end_with_their_headers(bucket):
    """Otherwise the next answer on the connection is garbage, which http.client would hide."""
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
    assert client("PUT", where, b"f", Content_Range="bytes 5-5/6")[0] == 400  # leaves a gap
    assert bucket.objects == {}
    assert client("PUT", where, iter([b"d", b"ef"]), Content_Range="bytes 3-5/6")[0] == 200
    assert bucket.objects == {"a": b"abcdef"}  # the last part came in chunks
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
