"""Data sets from the user's own documents: what is read, where it goes, and what is refused."""

import gzip
import json
import os
import tarfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import fire_lm.data
from fire_lm.cli import main
from fire_lm.data import TextData
from fire_lm.data.corpora.tfds_writer import number_of_files, write_dataset
from fire_lm.errors import RunFailed, UserError


def texts(count: int, start: int = 0) -> list[str]:
    return [f"document {i} é漢\n" + "word " * (i % 17 + 5) for i in range(start, start + count)]


def json_lines(documents: list[str], field: str = "text") -> bytes:
    return "".join(json.dumps({field: text, "n": 1}) + "\n" for text in documents).encode()


def zstandard(content: bytes) -> bytes:
    return pyarrow.compress(content, codec="zstd", asbytes=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Write ten documents in each form, and files that must be ignored."""
    folder = tmp_path_factory.mktemp("source")
    (folder / "plain").mkdir()
    (folder / "plain" / ".git").mkdir()
    (folder / "plain" / ".git" / "config").write_text("hidden")
    (folder / ".hidden").write_text("hidden")
    for i, text in enumerate(texts(10)):
        (folder / "plain" / f"{i}.tex").write_text(text)
    (folder / "a.jsonl").write_bytes(json_lines(texts(10, 10)) + b"\n")
    (folder / "b.json.gz").write_bytes(gzip.compress(json_lines(texts(10, 20))))
    (folder / "c.jsonl.zst").write_bytes(zstandard(json_lines(texts(10, 30))))
    table = pyarrow.table({"text": texts(10, 40), "url": ["x"] * 10})
    parquet.write_table(table, folder / "d.parquet", row_group_size=3)
    (folder / "e.txt.gz").write_bytes(gzip.compress(texts(1, 50)[0].encode()))
    (folder / "f.txt.zst").write_bytes(zstandard(texts(1, 51)[0].encode()))
    return folder


def read(source: Path, field: str | None = "text") -> list[tuple[str, bytes]]:
    from fire_lm.data.corpora.text_files import read_documents

    return list(read_documents(str(source), field))


def write(source: Path, data_dir: Path, name: str = "mine", **settings):
    from fire_lm.data.corpora.text_corpus import write_text_corpus

    return write_text_corpus(str(source), str(data_dir), name, **settings)


def stored(data_dir: Path, split: str, name: str = "mine") -> list[bytes]:
    """Return the texts of a split, read back through TFDS."""
    from fire_lm.data.on_the_fly import tasks

    data = TextData(str(data_dir), tfds_name=f"{name}:1.0.0")
    return [text for group, _ in tasks.document_groups(data, split) for text in group]


def test_every_form_is_read(source):
    found = read(source)
    assert sorted(text.decode() for _, text in found) == sorted(texts(52))
    assert len({place for place, _ in found}) == 52
    assert ("a.jsonl:1", texts(1, 10)[0].encode()) in found
    assert [read(source / "d.parquet")[4]] == [("d.parquet:5", texts(1, 44)[0].encode())]
    whole = dict(read(source, None))
    assert whole["a.jsonl"] == json_lines(texts(10, 10)) + b"\n" and len(whole) == 16


def test_it_becomes_a_data_set_that_trains_and_scores(source, tmp_path):
    seen = []
    written = write(
        source, tmp_path, validation_percent=30, on_bytes=lambda *done: seen.append(done)
    )
    assert written.tfds_name == "mine:1.0.0" and written.left_out == {}
    train, validation = (stored(tmp_path, split) for split in ("train", "validation"))
    assert sorted(train + validation) == sorted(text.encode() for text in texts(52))
    assert written.documents == {"train": len(train), "validation": len(validation)}
    assert written.bytes["train"] == sum(map(len, train))
    assert 5 < len(validation) < 25
    done = [done for done, _ in seen]
    assert done == sorted(done) and seen[-1][0] == seen[-1][1] > 0
    data = TextData(str(tmp_path), tfds_name="mine:1.0.0", construction="packed")
    batch = next(fire_lm.data.train_iterator(data, length=64, batch_size=4, seed=0))
    assert batch["targets"].shape == batch["segment_ids"].shape == (4, 64)
    assert data.label() == "mine"
    scored = fire_lm.data.scoring_text(data, length=64, num_sequences=100)
    assert scored.byte_counts.sum() == written.bytes["validation"]


def test_the_split_depends_on_the_text_alone(source, tmp_path):
    """The same texts in one file, reversed and with duplicates, give the same splits."""
    one = write(source, tmp_path / "1", validation_percent=30)
    other = tmp_path / "other.jsonl"
    other.write_bytes(json_lines(texts(52)[::-1] + texts(9)))
    two = write(other, tmp_path / "2", validation_percent=30)
    assert two.left_out == {"duplicate": 9} and two.documents == one.documents
    for split in ("train", "validation"):
        assert sorted(stored(tmp_path / "1", split)) == sorted(stored(tmp_path / "2", split))


def test_strange_documents_are_left_out_and_counted(tmp_path, monkeypatch):
    from fire_lm.data.corpora import text_files, text_selection

    for module in (text_selection, text_files):
        monkeypatch.setattr(module, "LONGEST_DOCUMENT", 3000)
    folder = tmp_path / "source"
    folder.mkdir()
    strange = {
        "empty": b"", "blank": b" \n\t", "latin": b"caf\xe9 au lait", "huge": b"x" * 3001,
        "null": b"a\0b" * 9, "repeated": b"a" * 3000, "again": b"a" * 3000,
    }  # fmt: skip
    for name, content in strange.items():
        (folder / f"{name}.txt").write_bytes(content)
    with tarfile.open(folder / "paper.gz", "w:gz") as archive:  # as arXiv calls it
        archive.add(folder / "null.txt")
    (folder / "half.jsonl").write_bytes(b'{"text": "\\ud800 half a pair"}\n{"text": null}\n')
    (folder / "good.jsonl").write_bytes(json_lines(texts(30)))
    written = write(folder, tmp_path / "data", validation_percent=20)
    assert written.left_out == {
        "empty": 3, "not UTF-8": 2, "huge": 1, "duplicate": 1, "tar archive": 1,
    }  # fmt: skip
    kept = stored(tmp_path / "data", "train") + stored(tmp_path / "data", "validation")
    assert {strange["null"], strange["repeated"]} < set(kept) and len(kept) == 32


def test_a_line_that_is_not_utf8_is_left_out_like_such_a_file(tmp_path):
    """JSON lines and Parquet skip such a row as plain text does; later lines keep their numbers."""
    folder = tmp_path / "source"
    folder.mkdir()
    latin = b'{"text": "caf\xe9 au lait"}\n'
    good = json_lines(texts(40)).splitlines(keepends=True)
    (folder / "a.jsonl").write_bytes(b"".join([*good[:2], latin, *good[2:20]]) + b"\xff\xfe?\n")
    (folder / "b.jsonl.gz").write_bytes(
        gzip.compress(b"\xef\xbb\xbf" + b"".join(good[20:]) + latin)
    )
    column = pyarrow.array([b"caf\xe9", texts(1, 40)[0].encode()])
    parquet.write_table(pyarrow.table({"text": column}), folder / "c.parquet")
    (folder / "d.txt").write_bytes(b"caf\xe9")
    assert ("a.jsonl:4", texts(1, 2)[0].encode()) in read(folder)
    written = write(folder, tmp_path / "data", validation_percent=20)
    assert written.left_out == {"not UTF-8": 5}
    kept = stored(tmp_path / "data", "train") + stored(tmp_path / "data", "validation")
    assert sorted(kept) == sorted(text.encode() for text in texts(41))
    (folder / "e.jsonl").write_bytes(latin + b'{"text": caf\xc3\xa9}\n')
    with pytest.raises(RunFailed, match="e.jsonl line 2 is not JSON"):
        write(folder, tmp_path / "data", "other")


def test_a_second_run_does_nothing_and_another_text_is_refused(source, tmp_path):
    assert write(source, tmp_path).written
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert not write(source, tmp_path).written
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(UserError, match="was written from other files or with other settings"):
        write(source, tmp_path, validation_percent=9)
    write(source / "plain", tmp_path, "other", validation_percent=50)  # a second set here
    assert len(stored(tmp_path, "train")) + len(stored(tmp_path, "validation")) == 52
    record = tmp_path / "mine/1.0.0/metadata.json"
    earlier = record.rename(record.with_name("fire_lm_corpus.json"))
    assert not write(source, tmp_path).written, "as written by earlier versions"
    earlier.unlink()
    with pytest.raises(UserError, match="was not written by `fire-lm corpus`"):
        write(source, tmp_path)


def test_other_text_of_the_same_names_and_sizes_is_not_taken_for_the_same(tmp_path, capsys):
    """The modification time differs; if files were only copied again, a message says what to do."""
    source, data = tmp_path / "mine.jsonl", tmp_path / "data"
    source.write_bytes(json_lines(texts(40)))
    write(source, data, validation_percent=20)
    assert not write(source, data, validation_percent=20).written
    before = source.stat().st_mtime_ns
    source.write_bytes(json_lines(texts(40)).replace(b"word", b"WORD"))
    os.utime(source, ns=(0, before + 1))
    with pytest.raises(
        UserError,
        match="names and sizes but different modification times(.|\n)*use the data set as it is",
    ) as e:
        write(source, data, validation_percent=20)
    assert str(e.value).count("\n") == 1 and "--gin.TextData.tfds_name=mine:1.0.0" in str(e.value)


def test_a_file_with_the_name_of_a_line_of_another(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.jsonl").write_bytes(json_lines(texts(40)))
    (source / "a.jsonl:1").write_text("a whole file")
    written = write(source, tmp_path / "data", validation_percent=20)
    assert sum(written.documents.values()) == 41 and written.left_out == {}


def damaged(name: str) -> bytes:
    good = json_lines(texts(2000))
    return {
        "cut.jsonl.gz": gzip.compress(good)[:-20],
        "cut.jsonl.zst": zstandard(good)[:-20],
        "cut.txt.gz": gzip.compress(good)[:-20],
        "noise.jsonl.gz": b"not gzip at all",
        "noise.jsonl.zst": b"not zstandard at all",
        "broken.jsonl": json_lines(texts(6)) + b'{"text": "half',
        "list.jsonl": b"[1]\n",
        "number.jsonl": b'{"text": 7}\n',
        "deep.jsonl": b"[" * 100_000 + b"\n",
        "noise.parquet": b"PAR1 not really PAR1",
    }[name]


@pytest.mark.parametrize(
    "name, message",
    [
        ("cut.jsonl.gz", r"cut.jsonl.gz line \d+: the file is truncated or damaged"),
        ("cut.jsonl.zst", r"cut.jsonl.zst line \d+: the file is truncated or damaged"),
        ("cut.txt.gz", "cut.txt.gz: the file is truncated"),
        ("noise.jsonl.gz", "noise.jsonl.gz does not begin like a .gz file"),
        ("noise.jsonl.zst", "noise.jsonl.zst does not begin like a .zst file"),
        ("broken.jsonl", "broken.jsonl line 7 is not JSON"),
        ("list.jsonl", "list.jsonl line 1 is not a JSON object"),
        ("number.jsonl", "number.jsonl line 1: the type of the text is int, not str"),
        ("deep.jsonl", "deep.jsonl line 1 is not JSON"),
        ("noise.parquet", "noise.parquet row 1: the file is not a complete Parquet file"),
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_written(tmp_path, name, message):
    (tmp_path / name).write_bytes(damaged(name))
    with pytest.raises(RunFailed, match=message) as told:
        write(tmp_path / name, tmp_path / "data")
    assert str(told.value).count("\n") <= 1 and not (tmp_path / "data").exists()


def test_a_file_damaged_in_the_middle_of_writing_leaves_nothing(tmp_path, monkeypatch):
    from fire_lm.data.corpora import text_corpus

    reads = []

    def failing(*arguments):
        reads.append(arguments)
        yield from ((f"x:{i}", text.encode()) for i, text in enumerate(texts(50)))
        if len(reads) > 1:
            raise RunFailed("x.jsonl line 51: the file is truncated or damaged")

    monkeypatch.setattr(text_corpus, "read_documents", failing)
    (tmp_path / "x.jsonl").write_bytes(json_lines(texts(1)))
    with pytest.raises(RunFailed, match="line 51"):
        write(tmp_path / "x.jsonl", tmp_path / "data")
    assert not (tmp_path / "data/mine/1.0.0").exists()


@pytest.mark.parametrize(
    "settings, told",
    [
        (
            {"text_field": "body"},
            r"line 1 has no field 'body' .existing fields: 'text', 'n'.(.|\n)*--text_field",
        ),
        ({"name": "C4"}, "--name C4 cannot be used"),
        ({"name": "c4"}, "--name c4 cannot be used"),
        ({"name": "../x"}, "cannot be used"),
        (
            {"validation_percent": 100},
            "--validation_percent must be at least 0 and below 100, not 100",
        ),
        ({"validation_percent": float("nan")}, "--validation_percent must be .* not nan"),
        (
            {"validation_percent": 1e-9},
            "'validation' would be empty .documents in the other splits: 52",
        ),
    ],
)
def test_settings_that_cannot_serve(source, tmp_path, settings, told):
    with pytest.raises(UserError, match=told):
        write(source, tmp_path / "data", **settings)
    assert not (tmp_path / "data").exists()


def test_sources_that_are_not_there(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for source, told in (("absent", "does not exist"), ("empty", "contains no files")):
        arguments = [f"--from={tmp_path / source}", f"--data_dir={tmp_path}", "--name=mine"]
        assert main(["corpus", *arguments]) == 2
        assert told in capsys.readouterr().err


def test_the_command(source, tmp_path, capsys):
    arguments = ["corpus", f"--from={source}", f"--data_dir={tmp_path}", "--name=mine"]
    assert main([*arguments, "--validation_percent=30"]) == 0
    out = capsys.readouterr().out
    assert f"--gin.DATA_DIR={tmp_path} --gin.TextData.tfds_name=mine:1.0.0" in out
    assert "documents skipped: none" in out
    assert main([*arguments, "--validation_percent=30"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main(["corpus", f"--data_dir={tmp_path}", "--name=x"]) == 2
    assert "add --from" in capsys.readouterr().err
    assert main(arguments[:3]) == 2
    assert "--name=NAME" in capsys.readouterr().err
    with pytest.raises(
        UserError, match="The directory contains mine:1.0.0: set .*--gin.TextData.tfds_name=NAME"
    ):
        fire_lm.data.train_iterator(TextData(str(tmp_path)), length=8, batch_size=1, seed=0)


def test_what_a_killed_writer_left_a_day_ago_is_removed(tmp_path):
    from fire_lm.data.corpora.tfds_writer import write_dataset

    folder = tmp_path / "mine"
    for name, hours in (("A_1.0.0", 25), ("B_1.0.0", 23), ("C_2.0.0", 25)):
        left = folder / f"incomplete.{name}"
        left.mkdir(parents=True)
        (left / "part").touch()
        for path in (left / "part", left):
            os.utime(path, (0, time.time() - 3600 * hours))
    os.utime(folder / "incomplete.B_1.0.0", (0, 0))  # its file was written to later
    examples = {"train": lambda: [("a", {"text": "a"})]}
    write_dataset(tmp_path, "mine", "1.0.0", ("text",), examples, files=1)
    kept = {"1.0.0", "incomplete.B_1.0.0", "incomplete.C_2.0.0"}
    assert {path.name for path in folder.iterdir()} == kept


@pytest.mark.ci
def test_only_one_pass_holds_hashes_at_a_time(tmp_path, monkeypatch):
    """Compare bytes of Python objects: the second pass needs no more than the first did."""
    from fire_lm.data.corpora import text_corpus

    source = tmp_path / "many.jsonl"
    source.write_bytes(json_lines([f"document {i}" for i in range(20_000)]))
    read(source)
    held = {}

    def second_pass(data_dir, name, version, fields, splits, **settings):
        _, held["first"] = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        assert sum(1 for texts in splits.values() for _ in texts()) == 20_000
        _, held["second"] = tracemalloc.get_traced_memory()
        (tmp_path / "mine/1.0.0").mkdir(parents=True)

    text_corpus.tfds.list_builders(with_community_datasets=False)  # imports many modules
    monkeypatch.setattr(text_corpus, "write_dataset", second_pass)
    tracemalloc.start()
    try:
        write(source, tmp_path)
    finally:
        tracemalloc.stop()
    assert held["second"] < 1.2 * held["first"]


@pytest.mark.ci
def test_a_document_of_100_megabytes(tmp_path):
    """It is skipped with little memory; one of repeated bytes just below the limit is read."""
    from fire_lm.data.spec import LONGEST_DOCUMENT

    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "huge.txt").write_bytes(b"word " * 20_000_000)
    (folder / "long.txt").write_bytes(b"a" * LONGEST_DOCUMENT)
    (folder / "good.jsonl").write_bytes(json_lines(texts(40)))
    written = write(folder, tmp_path / "data", validation_percent=20)
    assert written.left_out == {"huge": 1} and sum(written.documents.values()) == 41
    data = TextData(str(tmp_path / "data"), tfds_name="mine:1.0.0", construction="cut")
    tokens = 0
    for split in ("train", "validation"):
        text = fire_lm.data.scoring_text(data, length=4096, num_sequences=10**6, split=split)
        tokens += int(np.sum(text.targets != 0))
    assert tokens == sum(written.bytes.values()) + 41


def test_a_small_split_does_not_limit_the_files_of_the_others(tmp_path):
    """Each host reads its own files, and a seed determines their order."""

    def examples(count):
        return lambda: ((str(number), {"text": b"a text"}) for number in range(count))

    splits = {"train": examples(40), "validation": examples(3)}
    write_dataset(tmp_path, "mine", "1.0.0", ("text",), splits, files=number_of_files(1))
    files = [path.name for path in tmp_path.rglob("*.tfrecord-*")]
    assert [sum(f"-{split}." in name for name in files) for split in splits] == [32, 3]
