"""TensorFlow, tensorstore and the developers' command against the storage server (bucket.py)."""

import subprocess
import sys
from pathlib import Path
from typing import Any

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
    Slow,
    Status,
)
from bucket_log import operation
from etils import epath

ROOT = Path(__file__).resolve().parents[2]


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
    assert puts == [4 * PIECE, 0, PIECE]  # everything, a status query, the rest


def test_a_write_by_tensorflow_that_is_refused_ends(bucket):
    """TensorFlow retries in the destructor, where it holds the interpreter lock."""
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


@pytest.mark.ci
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
