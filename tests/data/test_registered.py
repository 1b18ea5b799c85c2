"""Registered seqio tasks and mixtures: rows, positions, shards, scoring, and refusals."""

import dataclasses
import importlib
import json
import os
from typing import Any

import numpy as np
import pytest
from sample_text import GOOD, data_dir

import fire_lm.data
from fire_lm.cli import main
from fire_lm.data import SeqioTask, TextData, train_iterator
from fire_lm.data.tokens import decode
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment

__all__ = ["data_dir"]  # a fixture
LINES = [f"line number {number}" for number in range(200)]


@pytest.fixture(scope="module", autouse=True)
def tasks(tmp_path_factory):
    """Import tests/seqio_tasks.py and write the files that it reads."""
    folder = tmp_path_factory.mktemp("lines")
    for split in ("train", "validation"):
        for file in range(2):
            text = "\n".join(LINES[file::2]) + "\n"
            (folder / f"{split}-{file}.txt").write_text(text)
    before = os.environ.get("SEQIO_TASKS_TEXT")
    os.environ["SEQIO_TASKS_TEXT"] = str(folder)
    yield importlib.import_module("seqio_tasks")
    if before is None:
        del os.environ["SEQIO_TASKS_TEXT"]


def batches(data, count, **changed):
    arguments = {"length": 16, "batch_size": 3, "seed": 0} | changed
    iterator = train_iterator(data, **arguments)
    return iterator, [next(iterator)["targets"] for _ in range(count)]


def documents(rows):
    """Return the texts of rows, each of which contains one document."""
    return {decode(TextData("nowhere"), row) for batch in rows for row in batch}


def test_a_task_is_read_as_its_preprocessors_give_it():
    """The task itself appends the end-of-document token, 1, to each line."""
    _, rows = batches(SeqioTask("mine", construction="cut", shuffle_buffer=1), 70, length=32)
    assert documents(rows) == set(LINES)
    _, joined = batches(SeqioTask("mine", shuffle_buffer=1), 40)
    assert all((row != 0).all() for row in joined) and any((row == 1).any() for row in joined)


@pytest.mark.parametrize("name", ["mine", pytest.param("both", marks=pytest.mark.ci)])
def test_a_place_continues_exactly(name):
    data = SeqioTask(name, shuffle_buffer=7)
    whole, _ = batches(data, 11)
    state, expected = whole.get_state(), [next(whole) for _ in range(20)]
    assert len(state) < 60_000
    resumed, _ = batches(data, 3)
    resumed.set_state(state)
    for batch in expected:
        np.testing.assert_array_equal(next(resumed)["targets"], batch["targets"])
    other = train_iterator(SeqioTask("other", shuffle_buffer=7), length=16, batch_size=3, seed=0)
    with pytest.raises(UserError, match="was saved with tfds_name"):
        other.set_state(state)


def test_shards_are_disjoint_and_together_the_text():
    data = SeqioTask("mine", construction="cut", shuffle_buffer=1)
    first, second = (
        documents(batches(data, 40, length=32, shard_index=index, shard_count=2)[1])
        for index in range(2)
    )
    assert not first & second and first | second == set(LINES)


@pytest.mark.ci
def test_a_mixture_is_drawn_at_its_rates_and_can_be_scored():
    text = fire_lm.data.scoring_text(SeqioTask("both"), length=16, num_sequences=8)
    again = fire_lm.data.scoring_text(SeqioTask("both"), length=16, num_sequences=8)
    np.testing.assert_array_equal(text.targets, again.targets)
    # One byte per token, and none for the end-of-document token.
    np.testing.assert_array_equal(text.byte_counts, text.targets > 2)
    assert SeqioTask("both").label() == "both"


