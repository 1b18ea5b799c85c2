"""Synthetic tasks as training data: one batch after another, resumed exactly."""

import json

import numpy as np
import pytest

from fire_lm import data
from fire_lm.data import Blocks, Synthetic
from fire_lm.errors import UserError
from fire_lm.tasks import synthetic
from fire_lm.tasks.synthetic import haystack
from fire_lm.tasks.synthetic.exercises import training_rows

TASK = Synthetic(synthetic.BinaryAddition(), max_length=12)
SIZES = {"length": 30, "batch_size": 6, "seed": 3}


def batches(of=TASK, **other):
    return data.train_iterator(of, **SIZES | other)


def test_batches_are_what_the_step_is_compiled_for():
    iterator = batches()
    batch = next(batch for batch in iterator if batch["targets"].shape[1] == 30)
    shapes = {name: (array.shape, str(array.dtype)) for name, array in batch.items()}
    assert shapes == {
        "inputs": ((6, 30), "int32"),
        "targets": ((6, 30), "int32"),
        "weights": ((6, 30), "int8"),
        "tokens": ((6, 1), "int32"),
    }
    assert batch["weights"].sum() and TASK.vocabulary_size() == 5
    assert max(batch["inputs"].max(), batch["targets"].max()) < 5


def test_rows_are_padded_to_few_lengths_without_changing_the_exercises():
    lengths = TASK.row_lengths(30)  # rows need 3 + ... + 25 columns
    assert lengths == (8, 15, 23, 30)
    iterator, seen = batches(), set()
    for step in range(40):
        batch = next(iterator)
        width = batch["targets"].shape[1]
        needed = int(batch["tokens"].max())
        assert width == min(length for length in lengths if length >= needed)
        seen.add(width)
        rows = training_rows(
            TASK.task, TASK.layout, max_length=12, width=30, seed=3, step=step, rows=range(6)
        )
        for name in ("inputs", "targets", "weights"):
            assert (getattr(rows, name)[:, :width] == batch[name]).all()
            assert not getattr(rows, name)[:, width:].any()
    assert seen == set(lengths)


def test_no_row_length_is_compiled_in_vain():
    passkey = Synthetic(synthetic.Passkey(), max_length=256)
    shortest = passkey.task.shortest + 5
    assert all(length >= shortest for length in passkey.row_lengths(261))
    assert passkey.row_lengths(400) == (200, 300)  # the longest row has 261 tokens
    assert Blocks("nowhere").row_lengths(64) == (64,)


def test_a_saved_place_goes_on_exactly_on_any_number_of_processes():
    whole = batches()
    for _ in range(3):
        next(whole)
    state = whole.get_state()
    expected = [next(whole) for _ in range(3)]
    shards = [batches(batch_size=2, shard_index=i, shard_count=3) for i in range(3)]
    for shard in shards:
        shard.set_state(state)
    for batch in expected:
        parts = [next(shard) for shard in shards]
        for name, array in batch.items():
            assert (array == np.concatenate([part[name] for part in parts])).all()


@pytest.mark.parametrize(
    "other, named",
    [
        ({"seed": 4}, "seed 3, but the run now has 4"),
        ({"of": Synthetic(synthetic.BinaryAddition(), max_length=11)}, "task .*max_length=12"),
        ({"batch_size": 7}, "batch 6, but the run now has 7"),
    ],
)
def test_a_place_of_other_batches_is_refused(other, named):
    with pytest.raises(UserError, match=named):
        batches(**other).set_state(batches().get_state())
    with pytest.raises(UserError, match="damaged"):
        batches().set_state(json.dumps({"samples": 3}).encode())


def test_a_place_of_another_text_is_refused(tmp_path):
    path = tmp_path / "essay.txt"
    path.write_text("One day, a grid was left to run. " * 9)
    of = Synthetic(synthetic.Passkey(text=str(path)), max_length=120)
    state = batches(of=of, length=200).get_state()
    batches(of=of, length=200).set_state(state)
    path.write_text("Another day, another text. " * 9)
    haystack._read.cache_clear()  # as in another process
    with pytest.raises(UserError, match="saved with text [0-9a-f]{64}, but the run now has"):
        batches(of=of, length=200).set_state(state)


def test_rows_that_are_too_short_are_refused_with_the_length_that_does():
    batches(length=25)
    """A run's description asks for the lengths before any row is read."""
    with pytest.raises(UserError, match="needs 25 tokens per row: set --gin.TRAIN_LENGTH=25"):
        TASK.row_lengths(20)
    with pytest.raises(UserError, match="needs 25 tokens per row: set --gin.TRAIN_LENGTH=25"):
        batches(length=24)
    with pytest.raises(UserError, match="Recall has no exercise of length 600"):
        Synthetic(synthetic.Recall(), max_length=600)
