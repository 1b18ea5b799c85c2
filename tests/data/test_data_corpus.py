"""The embedded corpus: its content, what it refuses, and that it is never left incomplete."""

import hashlib
import json
import pathlib
import re

import pytest

import fire_lm.data
from fire_lm.data import TextData
from fire_lm.data.corpora import embedded as corpus
from fire_lm.errors import UserError


def documents(count: int = 60) -> list[corpus.Document]:
    return [(f"jax/part/{i}.py", f"# file {i}\n".encode() * 30) for i in range(count)]


UNFIT = [
    ("jax/short.py", b"x = 1\n"),
    ("jax/empty.py", b""),
    ("jax/latin.py", "é".encode("latin-1") * 500),
    ("jax/long.py", b"y = 2\n" * 100_000),
]


def write(folder: pathlib.Path, texts: list[corpus.Document], said: list[str] | None = None):
    messages = [] if said is None else said
    return corpus.write_corpus(str(folder), texts, messages.append)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora") / "deep" / "text"
    return folder, write(folder, documents() + UNFIT)


def test_it_reads_back_as_c4_does(written):
    from fire_lm.data.quiet_tensorflow import tfds, without_their_warnings

    folder, summary = written
    with without_their_warnings():
        builder = tfds.builder("c4/en:3.1.0", data_dir=folder)
    assert isinstance(builder, tfds.core.read_only_builder.ReadOnlyBuilder)
    names = {"text", "url", "content-type", "content-length", "timestamp"}
    assert set(builder.info.features) == names
    found = {
        (example["url"].decode(), example["text"])
        for split in ("train", "validation")
        for example in tfds.as_numpy(builder.as_dataset(split=split))
        if example["content-length"].decode() == str(len(example["text"]))
    }
    assert found == set(documents())
    for split, count in summary.documents.items():
        assert builder.info.splits[split].num_examples == count > 0
    data = TextData(str(folder))
    assert data.label() == "embedded"
    batch = next(fire_lm.data.train_iterator(data, length=16, batch_size=4, seed=0))
    assert batch["targets"].shape == (4, 16)


def test_the_manifest_tells_every_document(written):
    folder, summary = written
    manifest = json.loads((folder / corpus.MANIFEST).read_text())
    assert manifest["name"] == "embedded" and manifest["python"] and manifest["jax"]
    assert manifest["skipped"] == summary.skipped == len(UNFIT)
    expected = {
        path: (corpus.split_of(path), len(content), hashlib.sha256(content).hexdigest())
        for path, content in documents()
    }
    assert expected == {
        entry["path"]: (entry["split"], entry["size"], entry["sha256"])
        for entry in manifest["documents"]
    }
    sizes = {"train": 0, "validation": 0}
    for split, size, _ in expected.values():
        sizes[split] += size
    assert summary.bytes == sizes
    assert sorted(path.name for path in folder.iterdir()) == ["c4", corpus.MANIFEST]
    assert list(folder.parent.iterdir()) == [folder]


def test_a_second_run_does_nothing_and_other_sources_write_anew(tmp_path):
    folder, said = tmp_path / "text", []
    assert write(folder, documents()).written
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    summary = write(folder, reversed(documents()), said)
    assert not summary.written and summary.documents["train"] > 0
    assert "nothing to do" in said[-1]
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert write(folder, documents(70)).written
    next(folder.glob("c4/en/3.1.0/*train*")).unlink()
    assert write(folder, documents(70)).written, "a file was missing"
    assert not write(folder, documents(70)).written


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    """The folder is often on a larger disk than the link."""
    folder, link = tmp_path / "large" / "text", tmp_path / "here" / "text"
    link.parent.mkdir()
    link.symlink_to(folder)
    for count in (60, 70):
        assert write(link, documents(count)).written
        assert link.is_symlink() and list(link.parent.iterdir()) == [link]
        assert not write(folder, documents(count)).written


