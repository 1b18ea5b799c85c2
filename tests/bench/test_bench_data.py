"""`fire-lm bench data`: real readers on a small text, and the table that it prints."""

import json

import numpy as np
import pytest
from sample_run import write_text

from fire_lm import cli
from fire_lm.bench import data as bench_data
from fire_lm.bench import race
from fire_lm.bench.data import Reader
from fire_lm.bench.race import Times
from fire_lm.data import TextData
from fire_lm.errors import UserError


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> str:
    return str(write_text(tmp_path_factory.mktemp("text") / "data"))


@pytest.mark.ci
def test_the_plain_pipeline_reads_the_same_documents(data_dir):
    """Each row of the plain pipeline consists of pieces of documents that our reader also finds."""
    from fire_lm.data.on_the_fly.pipeline import scoring_text
    from fire_lm.data.on_the_fly.seqio_baseline import plain_batches

    whole = scoring_text(TextData(data_dir), length=2, num_sequences=10**6, split="train")
    documents = bytes(whole.targets.astype(np.uint8)).split(b"\x01")
    batches = plain_batches(TextData(data_dir), length=64, batch_size=4, seed=0)
    for _ in range(5):
        rows = next(batches)["targets"]
        assert rows.shape == (4, 64) and rows.dtype == np.int32 and (rows != 0).all()
        for row in rows:
            for piece in bytes(row.astype(np.uint8)).split(b"\x01"):
                assert any(piece in document for document in documents)


@pytest.mark.ci
def test_the_report(data_dir, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench_data, "_WARM_UP_ROWS", 0)
    monkeypatch.setattr(race, "SHORTEST_SECONDS", 0.0)
    file = tmp_path / "report.json"
    command = ["bench", "data", f"--data_dir={data_dir}", f"--json={file}", "--rounds=2"]
    assert cli.main([*command, "--tokens=20000", "--length=64"]) == 0
    report = json.loads(file.read_text())
    rows = {row["name"]: row for row in report["rows"]}
    assert list(rows) == ["plain seqio", "on the fly", "blocks"]
    assert rows["on the fly"]["x_on_the_fly"] == 1
    assert rows["plain seqio"]["position_bytes"] is None
    assert rows["blocks"]["position_bytes"] < 300 < rows["on the fly"]["position_bytes"] < 4e6
    assert all(row["tokens_per_cpu_s"] > 0 for row in rows.values())
    assert report["tokens"] == 20 * 16 * 64  # complete batches only
    said = capsys.readouterr().out
    assert "vocabulary bytes, 1.00 bytes per token" in said and "x on the fly" in said


def test_the_only_data_set_of_a_directory_needs_no_name(tmp_path, monkeypatch):
    from fire_lm.data.corpora import c4_writer

    c4_writer.write(tmp_path, {"train": {"a": b"one", "b": b"two"}})
    (tmp_path / "c4" / "en").rename(tmp_path / "c4" / "mine")
    chosen = []

    def stop(data, *_, **__):
        chosen.append(data.tfds_name)
        raise UserError("stop here")

    monkeypatch.setattr("fire_lm.data.blocks.writer.write_blocks", stop)
    assert cli.main(["bench", "data", f"--data_dir={tmp_path}"]) == 2
    assert chosen == ["c4/mine:3.1.0"]


def test_the_table_divides_by_reading_on_the_fly():
    readers = [Reader("plain seqio", 2, iter, 0, 1), Reader("on the fly", 2, iter, 0, 1, (10, 0.5))]
    plain, ours = bench_data.rows_of(
        readers,
        {
            "plain seqio 2": {"read": Times([2.0, 2.0, 9.0], [1.0, 1.0, 1.0])},
            "on the fly 2": {"read": Times([4.0, 4.0, 1.0], [2.0, 2.0, 2.0])},
        },
        tokens=8,
    )
    assert (plain["x_on_the_fly"], ours["x_on_the_fly"]) == (2.0, 1.0)
    assert (ours["tokens_per_cpu_s"], ours["tokens_per_wall_s"]) == (2.0, 4.0)
    assert [(row["position_bytes"], row["save_s"]) for row in (plain, ours)] == [
        *((None, None), (10, 0.5))
    ]
