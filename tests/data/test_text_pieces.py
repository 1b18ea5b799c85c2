"""`corpus --from` with files that contain many documents: --split_on."""

import gzip
import io
from pathlib import Path

import pytest

from fire_lm.cli import main
from fire_lm.data.corpora.text_files import read_file


def write_input(folder: Path, name: str = "input.txt") -> bytes:
    """Write a folder with one file like a play: short paragraphs separated by blank lines."""
    folder.mkdir(exist_ok=True)
    text = "\n\n".join(f"SPEAKER {i}:\nWord {'é漢 ' * (i % 7)}{i}." for i in range(400)).encode()
    (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return text


def corpus(source: Path, data_dir: Path, *flags: str) -> int:
    return main(["corpus", f"--from={source}", f"--data_dir={data_dir}", "--name=play", *flags])


def test_a_folder_with_one_text_file_is_told_how_to_be_split(tmp_path, capsys):
    write_input(tmp_path / "text")
    assert corpus(tmp_path / "text", tmp_path / "data") == 2
    told = capsys.readouterr().err.strip()
    assert "--split_on=blank_lines" in told and "--split_on=10000" in told
    assert len(told.splitlines()) == 2


@pytest.mark.parametrize(
    "flag, documents",
    [("--split_on=blank_lines", range(400, 401)), ("--split_on=200", range(50, 120))],
)
def test_it_is_split(tmp_path, capsys, flag, documents):
    write_input(tmp_path / "text")
    assert corpus(tmp_path / "text", tmp_path / "data", flag) == 0
    out = capsys.readouterr().out
    counts = [
        int(line.split(": ")[1].split()[0]) for line in out.splitlines() if " documents," in line
    ]
    assert len(counts) == 2 and sum(counts) in documents
    assert corpus(tmp_path / "text", tmp_path / "data", flag) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert corpus(tmp_path / "text", tmp_path / "data", "--split_on=500") == 2
    assert "other files or with other settings" in capsys.readouterr().err
    assert corpus(tmp_path / "text", tmp_path / "data") == 2
    assert "other files or with other settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "one line of words " * 200,  # like text8
        "漢字" * 500,  # without spaces: split between characters
        "line\n" * 300 + "x" * 3000,
        "",
    ],
)
@pytest.mark.parametrize("size", [16, 100, 4096])
def test_pieces_of_a_size_lose_nothing(text, size):
    pieces = list(read_file("a.txt", io.BytesIO(text.encode()), "text", size))
    assert b"".join(piece for _, piece in pieces) == text.encode()
    assert all(len(piece) <= size for _, piece in pieces)
    for _, piece in pieces:
        piece.decode()
    if " " in text and size > 20:
        assert all(piece[-1:] in b" \n" for _, piece in pieces)
    assert [place for place, _ in pieces] == [f"a.txt:{n + 1}" for n in range(len(pieces))]


def test_compressed_text_is_split_and_json_is_not(tmp_path):
    write_input(tmp_path / "text", "input.txt.gz")
    with (tmp_path / "text" / "input.txt.gz").open("rb") as file:
        assert len(list(read_file("input.txt.gz", file, "text", "blank_lines"))) == 400
    line = b'{"text": "a\\n\\nb"}\n'
    assert list(read_file("a.jsonl", io.BytesIO(line), "text", "blank_lines")) == [
        ("a.jsonl:1", b"a\n\nb")
    ]


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--split_on=chapters"], "neither blank_lines nor a number of bytes"),
        (["--split_on=8"], "neither blank_lines nor a number of bytes from 16 to "),
        (
            ["--split_on=blank_lines", "--whole_files"],
            "--whole_files and --split_on cannot be combined",
        ),
        (
            ["--text_field=body", "--whole_files"],
            "--whole_files and --text_field cannot be combined",
        ),
    ],
)
def test_what_cannot_be_split(tmp_path, capsys, flags, told):
    write_input(tmp_path / "text")
    assert corpus(tmp_path / "text", tmp_path / "data", *flags) == 2
    assert told in capsys.readouterr().err


def test_records_have_nothing_to_split(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    assert corpus(tmp_path / "a.jsonl", tmp_path / "data", "--split_on=blank_lines") == 2
    assert "--split_on has no effect" in capsys.readouterr().err