def test_directories_of_others_are_refused(tmp_path):
    (tmp_path / "c4" / "en").mkdir(parents=True)
    with pytest.raises(UserError, match="contains c4, which `fire-lm corpus` did not write"):
        write(tmp_path, documents())
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="contains thesis.tex"):
        write(other, documents())
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]
    for content in ("{}", "nonsense", '{"name": "mine"}', "[]"):
        forged = tmp_path / "forged"
        forged.mkdir(exist_ok=True)
        (forged / corpus.MANIFEST).write_text(content)
        with pytest.raises(UserError, match="is not a manifest"):
            write(forged, documents())
    mine = tmp_path / "mine"
    write(mine, documents())
    (mine / "notes.txt").write_text("x")
    with pytest.raises(UserError, match="contains notes.txt"):
        write(mine, documents())
    with pytest.raises(UserError, match="local directory"):
        write_to_bucket = "gs://bucket/text"
        corpus.write_corpus(write_to_bucket, documents(), print)
    with pytest.raises(UserError, match="not a readable directory"):
        write(other / "thesis.tex", documents())
    with pytest.raises(UserError, match="Cannot write"):
        write(other / "thesis.tex" / "text", documents())
    with pytest.raises(UserError, match="too few documents"):
        write(tmp_path / "few", documents(1))


@pytest.mark.parametrize("place", ["c4/realnewslike/3.1.0", "c4/en/3.0.1", "c4/en/notes.txt"])
def test_other_data_sets_beside_the_text_are_kept(tmp_path, place):
    folder = tmp_path / "text"
    write(folder, documents())
    (folder / place).mkdir(parents=True)
    inside = folder / place / "dataset_info.json"
    inside.write_text("{}")
    assert not write(folder, documents()).written
    name = re.escape(place.removesuffix("/3.1.0"))
    with pytest.raises(UserError, match=f"contains {name}, which `fire-lm corpus` did not write"):
        write(folder, documents(70))
    assert inside.read_text() == "{}" and list(tmp_path.iterdir()) == [folder]


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    from fire_lm.data.corpora import c4_writer

    real = c4_writer.write

    def stopped(folder, splits):
        real(folder, splits)
        raise KeyboardInterrupt

    monkeypatch.setattr(c4_writer, "write", stopped)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "text", documents())
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    write(tmp_path / "text", documents())
    monkeypatch.setattr(c4_writer, "write", stopped)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "text", documents(70))
    monkeypatch.undo()
    assert not write(tmp_path / "text", documents()).written, "the old text is still whole"


def test_a_label_other_than_embedded(tmp_path):
    assert TextData(str(tmp_path)).label() == "c4"
    assert TextData(str(tmp_path), tfds_name="pg19:0.1.1").label() == "pg19"
    two = TextData(str(tmp_path), mixture=(("wiki40b/en:1.3.0", 1), ("wiki40b/de:1.3.0", 1)))
    assert [part.label() for part in two.parts] == ["wiki40b/en", "wiki40b/de"]
    (tmp_path / corpus.MANIFEST).write_text("{}")
    assert TextData(str(tmp_path)).label() == "embedded"
    assert TextData(str(tmp_path), tfds_name="c4/en").label() == "embedded"
    others = ("pg19:0.1.1", "c4/realnewslike:3.1.0", "c4/en:3.0.1")
    labels = [TextData(str(tmp_path), tfds_name=name).label() for name in others]
    assert labels == ["pg19", "c4/realnewslike", "c4"]


def test_what_every_machine_has():
    texts = dict(corpus.embedded_documents())
    names = set(texts)
    assert {"python/json/decoder.py", "pydoc_data/topics/lambda", "jax/_src/core.py"} <= names
    parts = {part for name in names for part in name.split("/")}
    assert not parts & {"test", "tests", "idle_test", "site-packages", "__pycache__"}
    assert not any("_sysconfigdata" in name or name.startswith("/") for name in names)
    by_split, entries, skipped = corpus._select(texts.items())
    assert len(entries) > 1000 and skipped < 150
    sizes = {split: sum(map(len, held.values())) for split, held in by_split.items()}
    assert sum(sizes.values()) > 15e6
    assert 0.03 < sizes["validation"] / sum(sizes.values()) < 0.10
