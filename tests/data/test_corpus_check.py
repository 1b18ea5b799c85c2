"""`corpus check` reports what is read later; the vocabulary of `corpus vocab` loses nothing."""

import dataclasses
import re
import resource
from pathlib import Path

import numpy as np
import pytest

import fire_lm.data
from fire_lm.cli import main
from fire_lm.data import TextData, unknown_warning
from fire_lm.data.spec import CONSTRUCTIONS
from fire_lm.measures.measurements import count
from fire_lm.measures.protocols import windows

LENGTHS = (32, 64, 96, 256)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> str:
    """Write texts of 3 to 600 bytes, one of them in both splits and one twice in train."""
    from fire_lm.data.corpora import c4_writer

    random = np.random.default_rng(0)
    words = [f"{i * 7919 % 4099:x} " for i in range(300)]

    def texts(split: str, count: int) -> dict[str, bytes]:
        drawn = (random.choice(words, random.integers(1, 120)) for _ in range(count))
        return {f"{split}/{i}": "".join(w).encode() for i, w in enumerate(drawn)}

    train, validation = texts("train", 90), texts("validation", 40)
    train["train/again"] = train["train/3"]
    validation["validation/leaked"] = train["train/4"]
    folder = tmp_path_factory.mktemp("checked")
    c4_writer.write(folder, {"train": train, "validation": validation | {"empty": b" "}})
    return str(folder)


@pytest.fixture(scope="module")
def vocabulary(data_dir, tmp_path_factory) -> str:
    output = tmp_path_factory.mktemp("vocabulary") / "deep" / "lossless.model"
    arguments = [f"--data_dir={data_dir}", "--size=400", f"--output={output}"]
    assert main(["corpus", "vocab", *arguments]) == 0
    return str(output)


