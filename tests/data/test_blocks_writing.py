"""Blocks on disk: what is written, what an interruption leaves, and damage that is reported."""

import functools
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sample_blocks import SPACES, TRICKY, all_rows, blocks, data_dir, whole
from sample_vocabulary import MODEL

from fire_lm import cli
from fire_lm.data import Blocks, TextData
from fire_lm.data import stores as storage
from fire_lm.data.blocks import manifest as manifests
from fire_lm.data.blocks import writer
from fire_lm.data.blocks.stream import BYTE_COUNTS, TOKENS, Stream, open_set
from fire_lm.data.blocks.writer import write_blocks
from fire_lm.data.quiet_tensorflow import tf
from fire_lm.errors import RunFailed, UserError

__all__ = ["data_dir", "whole", "blocks"]  # fixtures


WRITTEN = len(TRICKY) - 3


def stream_of(output: Path, array: str, split: str = "train") -> np.ndarray:
    stream = Stream(str(output), open_set(str(output), ""), split)
    everything = np.array([0]), np.array([stream.tokens])
    return stream.read(*everything, stream.tokens, array)[0]


def test_a_report_names_blocks_that_are_gone_by_their_path(tmp_path):
    """Their folder may remain, or may be written again at this moment: the manifest comes last."""
    (tmp_path / "train").mkdir()
    data = Blocks(str(tmp_path))
    assert data.known_label() == "" and data.text_name() == str(tmp_path)
    assert data.in_words == "unknown text (gone, or not readable from here), concat"
    content = {"identity": {"format": 1, "preprocessing": ""}, "splits": {}}
    manifests.write_json(str(tmp_path / manifests.FILE_NAME), content)
    assert data.known_label() == ""


@pytest.mark.ci
@pytest.mark.parametrize("vocabulary", ["bytes", MODEL])
def test_documents_come_back_with_their_bytes(data_dir, tmp_path, vocabulary):
    manifest = write_blocks(TextData(data_dir, vocabulary=vocabulary), str(tmp_path / "out"))
    tokens, counts = (stream_of(tmp_path / "out", array) for array in (TOKENS, BYTE_COUNTS))
    ends = np.flatnonzero(tokens == 1) + 1
    sizes = [int(part.sum()) for part in np.split(counts, ends)[:-1]]
    texts = [text for name, text in TRICKY.items() if name not in ("empty", "blank", "not UTF-8")]
    assert sorted(sizes) == sorted(map(len, texts)), "bytes of each document"
    assert counts.max() >= SPACES or vocabulary == "bytes"
    (part,) = manifest.splits["train"]
    assert (part.documents, part.skipped, len(sizes)) == (len(TRICKY), 3, WRITTEN)
    assert (part.tokens, part.bytes) == (len(tokens), sum(sizes))
    if vocabulary == "bytes":
        found = [bytes((document[:-1] - 3).astype(np.uint8)) for document in np.split(tokens, ends)]
        assert sorted(found[:-1]) == sorted(texts)


def test_a_wide_vocabulary_has_wide_tokens():
    identity = manifests.Identity("", "", "", "", 2**16, None, documents_per_group=1)
    wider = manifests.Identity("", "", "", "", 2**16 + 1, None, documents_per_group=1)
    assert (identity.token_dtype, wider.token_dtype) == (np.uint16, np.uint32)


@pytest.mark.ci
@pytest.mark.ci
def test_a_token_outside_the_vocabulary_is_never_stored(data_dir, tmp_path, monkeypatch):
    """Stored as uint16, 65636 would be read as 100."""
    documents = writer.tasks.documents

    def with_another(*arguments, **named):
        def change(group):
            tokens = group["targets"]
            return group | {"targets": tf.concat([tokens[:-1], [65636]], 0)}

        return documents(*arguments, **named).map(change)

    monkeypatch.setattr(writer.tasks, "documents", with_another)
    with pytest.raises(
        RunFailed, match="the token id 65636, but .* bytes has only the ids 0 to 258"
    ):
        write_blocks(TextData(data_dir), str(tmp_path / "out"))


