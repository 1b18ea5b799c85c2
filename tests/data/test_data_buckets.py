"""Text, vocabularies and blocks in a bucket; what a bucket refuses is reported in a line or two."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from bucket import Bucket
from bucket_faults import Denied, Status
from sample_run import write_text
from sample_vocabulary import MODEL
from test_text_corpus import json_lines, texts, zstandard
from test_text_files import parquet_file

from fire_lm.cli import main
from fire_lm.data import Blocks, Pairs, TextData, train_iterator, vocabularies
from fire_lm.data.blocks.writer import write_blocks
from fire_lm.data.corpora.text_files import read_documents
from fire_lm.data.on_the_fly.metadata import data_sets
from fire_lm.data.pairs import file_sha256, read_pairs, splits_of
from fire_lm.errors import RunFailed, UserError


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "data")


def upload(bucket: Bucket, folder: Path, to: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            bucket.put(f"{to}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def test_text_of_every_form_is_read_from_a_bucket(bucket: Bucket):
    for name, content in {
        "a.txt": b"document 0",
        "b.jsonl": json_lines(texts(2, 10)),
        "c.jsonl.gz": gzip.compress(json_lines(texts(2, 20))),
        "d.jsonl.zst": zstandard(json_lines(texts(2, 30))),
        "deeper/e.parquet": parquet_file(pyarrow.array(texts(2, 40))),
    }.items():
        bucket.put(f"text/{name}", content)
    seen = []
    found = read_documents(bucket.url("text"), on_bytes=lambda done, total: seen.append(done))
    expected = ["document 0", *texts(2, 10), *texts(2, 20), *texts(2, 30), *texts(2, 40)]
    assert sorted(text.decode() for _, text in found) == sorted(expected)
    assert seen == sorted(seen) and seen[-1] == sum(map(len, bucket.objects.values()))


@pytest.mark.ci
def test_a_data_set_is_written_from_and_to_a_bucket(bucket: Bucket, capsys):
    bucket.put("text/a.jsonl.gz", gzip.compress(json_lines(texts(40))))
    flags = [f"--from={bucket.url('text')}", "--name=mine", f"--data_dir={bucket.url('data')}"]
    assert main(["corpus", *flags]) == 0
    assert data_sets(bucket.url("data")) == ["mine:1.0.0"]
    assert main(["corpus", *flags]) == 0
    assert (
        "from the same files (same names, sizes and times): nothing to do"
        in capsys.readouterr().out
    )
    assert main(["corpus", flags[0], "--name=mine", "--data_dir=gs://mistyped/data"]) == 2
    assert "there is no bucket mistyped" in capsys.readouterr().err


def test_the_data_sets_of_a_bucket_are_found_level_by_level(bucket: Bucket, data_dir):
    upload(bucket, data_dir, "data")
    for number in range(50):
        bucket.put(f"data/c4/en/3.1.0/deeper/{number}", b"")
    with bucket.counting() as counted:
        assert data_sets(bucket.url("data")) == data_sets(str(data_dir))
    assert counted.count("prefix=data/c4/en/3.1.0/deeper") == 0


def test_blocks_of_a_bucket_give_the_batches_of_a_disk(bucket: Bucket, data_dir, tmp_path):
    def batch(folder: str) -> np.ndarray:
        return next(train_iterator(Blocks(folder), length=32, batch_size=4, seed=0))["targets"]

    for output in (bucket.url("blocks"), str(tmp_path / "blocks")):
        write_blocks(TextData(str(data_dir)), output)
    np.testing.assert_array_equal(batch(bucket.url("blocks")), batch(str(tmp_path / "blocks")))


@pytest.mark.parametrize("request_", ["/o/spm.model", "GET /bucket.*/spm.model|alt=media"])
@pytest.mark.parametrize(("status", "error"), [(503, RunFailed), (403, UserError)])
def test_a_vocabulary_that_a_restart_may_read_is_no_error_of_the_user(
    bucket: Bucket, request_, status, error
):
    """The launcher restarts a run after RunFailed and releases the TPUs after UserError."""
    bucket.put("spm.model", Path(MODEL).read_bytes())
    vocabularies.load.cache_clear()
    bucket.faults = [Status(status=status, match=request_)]
    with pytest.raises(error, match=f"Cannot access the vocabulary gs.*: {status}, as a fault"):
        vocabularies.load(bucket.url("spm.model"))


def test_a_report_needs_no_access_to_the_text(bucket: Bucket):
    bucket.put("data/mine/1.0.0/dataset_info.json", b"{}")
    data = TextData(bucket.url("data"), "mine:1.0.0")
    assert data.in_words == "mine, concat"
    bucket.faults = [Denied(prefix="")]
    for text in (data, Blocks(bucket.url("blocks"))):
        assert text.in_words == "unknown text (gone, or not readable from here), concat"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--gin.DATA_DIR=gs://{name}/data"],
        ["--gin.VOCABULARY=gs://{name}/spm.model"],
        ["--gin_file=configs/data/blocks.gin", "--gin.DATA_DIR=gs://{name}/blocks"],
    ],
    ids=["text", "vocabulary", "blocks"],
)
def test_what_may_not_be_read_is_told_in_two_lines(
    bucket: Bucket, data_dir, tmp_path, capfd, arguments
):
    bucket.put("spm.model", Path(MODEL).read_bytes())
    vocabularies.load.cache_clear()
    bucket.faults = [Denied(prefix="")]
    given = [argument.format(name=bucket.name) for argument in arguments]
    code = main(
        [
            "pretrain",
            "--gin_file=configs/runs/quickstart.gin",
            "--gin_file=configs/positions/nope.gin",
            f"--workdir={tmp_path / 'run'}",
            *([] if any("DATA_DIR" in one for one in given) else [f"--gin.DATA_DIR={data_dir}"]),
            *given,
        ]
    )
    lines = capfd.readouterr().err.splitlines()
    told = "\n".join(one for one in lines if "google_auth_provider" not in one).strip()
    assert code in (1, 2) and told.count("\n") <= 1 and len(told) < 400, told
    assert "loopback does not have" in told and bucket.name in told


def test_pairs_are_read_from_a_bucket_and_not_from_another_store(bucket: Bucket):
    content = b"".join(b'{"inputs": "%d", "targets": "b"}\n' % number for number in range(100))
    bucket.put("faq.jsonl", content)
    file = bucket.url("faq.jsonl")
    assert file_sha256(file) == hashlib.sha256(content).hexdigest()
    assert sum(map(len, splits_of(Pairs(file=file, target_length=4)).values())) == 100
    with pytest.raises(UserError, match=f"there is no file {file}x: give a file with a line"):
        read_pairs(f"{file}x")
    bucket.faults = [Denied(prefix="")]
    with pytest.raises(RunFailed, match="loopback does not have"):
        read_pairs(file)
    for scheme in ("s3", "az", "hf", "memory", "file"):
        with pytest.raises(UserError, match=f"{scheme}://b/x is neither a local path nor a gs://"):
            read_pairs(f"{scheme}://b/x")


@pytest.mark.parametrize("to", ["writes", "both"])
def test_a_vocabulary_that_may_not_be_written_is_told(bucket: Bucket, data_dir, to, capfd):
    bucket.faults = [Denied(prefix="", to=to)]
    output = bucket.url("mine.model")
    flags = [f"--data_dir={data_dir}", "--size=300", "--megabytes=1"]
    assert main(["corpus", "vocab", *flags, f"--output={output}"]) in (1, 2)
    lines = capfd.readouterr().err.splitlines()
    told = "\n".join(one for one in lines if "google_auth_provider" not in one).strip()
    assert told.count("\n") <= 1 and len(told) < 400 and "Traceback" not in told
    assert "loopback does not have" in told and output in told
    assert "mine.model" not in bucket.objects
