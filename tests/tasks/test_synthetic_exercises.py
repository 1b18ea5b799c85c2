"""Rows and batches of synthetic tasks depend on seed, step and row only, in any process."""

import subprocess
import sys

import numpy as np
import pytest

from fire_lm.errors import UserError
from fire_lm.tasks import synthetic
from fire_lm.tasks.synthetic import exercises, layouts

ADDITION = synthetic.BinaryAddition()
BATCH = {"max_length": 40, "width": 96, "seed": 7}


def batch(task=ADDITION, layout="slots", step=3, rows=range(8), **other):
    return exercises.training_rows(task, layout, step=step, rows=rows, **BATCH | other)


def fields(rows):
    return [rows.inputs, rows.targets, rows.weights, rows.tokens]


def test_slots_hold_the_answer_in_place():
    sample = synthetic.Sample(np.array([1, 0, 1]), np.array([0, 1]))
    rows = layouts.lay_out(synthetic.EvenPairs(), "slots", [sample], 8)
    assert rows.inputs.tolist() == [[3, 2, 3, 1, 1, 0, 0, 0]]
    assert rows.targets.tolist() == [[0, 0, 0, 2, 3, 0, 0, 0]]
    assert rows.weights.tolist() == [[0, 0, 0, 1, 1, 0, 0, 0]]
    assert rows.tokens.tolist() == [[5]]


def test_autoregressive_rows_are_those_of_a_language_model():
    sample = synthetic.Sample(np.array([1, 0, 1]), np.array([0, 1]))
    rows = layouts.lay_out(synthetic.EvenPairs(), "autoregressive", [sample], 8)
    assert rows.inputs.tolist() == [[0, 3, 2, 3, 1, 2, 0, 0]]
    assert rows.targets.tolist() == [[3, 2, 3, 1, 2, 3, 0, 0]]
    assert rows.weights.tolist() == [[0, 0, 0, 0, 1, 1, 0, 0]]
    assert layouts.prompt("autoregressive", sample).tolist() == [0, 3, 2, 3, 1]
    rows = batch(layout="autoregressive")
    for inputs, targets, tokens in zip(rows.inputs, rows.targets, rows.tokens[:, 0], strict=True):
        assert inputs[1:tokens].tolist() == targets[: tokens - 1].tolist()  # shifted by one


def test_queries_stand_where_they_are_answered():
    sample = synthetic.Sample(np.array([9, 1, 8, 2]), np.array([2, 1]), np.array([8, 9]))
    rows = layouts.lay_out(synthetic.Recall(keys=7, values=3), "slots", [sample], 6)
    assert rows.inputs.tolist() == [[11, 3, 10, 4, 10, 11]]
    assert rows.targets.tolist() == [[0, 0, 0, 0, 4, 3]]
    with pytest.raises(UserError, match="use the layout 'slots', or one query"):
        layouts.lay_out(synthetic.Recall(), "autoregressive", [sample], 9)


@pytest.mark.parametrize("task", synthetic.TASKS)
@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_rows_are_as_long_as_they_say_and_answers_come_back(task, layout):
    task = task(queries=1) if task is synthetic.Recall else task()
    for length in (task.shortest, task.shortest + 5):
        samples = exercises.fixed_samples(task, length, seed=1, rows=range(2))
        size = layouts.row_length(task, layout, length)
        rows = layouts.lay_out(task, layout, samples, size + 3)
        assert rows.tokens.tolist() == [[size]] * 2
        assert max(rows.inputs.max(), rows.targets.max()) < layouts.vocabulary_size(task)
        assert not rows.targets[:, size:].any() and not rows.inputs[:, size:].any()
        truth = np.stack([sample.answer for sample in samples])
        assert (rows.weights.sum(axis=1) == truth.shape[1]).all()
        said = rows.targets if layout == "slots" else rows.targets[:, size - truth.shape[1] :]
        assert (layouts.answers(task, layout, said, length) == truth).all()


def test_the_longest_row_need_not_be_that_of_the_greatest_length():
    assert layouts.longest_row(synthetic.DuplicateString(), "slots", 40) == 120
    assert layouts.longest_row(synthetic.ModularArithmetic(), "autoregressive", 40) == 41
    with pytest.raises(UserError, match="an exercise needs 2 tokens, but the row length is 1"):
        layouts.lay_out(
            synthetic.EvenPairs(),
            "slots",
            exercises.fixed_samples(synthetic.EvenPairs(), 1, 0, [0]),
            1,
        )


def test_a_batch_is_the_same_on_any_number_of_processes():
    whole = fields(batch())
    halves = zip(*(fields(batch(rows=rows)) for rows in (range(4), range(4, 8))), strict=True)
    for array, parts in zip(whole, halves, strict=True):
        assert (array == np.concatenate(parts)).all()
    assert (batch().tokens == batch().tokens[0]).all()  # all of one length
    assert not (batch().inputs == batch(step=4).inputs).all()
    assert not (batch().inputs == batch(seed=8).inputs).all()
    rows = batch().inputs.tolist()
    assert all(row not in rows[:at] for at, row in enumerate(rows)), "a row twice"


def test_lengths_are_uniform():
    lengths = [exercises.training_length(ADDITION, 40, 0, step) for step in range(4000)]
    counts = np.bincount(lengths, minlength=41)
    assert counts[0] == 0 and counts.sum() == 4000 and len(counts) == 41
    assert abs(counts[1:] - 100).max() < 4.5 * 10


def test_tests_are_of_other_numbers_than_batches():
    """A model may be tested with the seed that it was trained with."""
    seen = set()
    for step in range(300):
        rows = batch(synthetic.ReverseString(), step=step, max_length=24)
        seen |= {
            row[: tokens // 2].tobytes()
            for row, tokens in zip(rows.inputs, rows.tokens[:, 0], strict=True)
        }
    tests = exercises.fixed_samples(synthetic.ReverseString(), 24, 7, range(200))
    assert not [s for s in tests if (s.inputs + 2).astype(np.int32).tobytes() in seen]


DIGEST = """
import hashlib
from fire_lm.tasks import synthetic
from fire_lm.tasks.synthetic import exercises
digest = hashlib.sha256()
for task in synthetic.TASKS:
    for sample in exercises.fixed_samples(task(), task().shortest + 9, 3, range(2)):
        digest.update(sample.inputs.tobytes() + sample.answer.tobytes())
print(digest.hexdigest())
"""


def test_other_processes_draw_the_same(capsys):
    exec(DIGEST)
    here = capsys.readouterr().out
    done = subprocess.run(
        [sys.executable, "-c", DIGEST],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "5", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout == here


def test_the_example_of_the_docstring_is_a_task():
    """The example that the package gives to users who add a task works."""
    lines = synthetic.__doc__.splitlines()
    code = "\n".join(line[4:] for line in lines if line.startswith("    ") or not line)
    scope = {}
    exec(code, scope)
    rows = batch(scope["Successor"](symbols=3), layout="slots")
    length = rows.tokens[0, 0] // 2
    assert ((rows.inputs[:, :length] - 2 + 1) % 3 + 2 == rows.targets[:, length : 2 * length]).all()