@pytest.mark.ci
@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_the_rows_are_those_that_are_read(data_dir, construction):
    from fire_lm.data.on_the_fly.survey import row_contents, survey

    data = TextData(data_dir, construction=construction)
    contents = survey(data, "validation", 10**6)
    text = fire_lm.data.scoring_text(data, length=max(LENGTHS), num_sequences=10**6)
    for forecast in row_contents(construction, contents.tokens, LENGTHS):
        counted = count(text, windows("full", forecast.length, max(LENGTHS)))
        assert (forecast.sequences, forecast.tokens) == counted[:2]
        ends = int(np.sum(text.targets == 1))
        if construction in ("cut", "packed"):
            assert forecast.documents == ends and forecast.tokens == contents.tokens.sum()
            assert forecast.padding > 0.01
        else:
            assert forecast.padding == 0 and forecast.documents >= ends
    broken = row_contents(construction, contents.tokens // 2, LENGTHS)
    assert broken != row_contents(construction, contents.tokens, LENGTHS)


@pytest.mark.parametrize(
    "construction, documents", [("concat", 3), ("cut", 4), ("packed", 4), ("long_documents", 1)]
)
def test_the_documents_are_those_with_a_token_in_a_row(construction, documents):
    from fire_lm.data.on_the_fly.survey import row_contents

    of_19_tokens = np.array([5, 3, 9, 2])
    assert [row.documents for row in row_contents(construction, of_19_tokens, (4, 8))] == [
        documents
    ] * 2
    shorter, _ = row_contents(construction, of_19_tokens, (6, 8))  # rows of 6 and 2 tokens
    assert (shorter.tokens, shorter.sequences) == {
        "concat": (16, 4),
        "cut": (19, 6),
        "packed": (19, 5),
        "long_documents": (8, 2),
    }[construction]
    nothing = row_contents(construction, of_19_tokens[:0], (8,))
    assert (nothing[0].sequences, nothing[0].documents) == (0, 0)


def test_contents_are_counted(data_dir):
    from fire_lm.data.on_the_fly import tasks
    from fire_lm.data.on_the_fly.survey import survey

    data = TextData(data_dir)
    train, validation = (survey(data, split, 10**6) for split in ("train", "validation"))
    assert (len(train.tokens), train.duplicates, train.skipped) == (91, 1, 0)
    assert (len(validation.tokens), validation.duplicates, validation.skipped) == (41, 0, 1)
    assert len(train.digests & validation.digests) == 1
    texts = [text for group, _ in tasks.document_groups(data, "train") for text in group]
    assert train.text_bytes == sum(map(len, texts))
    assert train.tokens.tolist() == [len(text) + 1 for text in texts]
    assert train.whole and not survey(data, "train", 16).whole


def test_the_command_prints_tables_and_draws(data_dir, tmp_path, capsys):
    picture = tmp_path / "lengths.png"
    arguments = [f"--data_dir={data_dir}", "--lengths=32,64", f"--output={picture}"]
    assert main(["corpus", "check", *arguments]) == 0
    out = capsys.readouterr().out
    assert re.search(r"train +91 +0 +1 ", out) and re.search(r"validation +41 +1 +0 ", out)
    assert "texts in both train and validation: 1" in out
    assert len(re.findall(rf"^ +({'|'.join(CONSTRUCTIONS)}) ", out, re.MULTILINE)) == 8
    assert picture.read_bytes().startswith(b"\x89PNG") and "warning" not in out
    assert "the validation split in rows of 64 tokens" in out
    assert main(["corpus", "check", f"--data_dir={data_dir}", "--lengths=1,64"]) == 2
    assert main(["corpus", "check", f"--data_dir={tmp_path}"]) == 2
    assert "No data set" in capsys.readouterr().err


def test_the_picture_has_a_place_before_anything_is_read(data_dir, tmp_path, capsys, monkeypatch):
    from fire_lm.data.on_the_fly import survey

    surveyed = survey.survey
    for output, told in ((tmp_path, "it is a folder"), (Path(__file__) / "y.png", "Cannot write")):
        monkeypatch.setattr(survey, "survey", lambda *_: pytest.fail("the text was read"))
        assert main(["corpus", "check", f"--data_dir={data_dir}", f"--output={output}"]) == 2
        assert told in capsys.readouterr().err
    monkeypatch.setattr(survey, "survey", surveyed)
    picture = tmp_path / "new" / "dir" / "y.png"
    arguments = [f"--data_dir={data_dir}", "--documents=20", f"--output={picture}"]
    assert main(["corpus", "check", *arguments]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    told = "texts in both train and validation (among the documents that were read): "
    assert told in capsys.readouterr().out


def test_the_vocabulary_loses_nothing(vocabulary, data_dir):
    """Text survives seqio and TensorFlow, as used in training, and every byte is counted."""
    from fire_lm.data import vocabularies

    loaded = vocabularies.load(vocabulary)
    special = (loaded.pad_id, loaded.eos_id, loaded.tokenizer.unk_id())
    assert special == (0, 1, 2) and TextData("", vocabulary=vocabulary).vocabulary_size() == 400
    strange = [
        "plain words", "  indented\n\n\ttabs \t\n", "\\frac{a}{b} ~ < >",
        "naïve Straße 漢字 😀",
        "trailing space ", " leading", "a\0b", "\u200b\ufeff\u3000", "ﬁ ① e\u0301", "\r\n",
    ]  # fmt: skip
    tokenize = vocabularies.tokenizer_with_byte_counts(loaded)
    tokens, counts = tokenize([text.encode() for text in strange])
    for text, ids, size in zip(strange, tokens.to_list(), counts.to_list(), strict=True):
        assert loaded.decode(ids) == text and loaded.tokenizer.EncodeAsIds(text) == ids
        assert sum(size) == len(text.encode()) and min(size) >= 0
        assert not {0, 1, 2} & set(ids)
    lossy = vocabularies.load(str(_test_model()))
    assert any(lossy.decode(lossy.tokenizer.EncodeAsIds(text)) != text for text in strange)
    data = TextData(data_dir, vocabulary=vocabulary)
    assert data.unknown_share("train") == 0.0


def _test_model() -> Path:
    import seqio

    folder = Path(seqio.__file__).parent / "test_data" / "sentencepiece"
    return folder / "sentencepiece.model"


def test_unknown_text_is_measured_and_told(data_dir, capsys, tmp_path):
    from fire_lm.data import vocabularies
    from fire_lm.data.corpora import c4_writer

    braces = b"{ some words } ~ " * 30
    c4_writer.write(tmp_path, {"train": {str(i): braces + b"%d" % i for i in range(20)}})
    data = TextData(str(tmp_path), vocabulary=str(_test_model()))
    share = data.unknown_share("train")
    processor = vocabularies.load(data.vocabulary).tokenizer
    ids = processor.EncodeAsIds(braces.decode())
    assert (
        share == pytest.approx(ids.count(processor.unk_id()) / len(ids), abs=0.02) and share > 0.05
    )
    told = unknown_warning(share, "train", data)
    assert f"{share:.1%} of the train tokens" in told and told.count("\n") == 1
    assert unknown_warning(0.01, "train", data) == ""
    scored = fire_lm.data.scoring_text(data, length=32, num_sequences=9, split="train")
    assert scored.unknown == np.mean(scored.targets[scored.targets != 0] == processor.unk_id())
    plain = dataclasses.replace(data, vocabulary="bytes")
    assert plain.unknown_share("train") == 0.0


def test_documents_that_the_vocabulary_empties_are_left_out_as_in_training(tmp_path):
    """Exotic white space is text to us, but SentencePiece makes no token of it."""
    from fire_lm.data.corpora import c4_writer
    from fire_lm.data.on_the_fly.survey import survey

    texts = {f"blank {i}": b" " for i in range(40)}  # complete groups of blank documents
    texts |= {"wide": "\u3000\u2003".encode(), "wide 2": "\u3000".encode()}
    texts |= {f"{i}": b"%d words" % i for i in range(40)}
    c4_writer.write(tmp_path, {"train": texts})
    data = TextData(str(tmp_path), vocabulary=str(_test_model()), construction="cut")
    found = survey(data, "train", 10**6)
    scored = fire_lm.data.scoring_text(data, length=32, num_sequences=10**6, split="train")
    assert (len(found.tokens), found.skipped) == (40, scored.skipped) == (40, 42)
    assert found.tokens.sum() == (scored.targets != 0).sum()
    assert found.text_bytes == scored.byte_counts.sum()
    assert found.duplicates == 0 and len(found.digests) == 40


def test_the_reading_of_contents_is_traced_once(data_dir, monkeypatch):
    """Groups are smaller where documents are skipped and at the end, but cause no new trace."""
    from fire_lm.data import vocabularies
    from fire_lm.data.on_the_fly import survey

    traced = []
    monkeypatch.setattr(
        vocabularies,
        "tokenizer",
        lambda vocabulary: lambda text: traced.append(text.shape) or vocabularies._bytes(text)[0],
    )
    contents = survey.survey(TextData(data_dir), "validation", 10**6)
    assert len(traced) == 1 and len(contents.tokens) == 41
    assert traced[0].as_list() == [None]


def test_a_vocabulary_of_text_and_a_task_can_split_digits(tmp_path, capsys):
    from fire_lm.data import vocabularies
    from fire_lm.data.corpora import c4_writer

    text = "sesquipedalian pages of 123123 words "
    c4_writer.write(tmp_path, {"train": {str(i): (text * (i % 9 + 1)).encode() for i in range(90)}})
    lines = ["--suite=long_eval", "--tasks=lines", "--sizes=2", "--train_size=2", "--rows=90"]
    assert main(["corpus", "tasks", f"--data_dir={tmp_path}", *lines, "--examples=2"]) == 0
    pieces = {}
    for name, flags in {"single": ["--split_digits"], "merged": []}.items():
        output = tmp_path / f"{name}.model"
        names = "c4/en:3.1.0,long_eval_lines:1.0.0"
        command = ["corpus", "vocab", f"--data_dir={tmp_path}", f"--tfds_name={names}"]
        assert main([*command, "--size=380", f"--output={output}", *flags]) == 0
        tokenizer = vocabularies.load(str(output)).tokenizer
        pieces[name] = [tokenizer.IdToPiece(i) for i in range(259, 380)]
    assert "of c4/en:3.1.0, long_eval_lines:1.0.0" in capsys.readouterr().out
    assert {"qui", "CONTENT"} <= set(pieces["single"])  # of the text, and of the task
    digits = {
        name: [piece for piece in found if len(piece) > 1 and any(map(str.isdigit, piece))]
        for name, found in pieces.items()
    }
    assert digits["merged"] and not digits["single"]


def test_data_sets_share_the_text_of_a_vocabulary(monkeypatch):
    """They are read in equal parts; the next ones get what a small one leaves."""
    from fire_lm.data.corpora import vocabulary_training

    sizes = {"large": 900, "small": 100}

    def groups(data: TextData, split: str, features: tuple[str, ...]):
        yield from (([data.tfds_name.encode() * 2], 0) for _ in range(sizes[data.tfds_name] // 10))

    monkeypatch.setattr(vocabulary_training.tasks, "document_groups", groups)
    monkeypatch.setattr(vocabulary_training.metadata, "text_features", lambda data: ("text",))
    for names, expected in {
        ("large", "large"): [300, 300],
        ("small", "large"): [100, 500],
        ("large", "small"): [300, 100],
    }.items():
        data = [TextData("", name) for name in names]
        read = vocabulary_training._read(data, 600, lambda done, total: None)
        assert [sum(map(len, texts)) for texts in read] == expected


def test_inputs_and_targets_of_a_task_are_text(tmp_path):
    from fire_lm.data.on_the_fly import metadata, tasks

    lines = ["--suite=long_eval", "--tasks=lines", "--sizes=2", "--train_size=1", "--rows=40"]
    assert main(["corpus", "tasks", f"--data_dir={tmp_path}", *lines, "--examples=2"]) == 0
    data = TextData(str(tmp_path), "long_eval_lines:1.0.0")
    features = metadata.text_features(data)
    assert features == ("inputs", "targets")
    texts = [text for group, _ in tasks.document_groups(data, "train", features) for text in group]
    assert len(texts) == 80
    for inputs, targets in zip(texts[::2], texts[1::2], strict=True):
        assert b"REGISTER_CONTENT is <" + targets + b">" in inputs


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--size=259"], "--size 259 is too small"),
        (["--size=260"], "raise --size"),
        (["--size=32000"], "Cannot train 32000 pieces on"),
        (["--tfds_name=other:1.0.0"], "The directory contains c4/en:3.1.0"),
        (["--tfds_name=c4/en:3.1.0,other:1.0.0"], "The directory contains c4/en:3.1.0"),
    ],
)
def test_vocabularies_that_cannot_be_trained(data_dir, tmp_path, arguments, told, capsys):
    output = tmp_path / "some.model"
    command = ["corpus", "vocab", f"--data_dir={data_dir}", f"--output={output}"]
    assert main([*command, *arguments]) == 2
    assert told in capsys.readouterr().err and not output.exists()


def test_a_vocabulary_that_cannot_be_is_refused_before_text_is_read(
    data_dir, tmp_path, monkeypatch, capsys
):
    reading = "fire_lm.data.on_the_fly.tasks.document_groups"
    monkeypatch.setattr(reading, lambda *_: pytest.fail("text is read"))
    (tmp_path / "file").write_text("")
    command = ["corpus", "vocab", f"--data_dir={data_dir}"]
    assert main([*command, f"--output={tmp_path}/v", "--size=2000000000"]) == 2
    assert (
        "--size 2000000000 is too large: SentencePiece produces at most 1,000,000"
        in capsys.readouterr().err
    )
    assert main([*command, f"--output={tmp_path}/file/v"]) == 2
    assert "/file is not a folder" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused_before_text_is_read(
    data_dir, tmp_path, monkeypatch, capsys
):
    reading = "fire_lm.data.on_the_fly.tasks.document_groups"
    monkeypatch.setattr(reading, lambda *_: pytest.fail("text is read"))
    monkeypatch.setattr("os.access", lambda path, mode: str(path) != str(tmp_path))
    assert main(["corpus", "vocab", f"--data_dir={data_dir}", f"--output={tmp_path}/v"]) == 2
    assert f"{tmp_path} is not writable" in capsys.readouterr().err


def test_a_disk_that_fills_leaves_no_part_of_a_vocabulary(data_dir, tmp_path, monkeypatch, capsys):
    from fire_lm.data.corpora import vocabulary_training

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    full = lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # noqa: E731
    monkeypatch.setattr(vocabulary_training, "_verify", full)
    output = tmp_path / "some.model"
    try:
        code = main(
            ["corpus", "vocab", f"--data_dir={data_dir}", f"--output={output}", "--size=300"]
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2 and f"Cannot write {output}: File too large" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_vocabulary_is_never_written_over(vocabulary, data_dir, capsys):
    command = ["corpus", "vocab", f"--data_dir={data_dir}", f"--output={vocabulary}", "--size=300"]
    before = Path(vocabulary).read_bytes()
    assert main(command) == 2 and "exists" in capsys.readouterr().err
    assert Path(vocabulary).read_bytes() == before


def test_several_data_sets_need_a_name(tmp_path, capsys):
    found = "one:1.0.0, two/en.noclean:1.0.0"
    for name in ("one", "two/en.noclean"):
        (tmp_path / name / "1.0.0").mkdir(parents=True)
        (tmp_path / name / "1.0.0" / "dataset_info.json").write_text("{}")
    vocab = ["corpus", "vocab", "--output=x"]
    for verb in (["corpus", "check"], ["corpus", "blocks", "--output=x"], ["bench", "data"], vocab):
        assert main([*verb, f"--data_dir={tmp_path}"]) == 2
        told = capsys.readouterr().err
        assert f"contains several data sets ({found}): set --tfds_name=NAME" in told
        assert main([*verb, f"--data_dir={tmp_path}", "--tfds_name=three"]) == 2
        told = capsys.readouterr().err
        assert f"The directory contains {found}: set --tfds_name=NAME" in told