@pytest.mark.parametrize("wrong", [259, 65636, -1])
def test_tokens_of_a_document_are_of_the_vocabulary(wrong):
    identity = manifests.Identity("", "", "bytes", "", 259, None, documents_per_group=1)
    tokens = writer.stored(np.array([1, 258, 0], np.int32), identity, "text")
    assert tokens.dtype == np.uint16 and tokens.tolist() == [1, 258, 0]
    with pytest.raises(RunFailed, match=f"text contains the token id {wrong}, but"):
        writer.stored(np.array([1, wrong, 0], np.int32), identity, "text")


@pytest.mark.parametrize("values", [[2**16], [-1], [1.5]])
def test_a_value_that_does_not_fit_is_never_written(tmp_path, values):
    array = storage.ArrayWriter(str(tmp_path / "array"), np.dtype(np.uint16), compress=False)
    array.append(np.array([0, 2**16 - 1]))
    with pytest.raises(ValueError, match="a value does not fit into uint16"):
        array.append(np.array(values))


def test_the_preprocessing_is_the_one_that_its_name_says(data_dir, tmp_path):
    """If this fails, the same text is now tokenised differently.

    Rename identity.PREPROCESSING first, so that sets written before are refused, and only then
    write the new digest here.
    """
    digest = hashlib.sha256()
    for number, vocabulary in enumerate(("bytes", MODEL)):
        output = tmp_path / str(number)
        write_blocks(TextData(data_dir, vocabulary=vocabulary), str(output), splits=["train"])
        for array in (TOKENS, BYTE_COUNTS):
            digest.update(stream_of(output, array).tobytes())
    named = (manifests.PREPROCESSING, digest.hexdigest()[:16])
    assert named == (
        "skip documents that are empty, undecodable or over 16,777,216 bytes, "
        "append end of document; 1",
        "c176dbfc6fe3dc80",
    )


def test_any_local_name_will_do(blocks, tmp_path):
    """Names may even contain characters with a meaning in a URL."""
    odd = tmp_path / "100%41 #1?x=a b&c"
    blocks.rename(odd)
    assert all_rows(odd).any()
    writing = storage.ArrayWriter(str(odd / "array #2"), np.dtype(np.int64), compress=True)
    writing.append(np.arange(3))
    writing.close()
    read = storage.open_array(str(odd / "array #2"), np.dtype(np.int64), 3, compress=True)
    assert (odd / "array #2").is_dir() and read.read().result().tolist() == [0, 1, 2]


def test_names_are_from_here_or_from_the_top(blocks, monkeypatch):
    monkeypatch.chdir(blocks)
    held = manifests.read_json("./manifest.json")
    assert held is not None and manifests.read_json("manifest.json") == held
    assert manifests.read_json("/no such file.json") is None


