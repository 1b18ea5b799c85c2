"""Files whose content contradicts their names are reported before reading; links; Parquet."""

import gzip
import io
import os
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from test_text_corpus import json_lines, read, texts, write, zstandard

from fire_lm.data.corpora import text_files
from fire_lm.errors import RunFailed, UserError

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 319\n" % 7


def parquet_file(column: pyarrow.Array, **settings) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": column}), file, **settings)
    return file.getvalue()


@pytest.mark.parametrize(
    "name, content, told",
    [
        (
            "z.json.gz",
            POINTER,
            "z.json.gz is a Git LFS pointer, not the file itself: run `git lfs pull`",
        ),
        ("z.jsonl", POINTER, "z.jsonl is a Git LFS pointer"),
        ("z.parquet", POINTER, "z.parquet is a Git LFS pointer"),
        ("z.jsonl.gz", b"", r"z.jsonl.gz is empty \(0 bytes\)"),
        ("z.txt.zst", b"", r"z.txt.zst is empty \(0 bytes\)"),
        ("z.jsonl", b"", r"z.jsonl is empty \(0 bytes\)"),
        ("z.parquet", b"", r"z.parquet is empty \(0 bytes\)"),
        ("z.jsonl.gz", zstandard(b"{}"), "z.jsonl.gz does not begin like a .gz file"),
        ("z.parquet", b"{}" * 50, "z.parquet does not begin like a .parquet file"),
    ],
)
def test_a_file_that_is_not_there_in_truth_is_told_before_any_is_read(
    tmp_path, monkeypatch, name, content, told
):
    (tmp_path / "a.jsonl").write_bytes(json_lines(texts(9)))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RunFailed, match=told):
        list(text_files.read_file(name, io.BytesIO(content), "text"))
    monkeypatch.setattr(text_files, "read_file", lambda *_: pytest.fail("a file was read"))
    with pytest.raises(RunFailed, match=told) as failure:
        write(tmp_path, tmp_path / "data")
    assert "\n" not in str(failure.value) and not (tmp_path / "data").exists()


def test_whole_files_are_documents_whatever_they_begin_with(tmp_path):
    """Each file is one document, whatever its name and format; empty files are skipped."""
    for name, content in {"a.txt": b"", "b.jsonl": b"", "c.parquet": b"not Parquet"}.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "d.jsonl").write_bytes(json_lines(texts(20)))
    written = write(tmp_path, tmp_path / "data", text_field=None, validation_percent=0)
    assert written.left_out == {"empty": 2} and written.documents == {"train": 2}


def test_streams_of_several_frames_are_read_whole(tmp_path):
    skipped = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    one, other = json_lines(texts(5)), json_lines(texts(5, 5))
    (tmp_path / "a.jsonl.zst").write_bytes(skipped + zstandard(one) + zstandard(other))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(one) + gzip.compress(other))
    assert len(read(tmp_path)) == 20


def test_links_that_lead_nowhere_are_left_out_and_counted(tmp_path):
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "a.jsonl").write_bytes(json_lines(texts(40)))
    (source / "good").symlink_to(source / "a.jsonl")
    (source / "gone").symlink_to(source / "nothing")
    (source / "below" / "gone.parquet").symlink_to("/nowhere")
    written = write(source, tmp_path / "data", validation_percent=20)
    assert written.left_out == {"broken links": 2}
    assert sum(written.documents.values()) == 41  # the valid link has no extension: one document
    (source / "a.jsonl").unlink()
    with pytest.raises(UserError, match="contains no files"):
        read(source)


def test_links_to_folders_are_followed_once(tmp_path):
    """Links that lead back would otherwise give 2^40 paths to each file."""
    top, other = tmp_path / "top", tmp_path / "other"
    (top / "z").mkdir(parents=True)
    other.mkdir()
    (top / "a.txt").write_text("one")
    (top / "z" / "b.txt").write_text("two")
    (other / "c.txt").write_text("three")
    for name, target in {"l": ".", "m": ".", "n": "z", "o": str(other), "p": str(other)}.items():
        (top / name).symlink_to(target)
    (top / "z" / "up").symlink_to("..")
    (other / "back").symlink_to(top)
    (top / "itself").symlink_to("itself")
    files, broken = text_files.list_files(str(top))
    assert [file.name for file in files] == ["a.txt", "o/c.txt", "z/b.txt"] and broken == 1
    layers = [tmp_path / f"layer_{number}" for number in range(30)]
    for folder, below in zip(layers, [*layers[1:], top], strict=True):
        folder.mkdir()
        for name in "xy":
            (folder / name).symlink_to(below)
    assert len(text_files.list_files(str(layers[0]))[0]) == 3


def test_a_file_name_that_is_not_utf8_is_told_plainly(tmp_path):
    path = os.path.join(os.fsencode(tmp_path), b"caf\xe9.txt")
    Path(os.fsdecode(path)).write_bytes(b"text")
    with pytest.raises(UserError, match=r"name is not UTF-8 \(b'caf\\xe9.txt'\): rename it"):
        read(tmp_path)


@pytest.mark.parametrize("form", ["string", "large_string", "dictionary"])
def test_a_row_of_parquet_that_is_not_utf8_is_left_out(tmp_path, form):
    """The library that writes a column of strings does not check that it is valid UTF-8."""
    content = [text.encode() for text in texts(40)] + [b"caf\xe9"]
    kinds = {"string": pyarrow.string(), "large_string": pyarrow.large_string()}
    offsets = pyarrow.array(content, pyarrow.binary()).buffers()[1:]
    column = pyarrow.StringArray.from_buffers(len(content), *offsets)
    if form == "dictionary":
        indices = pyarrow.array(range(len(content)), pyarrow.int32())
        column = pyarrow.DictionaryArray.from_arrays(indices, column)
    else:
        column = column.cast(kinds[form])
    (tmp_path / "a.parquet").write_bytes(parquet_file(column))
    assert [text for _, text in read(tmp_path)] == content
    written = write(tmp_path, tmp_path / "data", validation_percent=0)
    assert written.left_out == {"not UTF-8": 1} and written.documents == {"train": 40}


def test_the_checksums_of_parquet_are_tested(tmp_path):
    whole = parquet_file(
        pyarrow.array(texts(500)),
        write_page_checksum=True,
        use_dictionary=False,
        compression="none",
    )
    flipped = bytearray(whole)
    flipped[whole.index(b"document 77 ") + 9] ^= 1
    (tmp_path / "a.parquet").write_bytes(flipped)
    with pytest.raises(RunFailed, match=r"a.parquet row \d+: .*CRC"):
        read(tmp_path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    for source in (tmp_path, tmp_path / "pipe.txt"):
        with pytest.raises(UserError, match="is a pipe, socket or device, not a file to read"):
            text_files.list_files(str(source))
