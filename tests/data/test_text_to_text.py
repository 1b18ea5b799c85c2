"""Rows of an input and its target: layout, weights, truncation, positions, and refusals.

The expected rows are built here in Python, example by example.
"""

import importlib
import io
import os

import numpy as np
import pytest

from fire_lm.data import TextToText, train_iterator
from fire_lm.data.tokens import encode
from fire_lm.data.truncation import ends_kept
from fire_lm.errors import UserError

EOS = 1
LENGTH, TARGET = 24, 6
# Input lengths range around the available space, target lengths around the longest allowed.
EXAMPLES = [(f"{number:02}" + "abcdefghij"[: number % 7] * (number % 5), "xyzé"[: number % 5]
             + "!" * (number % 4)) for number in range(40)]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def tasks(tmp_path_factory):
    """Import tests/pair_tasks.py and write the files that it reads."""
    folder = tmp_path_factory.mktemp("pairs")
    for split in ("train", "validation"):
        for file in range(2):
            lines = [f"{i}\t{source}\t{target}" for i, (source, target) in enumerate(EXAMPLES)]
            (folder / f"{split}-{file}.txt").write_text("\n".join(lines[file::2]) + "\n")
    os.environ["PAIR_TASKS_TEXT"] = str(folder)
    module = importlib.import_module("pair_tasks")  # may be imported already, with other files
    module.FILES.update({split: f"{folder}/{split}-*.txt" for split in module.FILES})
    yield module
    del os.environ["PAIR_TASKS_TEXT"]


def data(name="pairs", **changed):
    return TextToText(name, **({"target_length": TARGET, "shuffle_buffer": 1} | changed))


