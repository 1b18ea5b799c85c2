"""Length schedules as pure functions: which steps have which length, and how batches are cut."""

from typing import Any

import numpy as np
import pytest
from sample_run import tiny_run

from fire_lm import sharding
from fire_lm.data import Synthetic, cut
from fire_lm.errors import UserError
from fire_lm.sharding import MeshShape
from fire_lm.tasks.synthetic.even_pairs import EvenPairs
from fire_lm.training.length_schedule import length_schedule

DRAWN = ((0, (16, 64, 32)), (8, 64))


def of_steps(entries: Any, steps: int, seed: int = 0) -> list[int]:
    schedule = length_schedule(entries, steps, seed)
    return [schedule.at(step) for step in range(1, steps + 1)]


@pytest.mark.parametrize("start", [15, 0.75, 1.5e1])
def test_an_entry_begins_after_steps_or_a_share_of_the_run(start):
    assert of_steps(((0, 16), (start, 64)), 20) == [16] * 15 + [64] * 5


def test_a_share_of_the_run_is_rounded_to_a_step():
    assert of_steps(((0, 16), (0.95, 64)), 30) == [16] * 28 + [64] * 2


def test_an_entry_after_the_run_is_not_reached_but_counts_for_the_rows_of_the_data():
    schedule = length_schedule(((0, 16), (90, 64)), 20, 0)
    assert schedule.after(0) == (16,)
    assert schedule.longest == 64


def test_lengths_after_a_step_are_those_that_the_rest_of_the_run_needs():
    schedule = length_schedule(((0, 16), (5, 32), (10, 64)), 20, 0)
    assert [schedule.after(n) for n in (0, 5, 9, 10)] == [(16, 32, 64), (32, 64), (32, 64), (64,)]
    assert schedule.shares(20) == {16: 0.25, 32: 0.25, 64: 0.5}


def test_drawn_lengths_depend_on_the_seed_and_the_step_alone():
    drawn = of_steps(DRAWN, 400)
    assert drawn[:8] == of_steps(DRAWN, 8)
    assert drawn[8:] == [64] * 392
    always = of_steps(((0, (16, 64, 32)),), 600)
    assert always != of_steps(((0, (16, 64, 32)),), 600, seed=1)
    counts = np.unique(always, return_counts=True)[1]
    assert len(counts) == 3
    assert (abs(counts - 200) < 50).all()  # 4 standard deviations are 46


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (((1, 16),), "first must begin at 0"),
        (((0, 16), (5, 32), (5, 64)), "after more steps"),
        (((0, 16), (0.001, 64)), "after more steps"),
        (((0, 16), (1.0, 64)), "begins at 1.0"),
        (((0, 16), (-3, 64)), "begins at -3"),
        (((0, 16), (2.5, 64)), "begins at 2.5"),
        (((0, 1),), "must be 2 or more"),
        (((0, (16, 16)),), "that differ"),
        (((0, ()),), "must be 2 or more"),
        (((0, 16), (5, 24)), "16 and 24: every length must divide"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(entries, message):
    with pytest.raises(UserError, match=message):
        length_schedule(entries, 20, 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_lengths": ((0, 32), (4, 64))}, "add --gin.TRAIN_LENGTH=32"),
        ({"train_lengths": ((0, 16), (4, 256))}, "make BATCH_SIZE a multiple of 16"),
        ({"train_lengths": ((0, 16), (4, 32)), "data": Synthetic(EvenPairs())}, "not text whose"),
    ],
)
def test_a_schedule_that_does_not_fit_the_run_is_refused(changed, message):
    with pytest.raises(UserError, match=message):
        tiny_run(**changed)


def test_the_batch_that_a_schedule_needs_is_told_at_once():
    """What the longest rows need is also enough for the shorter ones."""
    run = tiny_run(
        train_lengths=((0, 16), (4, 64)), batch_size=12, microbatches=2, mesh=MeshShape(data=4)
    )
    with pytest.raises(UserError, match="make BATCH_SIZE a multiple of 32"):
        run.check_batches(sharding.abstract_mesh(run.mesh, 4))


def test_a_step_has_the_same_tokens_at_every_length():
    run = tiny_run(train_lengths=((0, 16), (4, 64)))
    assert [run.rows_per_step(n) for n in run.lengths.lengths] == [8, 2]
    assert run.tokens_per_step == 128
    run.check_batches(sharding.abstract_mesh(MeshShape(data=2), 2))
    with pytest.raises(UserError, match="length 64 .* make BATCH_SIZE a multiple of 16"):
        run.check_batches(sharding.abstract_mesh(MeshShape(data=4), 4))


def test_one_entry_is_the_run_without_a_schedule():
    run, plain = tiny_run(train_lengths=((0, 16),)), tiny_run()
    assert run.row_lengths() == plain.row_lengths()
    assert run.flops_per_token == plain.flops_per_token
    assert run.lengths.phases == plain.lengths.phases


def test_parts_of_a_row_are_consecutive_rows():
    targets = np.arange(24, dtype=np.int32).reshape(2, 12)
    parts = cut({"targets": targets, "tokens": np.array([[12], [5]], np.int32)}, 4)
    assert parts["targets"].tolist() == np.arange(24).reshape(6, 4).tolist()
    assert parts["tokens"].tolist() == [[4], [4], [4], [4], [1], [1]]  # at least 1
