"""Faults of the storage server (bucket.py): which requests they affect, and what a client sees."""

import http.client
import time
from typing import Any

import pytest
from bucket_client import Client, client
from bucket_faults import (
    PIECE,
    Cut,
    CutDownload,
    CutUpload,
    Denied,
    LostAnswer,
    OneWriteASecond,
    Slow,
    Status,
    parse,
)
from bucket_log import operations, table

__all__ = ["client"]  # fixtures


def fails(client: Client, method: str, path: str, content: Any = None) -> bool:
    """Return whether the connection ends without a complete answer."""
    try:
        client(method, path, content)
    except (http.client.HTTPException, OSError):
        client.connection.close()
        return True
    return False


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
    assert statuses(2) == [500, 503]  # all counts have restarted
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
        assert counted.count() == 3  # logged before the answer
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