def shortened(ids, room, truncation):
    """Truncate `ids` as the documentation describes it, not by slices as in the code."""
    while len(ids) > room:
        if truncation == "head":
            del ids[-1]
        elif truncation == "tail":
            del ids[0]
        else:  # keep both ends equally; of an odd number, the beginning keeps one more
            del ids[(len(ids) + 1) // 2 if len(ids) % 2 == 0 else len(ids) // 2]
    return ids


def expected(truncation="head", examples=EXAMPLES):
    """Return {row: weights} of every example that fits."""
    rows = {}
    for source, target in examples:
        source, target = (list(encode(data(), text)) for text in (source, target))
        if not 0 < len(target) <= TARGET - 1:
            continue
        source = shortened(source, LENGTH - TARGET - 1, truncation)
        row = [*source, EOS, *target, EOS]
        weights = [0] * (len(source) + 1) + [1] * (len(target) + 1)
        padding = [0] * (LENGTH - len(row))
        rows[(*row, *padding)] = [*weights, *padding]
    return rows


def read(task, count, **arguments):
    iterator = train_iterator(task, **({"length": LENGTH, "batch_size": 4, "seed": 0} | arguments))
    return iterator, [next(iterator) for _ in range(count)]


def rows_of(batches):
    return {
        tuple(map(int, row)): list(map(int, weights))
        for batch in batches
        for row, weights in zip(batch["targets"], batch["weights"], strict=True)
    }


@pytest.mark.parametrize(
    "task, truncation", [("pairs", "head"), ("pairs_ended", "tail"), ("pairs", "middle")]
)
def test_rows_and_weights_are_those_made_by_hand(task, truncation):
    iterator, batches = read(data(task, truncation=truncation), 12)
    assert rows_of(batches) == expected(truncation)
    assert all(batch["weights"].dtype == np.int8 for batch in batches)
    # Positions that older versions saved contain these words, so a change would invalidate them.
    saved = f"an example a row, targets to 6, inputs cut to {truncation}"
    header = np.load(io.BytesIO(iterator.get_state()))["header"].item()
    assert saved in header
    assert f"targets of up to 6 tokens, input truncation {truncation!r}" in iterator.description


def test_the_tokens_of_inputs_count_if_a_run_trains_on_them():
    iterator, batches = read(data(train_on_inputs=True), 12)
    weights = {row: [int(token != 0) for token in row] for row in expected()}
    assert rows_of(batches) == weights != expected()
    assert iterator.description.endswith("inputs in the loss")
    with pytest.raises(UserError, match="was saved with"):
        read(data(), 1)[0].set_state(iterator.get_state())


@pytest.mark.ci
def test_examples_whose_target_does_not_fit_are_counted():
    iterator = train_iterator(data(), length=LENGTH, batch_size=1, seed=0)
    unfit = len(EXAMPLES) - len(expected())
    assert 0 < unfit < len(EXAMPLES)
    seen = skipped = 0
    while seen < 3 * len(expected()):
        next(iterator)
        seen, skipped = seen + 1, skipped + iterator.skipped
    assert 3 * unfit <= skipped <= 4 * unfit  # groups of 16 are counted when they are read


@pytest.mark.parametrize("room", [1, 2, 7, 8])
def test_truncation_keeps_as_many_tokens_as_there_is_room_for(room):
    ids = list(range(50))
    for truncation in ("head", "tail", "middle"):
        head, tail = ends_kept(room, truncation)
        assert ids[:head] + ids[len(ids) - tail :] == shortened(list(ids), room, truncation)


@pytest.mark.parametrize("name", ["pairs", pytest.param("pairs_both", marks=pytest.mark.ci)])
def test_a_place_continues_exactly(name):
    task = data(name, shuffle_buffer=7)
    whole, _ = read(task, 11)
    state, rest = whole.get_state(), [next(whole) for _ in range(20)]
    resumed, _ = read(task, 3)
    resumed.set_state(state)
    for batch in rest:
        for name, array in next(resumed).items():
            np.testing.assert_array_equal(array, batch[name])
    other, _ = read(data(name="pairs", shuffle_buffer=7, truncation="tail"), 1)
    with pytest.raises(UserError, match="was saved with"):
        other.set_state(state)


@pytest.mark.ci
def test_shards_are_disjoint_and_together_the_examples():
    shards = [
        rows_of(read(data(), 16, shard_index=index, shard_count=2)[1]).keys() for index in range(2)
    ]
    assert not shards[0] & shards[1] and shards[0] | shards[1] == expected().keys()


def test_what_a_run_asks_of_its_data():
    assert data().vocabulary_size() == 259
    assert data().unknown_share("train") == 0.0
    assert data().packed is data().unshifted is False


@pytest.mark.parametrize(
    "changed, length, words",
    [
        ({"name": "pears"}, LENGTH, "seqio has no Task or Mixture pears"),
        ({"vocabulary": "/nowhere.model"}, LENGTH, "Vocabulary file not found"),
        ({"vocabulary": "hf:gpt2"}, LENGTH, "cannot be used for training on the fly"),
        ({}, TARGET + 1, "no room for the input of pairs in addition to a target of 6 tokens"),
        ({"target_length": 2}, LENGTH, None),
        ({"use_cached": True}, LENGTH, "--gin.TextToText.cache_dirs"),
    ],
)
def test_what_cannot_be_read_is_refused(changed, length, words):
    make = lambda: next(  # noqa: E731
        train_iterator(data(**changed), length=length, batch_size=1, seed=0)
    )
    if words is None:
        make()
        return
    with pytest.raises(UserError) as told:
        make()
    assert words in str(told.value) and len(str(told.value).splitlines()) <= 2, told.value


def test_a_task_none_of_whose_targets_fit_is_refused(tmp_path, tasks):
    tasks.add("pairs_unfit", keep=lambda example: example["targets"] == "")
    with pytest.raises(UserError, match="No example in the split 'train'"):
        read(data("pairs_unfit"), 1)


def test_a_task_of_a_mixture_none_of_whose_targets_fit_is_named(tasks):
    """Otherwise the task would be lost silently, because other tasks make up for its rate."""
    import seqio

    tasks.add("pairs_long", lambda rows: rows.map(lambda row: {**row, "targets": row["inputs"]}),
              keep=lambda row: row["inputs"] == "39" + "abcd" * 4)  # fmt: skip
    seqio.MixtureRegistry.add("pairs_lost", [("pairs", 2.0), ("pairs_long", 1.0)])
    with pytest.raises(UserError) as told:
        read(data("pairs_lost"), 1)
    assert "No example in the split 'train' of the task pairs_long of the registered" in str(
        told.value
    )
    assert "raise TextToText.target_length" in str(told.value)
    seqio.MixtureRegistry.add("pairs_kept", [("pairs", 2.0), ("pairs_long", 0.0)])
    assert rows_of(read(data("pairs_kept"), 3)[1]).keys() <= expected().keys()


def test_a_single_answer_need_not_be_a_list(tasks):
    """Otherwise the codes of its letters would be the answers, and the choices of a ranking."""

    def single(row):
        return row | dict.fromkeys(("answers", "choices"), row["answers"][0])

    tasks.add("pairs_single", lambda rows: rows.map(single), postprocess=lambda text, **more: text)
    (task,) = data("pairs_single").task_examples(split="validation", longest=LENGTH, count=4)
    for example, (_, target) in zip(task.examples, EXAMPLES[::2], strict=False):
        assert example.answers == example.choices == (target,)


def test_a_task_without_inputs_is_refused(tasks):
    import seqio

    seqio.TaskRegistry.add(
        "pairs_text",
        source=seqio.TextLineDataSource(tasks.FILES),
        preprocessors=[tasks.fields],
        output_features={"targets": tasks.BYTES["targets"]},
    )
    with pytest.raises(UserError, match="has no feature 'inputs', only targets"):
        read(data("pairs_text"), 1)


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"target_length": 1}, "it must be 2 or more"),
        ({"truncation": "front"}, "must be one of head, tail, middle"),
        ({"shuffle_buffer": 0}, "TextToText.shuffle_buffer must be at least 1"),
        ({"cache_dirs": ("x",)}, "has no effect without TextToText.use_cached"),
    ],
)
def test_wrong_settings_are_refused(changed, words):
    with pytest.raises(UserError, match=words):
        data(**changed)
