"""What perfect answers, random answers and the most frequent symbol score, for each task."""

import numpy as np
import pytest

from fire_lm.tasks import synthetic
from fire_lm.tasks.synthetic import layouts, scoring
from fire_lm.tasks.synthetic.exercises import fixed_samples
from fire_lm.tasks.synthetic.guessing import (
    BY_PLACE,
    MOST_FREQUENT,
    interpolated,
    without_reading,
)

ALL = pytest.mark.parametrize("task", synthetic.TASKS)


def length_of(task):
    return max(task.shortest, 20)


def truths(task, count):
    samples = fixed_samples(task, length_of(task), seed=4, rows=range(count))
    return np.stack([sample.answer for sample in samples])


@ALL
def test_perfect_answers_score_100(task):
    task = task()
    truth = truths(task, 5)
    found = scoring.tally(task, truth, truth)
    assert found.accuracy == 100 and found.stderr == 0
    broken = truth.copy()
    first = np.flatnonzero(task.counted(truth)[0])[0]
    broken[0, first] = (broken[0, first] + 1) % task.answer_symbols
    found = scoring.tally(task, truth, broken)
    assert found.accuracy < 100 and found.stderr > 0


@ALL
def test_random_answers_score_chance(task):
    task = task()
    truth = np.tile(truths(task, 100), (20, 1))
    given = np.random.default_rng(0).integers(0, task.answer_symbols, truth.shape)
    found = scoring.tally(task, truth, given)
    share = 1 / task.answer_symbols
    error = 100 * np.sqrt(share * (1 - share) / found.symbols)
    assert abs(found.accuracy - 100 * share) < 4.5 * error
    # Symbols are independent here, so the error of the ratio is that of a binomial.
    assert 0.7 * error < found.stderr < 1.4 * error


@ALL
def test_the_most_frequent_symbol_scores_what_the_table_says(task):
    """The symbol is determined on some exercises and scored on others, drawn with another seed."""
    for length in {max(length, task().shortest) for length in (6, 13, 40)}:
        check_most_frequent(task, length)


def check_most_frequent(task, length):
    others, truth = (
        np.stack([s.answer for s in fixed_samples(task(), length, seed=seed, rows=range(300))])
        for seed in (0, 1)
    )
    symbol = np.bincount(others[task().counted(others)]).argmax()
    found = scoring.tally(task(), truth, np.full(truth.shape, symbol))
    expected = interpolated(MOST_FREQUENT[task.__name__], length)
    assert abs(found.accuracy - expected) < max(4.5 * found.stderr, 0.5)


@pytest.mark.parametrize("name", [*BY_PLACE, "BucketSort"])
@pytest.mark.parametrize("length", [3, 13])
def test_the_best_symbol_of_each_place_scores_what_the_table_says(name, length):
    """An answer from the length and the place alone, which a model that reads nothing can give."""
    task = getattr(synthetic, name)()
    others, truth = (
        np.stack([s.answer for s in fixed_samples(task, length, seed=seed, rows=range(300))])
        for seed in (0, 1)
    )
    counts = task.counted(others)
    symbols = [
        np.bincount(others[counts[:, place], place], minlength=1).argmax()
        for place in range(others.shape[1])
    ]
    found = scoring.tally(task, truth, np.tile(symbols, (300, 1)))
    expected = without_reading(name, length)
    assert expected >= interpolated(MOST_FREQUENT[name], length)
    assert abs(found.accuracy - expected) < max(4.5 * found.stderr, 1.0)


def test_the_length_of_a_string_tells_much_of_its_sorted_order():
    """The percentages that docs/synthetic.md states, on 300 exercises."""
    task = synthetic.BucketSort()
    for length, percentage in ((40, 77.8), (100, 85.8), (500, 93.7)):
        samples = fixed_samples(task, length, seed=0, rows=range(300))
        truth = np.stack([sample.answer for sample in samples])
        given = np.tile(np.repeat(np.arange(5), length // 5), (300, 1))
        found = scoring.tally(task, truth, given)
        assert abs(found.accuracy - percentage) < 4.5 * found.stderr


def test_symbols_after_the_terminator_do_not_count():
    task = synthetic.BinaryAddition()
    truth = np.array([[1, 0, 2, 0, 0], [2, 0, 0, 0, 0]])
    given = np.array([[1, 1, 2, 9, 9], [2, 1, 1, 1, 1]])
    found = scoring.tally(task, truth, given)
    assert (found.symbols, found.right, found.sequences) == (4, 3, 2)


@pytest.mark.parametrize("lowest_first", [False, True])
def test_hints_do_not_count(lowest_first):
    """A model that copies the hints but guesses the digits has learned no addition."""
    task = synthetic.DecimalAddition(lowest_first=lowest_first)
    truth = truths(task, 4)
    given = np.where(truth < 10, (truth + 1) % 10, truth)
    found = scoring.tally(task, truth, given)
    assert (found.symbols, found.right) == (4 * 21, 0)
    assert scoring.tally(task, truth, np.where(truth < 10, truth, 0)).accuracy == 100
    assert task.counted(truth[0]).sum() == 21
    no_hints = synthetic.DecimalAddition(hints=0)
    assert no_hints.counted(truths(no_hints, 2)).all()


def test_tallies_add_up_whatever_the_batches():
    task = synthetic.BinaryMultiplication()
    truth = truths(task, 60)
    given = np.random.default_rng(1).integers(0, 3, truth.shape)
    whole = scoring.tally(task, truth, given)
    for size in (1, 7, 60):
        parts = [
            scoring.tally(task, truth[i : i + size], given[i : i + size])
            for i in range(0, 60, size)
        ]
        assert sum(parts, scoring.Tally()) == whole


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_accuracy_does_not_depend_on_padding(layout):
    task, length = synthetic.StackManipulation(), 13
    samples = fixed_samples(task, length, seed=0, rows=range(9))
    truth = np.stack([sample.answer for sample in samples])
    tallies = set()
    for width in (40, 64, 500):
        said = layouts.lay_out(task, layout, samples, width).targets.copy()
        said[::2] = 2  # as a model might answer, in every other row
        if layout == "autoregressive":
            said = said[:, task.input_length(length) + 1 :]
        tallies.add(scoring.tally(task, truth, layouts.answers(task, layout, said, length)))
    assert len(tallies) == 1 and 0 < tallies.pop().accuracy < 100