def test_a_text_of_ours_is_a_task_of_theirs(data_dir):
    name = fire_lm.data.register_task("sample", TextData(data_dir))
    assert name == "fire_lm:sample"
    _, theirs = batches(SeqioTask(name, construction="cut", shuffle_buffer=1), 60, length=64)
    read = documents(theirs)
    short = {text.decode() for text in GOOD["train"].values() if len(text) < 60}
    assert short and short <= read
    with pytest.raises(UserError, match="already has a task fire_lm:sample"):
        fire_lm.data.register_task("sample", TextData(data_dir))


@pytest.mark.parametrize(
    "data, words",
    [
        (SeqioTask("mane"), "seqio has no Task or Mixture mane. Did you mean mine?"),
        (SeqioTask("mine", feature="text"), "has no feature 'text', only targets"),
        (SeqioTask("two_sided"), "two_sided and would ignore inputs"),
        (SeqioTask("passed"), "is a PassThroughVocabulary"),
        (SeqioTask("mine", use_cached=True), "the task mine is not cached"),
        (SeqioTask("mine", vocabulary="/nowhere.model"), "Vocabulary file not found"),
        (SeqioTask("generated"), "cannot be saved"),
        (
            SeqioTask("mine", vocabulary="hf:x"),
            "\nuse a task with a SentencePiece or byte vocabulary",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(data, words):
    with pytest.raises(UserError) as told:
        next(train_iterator(data, length=16, batch_size=2, seed=0))
    assert words in str(told.value) and len(str(told.value).splitlines()) <= 2


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Write the cache of the task `cached` as `seqio_cache_tasks` does: before the placeholder.

    The examples are those that enter seqio's CacheDatasetPlaceholder.
    """
    import seqio
    import tensorflow as tf

    folder = tmp_path / "cached"
    folder.mkdir()
    with tf.io.TFRecordWriter(str(folder / "train.tfrecord-00000-of-00001")) as file:
        for line in reversed(LINES):  # a different order from the source
            ids = tf.train.Int64List(value=seqio.ByteVocabulary().encode(line))
            features = {"targets": tf.train.Feature(int64_list=ids)}
            example = tf.train.Example(features=tf.train.Features(feature=features))
            file.write(example.SerializeToString())
    features = {"targets": {"shape": [None], "dtype": "int32"}}
    info = {"num_shards": 1, "features": features, "seqio_version": seqio.__version__}
    (folder / "info.train.json").write_text(json.dumps(info))
    (folder / "stats.train.json").write_text(json.dumps({"examples": len(LINES)}))
    (folder / "COMPLETED").write_text("")
    monkeypatch.setattr("seqio.utils._GLOBAL_CACHE_DIRECTORIES", [])
    return str(tmp_path)


@pytest.mark.ci
def test_a_cached_task_is_read_from_its_cache_and_resumes_exactly(cache):
    settings = {"construction": "cut", "shuffle_buffer": 1}
    data = SeqioTask("cached", use_cached=True, cache_dirs=(cache,), **settings)
    iterator, rows = batches(data, 30, length=32)
    uncached = batches(SeqioTask("cached", **settings), 30, length=32)[1]
    assert documents(rows) < set(LINES)
    assert not all(map(np.array_equal, rows, uncached))  # rows are in the order of the cache
    resumed, _ = batches(data, 2, length=32)
    resumed.set_state(iterator.get_state())
    np.testing.assert_array_equal(next(resumed)["targets"], next(iterator)["targets"])


LONG: dict[str, Any] = {"construction": "long_documents", "shuffle_buffer": 1}


@pytest.mark.parametrize(
    "data, words",
    [
        (SeqioTask("mine", **LONG), "No document in the split 'train' of the registered mine has"),
        (SeqioTask("blank"), "No readable text in the split 'train' of the registered blank"),
    ],
)
def test_a_task_without_a_row_is_refused(data, words):
    with pytest.raises(UserError, match=words):
        next(train_iterator(data, length=64, batch_size=2, seed=0))


def test_a_shard_without_a_row_is_refused():
    data = SeqioTask("even", **LONG)
    arguments = {"length": 4, "batch_size": 2, "seed": 0, "shard_count": 2}
    assert next(train_iterator(data, shard_index=0, **arguments))["targets"].shape == (2, 4)
    with pytest.raises(UserError, match="has at least 4 tokens"):
        next(train_iterator(data, shard_index=1, **arguments))


def test_rows_of_several_epochs_are_no_fault():
    """200 lines have about 3,100 tokens, less than one row of 4,096."""
    iterator = train_iterator(
        SeqioTask("mine", shuffle_buffer=1), length=4096, batch_size=1, seed=0
    )
    assert next(iterator)["targets"].shape == (1, 4096)
    assert iterator.description == "documents of mine through seqio"


def test_unknown_tokens_are_counted_in_short_documents_too(tmp_path, tasks):
    import sentencepiece
    import seqio

    assert SeqioTask("mine", **LONG).unknown_share("train") == 0.0
    prefix = str(tmp_path / "letters")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["line number"] * 9), model_prefix=prefix, vocab_size=15,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, model_type="char", hard_vocab_limit=False,
        minloglevel=2,
    )  # fmt: skip
    model = f"{prefix}.model"
    feature = seqio.Feature(seqio.SentencePieceVocabulary(model))
    tasks.add("letters", features={"targets": feature})
    data = SeqioTask("letters", vocabulary=model, **LONG)
    assert 0.05 < data.unknown_share("train") < 0.2  # the digits


def test_a_split_that_is_not_there():
    with pytest.raises(UserError, match="has no split 'test', only train, validation"):
        fire_lm.data.scoring_text(SeqioTask("mine"), length=8, num_sequences=1, split="test")


def test_values_that_have_no_effect_are_refused():
    with pytest.raises(UserError, match="has no effect without"):
        SeqioTask("mine", cache_dirs=("gs://a",))
    with pytest.raises(UserError, match="must be at least 1"):
        dataclasses.replace(SeqioTask("mine"), shuffle_buffer=0)


FILES = [f"configs/{name}.gin" for name in ("runs/quickstart", "data/seqio", "positions/fire")]


def test_gin_names_the_task():
    bindings = ["MIXTURE_OR_TASK=both", "VOCABULARY=bytes"]
    config = load_experiment(FILES, bindings, imports=["seqio_tasks"])
    assert config.train.data == SeqioTask("both", shuffle_buffer=1000)
    assert "import seqio_tasks" in config.text()
    with pytest.raises(UserError, match="defines no dataclass"):
        load_experiment(FILES, ["MIXTURE_OR_TASK=both"], imports=["json.tool"])


@pytest.mark.ci
def test_a_run_trains_on_a_mixture_and_is_scored(tmp_path, capsys):
    run = tmp_path / "run"
    sizes = "num_layers=1 hidden_size=16 num_heads=1 head_dim=16 mlp_size=16".split()
    bindings = [
        "MIXTURE_OR_TASK=both", "VOCABULARY=bytes", "TRAIN_STEPS=4", "BATCH_SIZE=4",
        "TRAIN_LENGTH=16", "AdamW.warmup_steps=1", "EVAL_LENGTHS=16,32",
        "length_sweep.tokens=1024", *(f"size_tiny.{size}" for size in sizes),
    ]  # fmt: skip
    arguments = [*(f"--gin_file={file}" for file in FILES), "--import=seqio_tasks"]
    arguments += [*(f"--gin.{binding}" for binding in bindings), f"--workdir={run}"]
    assert main(["pretrain", *arguments]) == 0
    assert main(["sweep", str(run)]) == 0, capsys.readouterr().err
    table = (run / "length_sweep.csv").read_text().splitlines()
    assert len(table) == 3 and ",both,validation,concat,full,16," in table[1]
    assert main(["report", str(run), f"--output={tmp_path / 'report'}"]) == 0
    assert "both, concat" in (tmp_path / "report/report.md").read_text()
