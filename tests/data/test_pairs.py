"""Pairs of an input and a target in a file of JSON lines: the split, the errors, the rows."""

import hashlib
import json
import random
import shutil

import numpy as np
import pytest

from fire_lm.data import Pairs, train_iterator
from fire_lm.data.pairs import longest_target, read_pairs, splits_of
from fire_lm.data.tokens import decode, encode
from fire_lm.errors import UserError
from fire_lm.tasks.metrics import ExactMatch, Identical

EXAMPLES = [(f"question {n}", "ab" * (n % 3 + 1)) for n in range(100)]


def line(inputs, targets, **more):
    return json.dumps({"inputs": inputs, "targets": targets, **more}) + "\n"


def written(path, examples=EXAMPLES):
    path.write_text("".join(line(*example) for example in examples))
    return path


def data(path, **changed):
    return Pairs(**({"file": str(path), "target_length": 7, "shuffle_buffer": 1} | changed))


def texts(pairs):
    return [(pair.inputs, pair.targets) for pair in pairs]


def test_a_hash_of_the_input_splits_the_pairs_whatever_their_order(tmp_path):
    splits = splits_of(data(written(tmp_path / "a.jsonl"), validation_share=0.2))
    expected = [
        (source, target)
        for source, target in EXAMPLES
        if int(hashlib.sha256(source.encode()).hexdigest()[:16], 16) < 0.2 * 2**64
    ]
    assert texts(splits["validation"]) == expected and 10 < len(expected) < 30
    assert sorted(texts(splits["train"]) + expected) == sorted(EXAMPLES)
    shuffled = random.Random(0).sample(EXAMPLES, 50)
    of_half = splits_of(data(written(tmp_path / "b.jsonl", shuffled), validation_share=0.2))
    assert set(texts(of_half["validation"])) == {*expected} & {*shuffled}
    # Other targets of an input follow it to its split, so no input is both trained on and scored.
    doubled = [*EXAMPLES, *((source, "other") for source, _ in EXAMPLES)]
    of_both = splits_of(data(written(tmp_path / "c.jsonl", doubled)))
    sides = [{pair.inputs for pair in of_both[split]} for split in ("train", "validation")]
    assert not sides[0] & sides[1]


GOOD = line("a", "b").encode()


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "there is no file {file}: give a file with a line"),
        (b"", "{file} is empty"),
        (b"\n \n", "{file} is empty"),
        (GOOD + b"caf\xe9\n", "{file}, line 2, is not UTF-8: save the file as UTF-8"),
        (GOOD + b"\n[1, 2\n", "{file}, line 3, is not JSON: each line must be"),
        (b"[" * 100_000, "{file}, line 1, is not JSON"),
        (b"[1, 2]\n", "{file}, line 1, is not an object"),
        (b'{"inputs": "a", "target": "b"}', "line 1, has no field 'targets', only inputs, target"),
        (b"{}", "line 1, has no field 'inputs', only no other field"),
        (GOOD + b'{"inputs": "a", "targets": 3}', "{file}, line 2: targets is 3: it must be text"),
        (GOOD + b'{"inputs": " ", "targets": "b"}', "{file}, line 2: inputs is empty"),
        (
            GOOD + b'{"inputs": "a", "targets": "\\ud800"}',
            "line 2: targets has half of a surrogate",
        ),
        (GOOD, "{file} has too few examples: with 1 pair and Pairs.validation_share 0.05"),
        (GOOD * 9, "{file} has too few examples: with 9 pairs"),
    ],
)
def test_a_file_that_holds_no_pairs_is_refused_in_one_or_two_lines(content, words, tmp_path):
    file = tmp_path / "faq.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError) as told:
        splits_of(data(file))
    said = str(told.value)
    assert words.replace("{file}", str(file)) in said and len(said.splitlines()) <= 2, said


def test_a_folder_and_a_share_that_splits_nothing_are_refused(tmp_path):
    with pytest.raises(UserError, match="cannot read the pairs in"):
        read_pairs(str(tmp_path))
    for share in (0, 1, float("nan")):
        with pytest.raises(UserError, match="validation_share is .*: it must be between 0 and 1"):
            data(tmp_path, validation_share=share)


def test_the_share_that_an_error_suggests_splits_the_pairs(tmp_path):
    file = written(tmp_path / "few.jsonl", EXAMPLES[1:6])
    with pytest.raises(UserError, match="too few examples: with 5 pairs") as told:
        splits_of(data(file))
    share = float(str(told.value).rpartition("validation_share=")[2])
    assert all(splits_of(data(file, validation_share=share)).values())