def test_a_mixture_is_refused(data_dir, tmp_path):
    data = TextData(data_dir, mixture=(("c4/en:3.1.0", 1.0), ("other:1.0.0", 1.0)))
    with pytest.raises(UserError, match="(?s)contain a single data set.*separately"):
        write_blocks(data, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.ci
def test_unknown_tokens_are_counted_and_told(tmp_path, capsys):
    from fire_lm.data.corpora import c4_writer

    texts = {f"text {n}": b"{ some words } ~ " * 9 + b"%d" % n for n in range(20)}
    c4_writer.write(tmp_path / "text", {"train": texts, "validation": {"x": b"some words"}})
    output = tmp_path / "out"
    data_dir = f"--data_dir={tmp_path / 'text'}"
    command = ["corpus", "blocks", data_dir, f"--vocabulary={MODEL}", f"--output={output}"]
    assert cli.main([*command, "--parts=2"]) == 0
    unknown = stream_of(output, TOKENS) == 2  # for this model
    blocks = Blocks(str(output), MODEL)
    share = blocks.unknown_share("train")
    assert share == unknown.mean() > 0.05
    assert blocks.unknown_share("validation") == 0.0
    said = capsys.readouterr().out
    assert f"{share:.1%} of the train tokens of c4/en:3.1.0 are unknown to the vocabulary" in said
    assert said.count("warning: ") == 1
    with pytest.raises(UserError, match="have no split 'test'"):
        blocks.unknown_share("test")


def test_parts_are_those_of_the_source_and_lose_nothing(data_dir, whole, tmp_path):
    manifest = write_blocks(TextData(data_dir), str(tmp_path / "out"), parts=3)
    assert [len(parts) for parts in manifest.splits.values()] == [3, 3]

    def documents(output):
        tokens = stream_of(output, TOKENS)
        return sorted(part.tobytes() for part in np.split(tokens, np.flatnonzero(tokens == 1) + 1))

    assert documents(tmp_path / "out") == documents(whole)


def test_writing_again_does_nothing(blocks, data_dir):
    before = {path: path.stat().st_mtime_ns for path in blocks.rglob("*") if path.is_file()}
    write_blocks(TextData(data_dir), str(blocks))
    assert before == {path: path.stat().st_mtime_ns for path in blocks.rglob("*") if path.is_file()}


@pytest.mark.ci
def test_an_interrupted_writing_goes_on_with_the_next_part(data_dir, tmp_path, monkeypatch):
    output, write_arrays = tmp_path / "out", writer._write_arrays
    wrote = []

    def write(job, progress, dies_at=None):
        wrote.append((job.split, job.index))
        if len(wrote) == dies_at:
            write_arrays(job, lambda documents: 1 / 0)  # fails after the first group
        return write_arrays(job, progress)

    monkeypatch.setattr(writer, "_write_arrays", functools.partial(write, dies_at=3))
    with pytest.raises(ZeroDivisionError):
        write_blocks(TextData(data_dir), str(output), parts=4)
    with pytest.raises(UserError, match="no complete blocks in .*written last"):
        all_rows(output)
    monkeypatch.setattr(writer, "_write_arrays", write)
    write_blocks(TextData(data_dir), str(output), parts=4)
    rest = [("train", 2), ("train", 3), *(("validation", index) for index in range(4))]
    assert wrote == [("train", 0), ("train", 1), ("train", 2), *rest]
    write_blocks(TextData(data_dir), str(tmp_path / "at_once"), parts=4)
    assert np.array_equal(stream_of(output, TOKENS), stream_of(tmp_path / "at_once", TOKENS))


@pytest.mark.ci
@pytest.mark.parametrize("parts", [1, 3])
def test_a_short_source_leaves_no_part_that_hinders_the_next_try(data_dir, tmp_path, parts):
    source = Path(shutil.copytree(data_dir, tmp_path / "text"))
    file = sorted(source.glob("c4/en/3.1.0/c4-train.tfrecord*"))[1]
    whole = file.read_bytes()
    file.write_bytes(b"")
    data, output = TextData(str(source)), str(tmp_path / "out")
    with pytest.raises(RunFailed, match="Reading c4/en:3.1.0 .* contained only"):
        write_blocks(data, output, parts=parts)
    file.write_bytes(whole)
    manifest = write_blocks(data, output, parts=parts)
    assert sum(part.documents for part in manifest.splits["train"]) == len(TRICKY)


@pytest.mark.ci
def test_parts_of_another_number_of_documents_are_told(data_dir, tmp_path):
    """An earlier version, which read a damaged source to its end, could leave such parts."""
    output = tmp_path / "out"
    write_blocks(TextData(data_dir), str(output), parts=2)
    (output / "manifest.json").unlink()
    part = str(output / "train" / "00001-of-00002" / "part.json")
    content = manifests.read_json(part)
    assert content is not None
    content["part"]["documents"] -= 1
    manifests.write_json(part, content)
    with pytest.raises(
        RunFailed, match=f"(?s)contains {len(TRICKY) - 1} documents.*Remove"
    ) as told:
        write_blocks(TextData(data_dir), str(output), parts=2)
    assert "write the rest" not in str(told.value)
    shutil.rmtree(output / "train")
    write_blocks(TextData(data_dir), str(output), parts=2)


def test_a_split_can_be_added(data_dir, tmp_path):
    output = str(tmp_path / "out")
    write_blocks(TextData(data_dir), output, splits=["validation"])
    before = open_set(output, "").splits
    write_blocks(TextData(data_dir), output, splits=["train"])
    manifest = open_set(output, "")
    assert set(manifest.splits) == {"train", "validation"}
    assert manifest.splits["validation"] == before["validation"]


def other_text(folder: Path) -> str:
    from fire_lm.data.corpora import c4_writer

    c4_writer.write(folder, {split: {"x": b"Another text."} for split in ("train", "validation")})
    return str(folder)


def test_other_blocks_are_never_overwritten(blocks, data_dir, tmp_path):
    def files():
        return {path: path.read_bytes() for path in blocks.rglob("*") if path.is_file()}

    before = files()
    for data, parts, complaint in (
        (TextData(data_dir, vocabulary=MODEL), None, "contains other blocks: their vocabulary"),
        (TextData(other_text(tmp_path / "other")), None, "written from different text"),
        (TextData(data_dir), 2, r"is 1, not 2"),
    ):
        with pytest.raises(UserError, match=complaint):
            write_blocks(data, str(blocks), parts=parts)
    (blocks / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="contains notes.txt, which"):
        write_blocks(TextData(data_dir), str(blocks))
    (blocks / "notes.txt").unlink()
    assert files() == before


def test_the_vocabulary_is_known_by_its_content(data_dir, tmp_path):
    write_blocks(TextData(data_dir, vocabulary=MODEL), str(tmp_path / "out"), splits=["train"])
    moved = shutil.copy(MODEL, tmp_path / "renamed.model")
    data = Blocks(str(tmp_path / "out"), str(moved))
    assert data.vocabulary_size() == open_set(data.path, "").identity.vocabulary_size
    with open(moved, "ab") as file:
        file.write(b" ")
    with pytest.raises(UserError, match="its SHA-256 differs"):
        data.vocabulary_size()


def test_the_command(data_dir, tmp_path, capsys):
    output = tmp_path / "out"
    command = ["corpus", "blocks", f"--data_dir={data_dir}", f"--output={output}"]
    assert cli.main([*command, "--splits=train", "--parts=2"]) == 0
    said = capsys.readouterr().out
    assert f"[{'#' * 20}] {len(TRICKY)}/{len(TRICKY)}  documents" in said
    assert f"train: {len(TRICKY)} documents (3 of them empty, undecodable or huge)" in said
    assert f"--gin_file=configs/data/blocks.gin --gin.DATA_DIR={output}" in said
    assert list(json.loads((output / "manifest.json").read_text())["splits"]) == ["train"]


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["blocks", "--data_dir=x"], "are required: --output"),
        (["--data_dir=x", "--output=y"], "unknown argument --output"),
        (["--data_dir=x", "--parts=2"], "unknown argument --parts"),
        (["blocks", "--data_dir=x", "--output=y", "--parts=0"], "not a whole number of 1"),
        (["blocks", "--data_dir=x", "--output=y", "--runner_options=--a=1"], "add --runner"),
        (["blocks", "--data_dir=nowhere", "--output=y"], "No data set c4/en:3.1.0 in"),
        (["blocks", "--data_dir=x", "--output=memory://y"], "local path nor a gs:// or s3:// path"),
        (
            ["blocks", "--data_dir=nowhere", "--output=y", "--vocabulary=gone"],
            "No data set|not fou",
        ),
    ],
)
def test_a_command_that_cannot_work(arguments, complaint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["corpus", *arguments]) == 2
    said = capsys.readouterr().err
    assert any(part in said for part in complaint.split("|")), said
    assert len(said.strip().splitlines()) <= 3 and not list(tmp_path.iterdir())