def test_a_changed_file_is_refused_and_a_moved_one_is_not(tmp_path):
    file = written(tmp_path / "faq.jsonl")
    saved = data(file, sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    moved = shutil.copy(file, tmp_path / "moved.jsonl")
    assert splits_of(data(moved, sha256=saved.sha256)) == splits_of(saved)
    with file.open("a") as lines:
        lines.write(line("one more", "x"))
    with pytest.raises(UserError, match="has changed: its SHA-256 is not"):
        splits_of(saved)


def test_other_fields_blank_lines_and_line_ends_of_windows_are_ignored(tmp_path):
    file = tmp_path / "faq.v2.jsonl"
    text = "\ufeff" + line("a", "bé", source="x") + "\n" + line("c", "d")
    file.write_bytes(text.replace("\n", "\r\n").encode())
    assert [(pair.line, *texts([pair])[0]) for pair in read_pairs(str(file))] == [
        (1, "a", "bé"), (3, "c", "d"),
    ]  # fmt: skip
    assert data(file).name == "faq" and longest_target(data(file)) == 3


@pytest.mark.parametrize(
    "file, name", [("my-faq (2).jsonl", "my_faq__2_"), ("für.jsonl", "für"), (".jsonl", "pairs")]
)
def test_any_name_of_a_file_names_a_task(file, name, tmp_path):
    (task,) = data(written(tmp_path / file)).task_examples(split="validation", longest=30)
    assert task.name == name


def test_a_name_that_seqio_does_not_allow_is_refused(tmp_path):
    with pytest.raises(UserError, match="Pairs.name is 'my-faq': it must consist of letters"):
        data(tmp_path / "faq.jsonl", name="my-faq")


def test_every_training_pair_is_a_row_and_the_position_belongs_to_the_file(tmp_path):
    file = written(tmp_path / "faq.jsonl")
    pairs = splits_of(data(file))
    reading = dict(length=24, batch_size=8, seed=0)
    iterator = train_iterator(data(file), **reading)
    rows, seen = {}, []
    for _ in range(-(-len(pairs["train"]) // 8)):
        batch = next(iterator)
        for ids, weights in zip(batch["targets"], batch["weights"], strict=True):
            rows[tuple(map(int, ids))] = list(map(int, weights))
            seen.append(decode(data(file), ids))
    for source, target in texts(pairs["train"]):
        row = [*encode(data(file), source), 1, *encode(data(file), target), 1]
        weights = [0] * (len(source) + 1) + [1] * (len(target) + 1)
        padding = [0] * (24 - len(row))
        assert rows.pop((*row, *padding)) == [*weights, *padding]
    assert not rows
    in_order = [source + target for source, target in texts(pairs["train"])]
    assert seen[: len(in_order)] != in_order, "a file may be sorted"
    state, rest = iterator.get_state(), next(iterator)
    resumed = train_iterator(data(file), **reading)
    resumed.set_state(state)
    np.testing.assert_array_equal(next(resumed)["targets"], rest["targets"])
    with file.open("a") as lines:
        lines.write("\n")
    with pytest.raises(UserError, match="was saved with SHA-256 of the pairs"):
        train_iterator(data(file), **reading).set_state(state)


def test_a_file_that_is_removed_during_a_run_does_not_prevent_a_checkpoint(tmp_path):
    file = written(tmp_path / "faq.jsonl")
    iterator = train_iterator(data(file), length=24, batch_size=8, seed=0)
    next(iterator)
    state = iterator.get_state()
    content = file.read_bytes()
    file.unlink()
    assert iterator.get_state() == state
    file.write_bytes(content + b"\n")  # the run goes on with what it has read
    assert iterator.get_state() == state


def test_the_validation_pairs_are_examples_with_a_strict_and_a_lenient_metric(tmp_path):
    file = written(tmp_path / "faq.jsonl")
    (task,) = data(file).task_examples(split="validation", longest=30)
    pairs = splits_of(data(file))["validation"]
    assert [(one.id, one.answers) for one in task.examples] == [
        (str(pair.line), (pair.targets,)) for pair in pairs
    ]
    assert [metric.names for metric in task.metrics] == [("exact_match",), ("f1",)]
    target = task.examples[0].target
    predictions = [
        task.prediction(text, task.examples[0].fields) for text in (target[0] + " ", "x")
    ]
    assert task.metrics[0]([target] * 2, predictions) == {"exact_match": 50.0}


def test_identical_texts_are_compared_with_their_signs_and_case():
    given = ["-5", "the Fire", "fire ", "fire"]
    references = [["5"], ["fire"], ["fire"], ["water", "fire"]]
    assert Identical()(references, given) == {"exact_match": 50.0}
    assert ExactMatch()(references, given) == {"em": 100.0}, "as SQuAD normalises"
