"""Every rule of a synthetic task against a second implementation that reads the exercise."""

import collections
import math
import re

import numpy as np
import pytest

from fire_lm.errors import UserError
from fire_lm.tasks import synthetic
from fire_lm.tasks.synthetic.exercises import exercise, fixed_samples

LENGTHS = [*range(1, 65), 100, 131, 256, 400, 500]


def text(symbols, alphabet):
    return "".join(alphabet[symbol] for symbol in symbols)


def value(expression):
    """Return the value of an expression in Python's syntax, modulo 5."""
    assert re.fullmatch(r"[0-4x+*()-]+", expression), expression
    return eval(expression) % 5


def binary(bits):
    """Return the number whose bits these are, lowest bit first."""
    return sum(bit << place for place, bit in enumerate(bits))


def ended(answer):
    """Return the symbols before the first 2, which only zeros may follow."""
    end = answer.index(2)
    assert not any(answer[end + 1 :])
    return answer[:end]


def even_pairs(x, y):
    changes = sum(a != b for a, b in zip(x, x[1:], strict=False))
    assert y == [changes % 2]


def parity_check(x, y):
    assert y == [x.count(1) % 2]


def cycle_navigation(x, y):
    assert y == [(x.count(2) - x.count(0)) % 5]


def modular_arithmetic(x, y):
    assert max(x[::2]) < 5 and all(5 <= symbol < 8 for symbol in x[1::2])
    assert y == [value(text(x, "01234+-*"))]


def brackets_are_of_the_grammar(expression):
    """Reduce from the inside: each bracket holds one digit, possibly negative, or two terms."""
    for _ in range(len(expression)):
        expression = re.sub(
            r"\((-?\d|[\dT]|-\d[+*-][\dT]|[\dT][+*-][\dT]|[\dT][+*-]-\d|-\d[+*-]-\d)\)",
            "T",
            expression,
        )
    return re.fullmatch(r"-?\d|T", expression) is not None


def modular_arithmetic_brackets(x, y):
    expression = text(x, "01234+-*()")
    assert brackets_are_of_the_grammar(expression), expression
    assert y == [value(expression)]


def solve_equation(x, y):
    if len(x) < 3:
        assert not any(x) and y == [0]
        return
    expression, result = text(x, "01234+-()x=").split("=")
    assert expression.count("x") == 1
    assert brackets_are_of_the_grammar(expression.replace("x", "0"))
    solutions = [d for d in range(5) if value(expression.replace("x", str(d))) == int(result)]
    assert y == solutions


def stack_manipulation(x, y):
    """Read from the end: an element remains if no later POP takes it."""
    height = next((i for i, symbol in enumerate(x) if symbol > 1), len(x))
    assert height >= 1 and all(symbol > 1 for symbol in x[height:])
    assert len(x) == 1 or height < len(x)
    pops, left = 0, []
    for symbol in reversed(x):
        if symbol == 2:
            pops += 1
        elif pops:
            pops -= 1
        else:
            left.append(symbol - 3 if symbol > 1 else symbol)
    # A POP on an empty stack takes nothing, not even from earlier elements, which are all taken.
    assert ended(y) == left


def binary_addition(x, y):
    if len(x) < 3:
        total = binary(x)
        assert total < 2 ** len(x) - 1
    else:
        cut = x.index(2)
        assert 1 <= cut <= len(x) - 2 and any(x[:cut]) and any(x[cut + 1 :])
        total = binary(x[:cut]) + binary(x[cut + 1 :])
    assert binary(ended(y)) == total and ended(y)[1:][-1:] != [0]


def binary_multiplication(x, y):
    if len(x) < 3:
        assert binary(x) < 2 ** len(x) - 1 and ended(y) == [0] * (len(x) - 1)
        return
    cut = x.index(2)
    assert any(x[:cut]) and any(x[cut + 1 :])
    assert binary(ended(y)) == binary(x[:cut]) * binary(x[cut + 1 :]) and ended(y)[-1] == 1


def compute_sqrt(x, y):
    number, root = binary(x[::-1]), binary(y[::-1])
    assert root**2 <= number < (root + 1) ** 2 and number and len(y) == math.ceil(len(x) / 2)


def reverse_string(x, y):
    assert all(y[i] == x[len(x) - 1 - i] for i in range(len(x))) and len(x) == len(y)


def duplicate_string(x, y):
    assert y == x + x


def missing_duplicate_string(x, y):
    if len(x) == 1:
        assert x == [1] and y == [1]
        return
    assert (x[-1] == 3) == (len(x) % 2 == 1)
    half = len(x) // 2
    fitting = []
    for bit in (0, 1):
        whole = [bit if symbol == 2 else symbol for symbol in x]
        if whole[:half] == whole[half : 2 * half]:
            fitting.append(bit)
    assert x.count(2) == 1 and fitting == y


def odds_first(x, y):
    assert y == [x[i] for i in range(len(x)) if i % 2] + [x[i] for i in range(0, len(x), 2)]


def bucket_sort(x, y):
    assert collections.Counter(x) == collections.Counter(y) and y == sorted(y) and max(x) < 5


def flip_flop(x, y):
    """Replay the memory; the bit that it holds must follow every READ, also the last."""
    memory = None
    for instruction, bit in zip(x[::2], [*x[1::2], *y], strict=True):
        assert instruction in (2, 3, 4) and bit in (0, 1)
        if instruction == 2:
            memory = bit
        assert instruction != 3 or bit == memory is not None
    assert x[0] == 2 and x[-1] == 3


RULES = {rule.__name__.replace("_", ""): rule for rule in (
    even_pairs, parity_check, cycle_navigation, modular_arithmetic, modular_arithmetic_brackets,
    reverse_string, solve_equation, stack_manipulation, binary_addition, binary_multiplication,
    compute_sqrt, duplicate_string, missing_duplicate_string, odds_first, bucket_sort, flip_flop,
)}  # fmt: skip
TASKS = [task() for task in synthetic.TASKS if task.__name__.lower() in RULES]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_every_exercise_keeps_the_rule(task):
    rule = RULES[type(task).__name__.lower()]
    for length in LENGTHS:
        if length < task.shortest:
            continue
        for sample in fixed_samples(task, length, seed=0, rows=range(4 if length < 65 else 1)):
            x, y = sample.inputs.tolist(), sample.answer.tolist()
            assert len(x) == task.input_length(length) and len(y) == task.answer_length(length)
            assert 0 <= min(x) and max(x) < task.input_symbols
            assert 0 <= min(y) and max(y) < task.answer_symbols
            rule(x, y)


def test_the_rules_cover_the_benchmark():
    names = {task.__name__.lower() for task in synthetic.CHOMSKY}
    assert len(names) == 15 and names | {"flipflop"} == set(RULES)


def test_lengths_of_even_expressions_and_of_words_are_the_inputs_own():
    assert [synthetic.ModularArithmetic().input_length(n) for n in (1, 2, 3, 40, 41)] == [
        1, 1, 3, 39, 41,
    ]  # fmt: skip


def test_variants_are_those_of_the_text():
    def both(task, length):
        code, text = (exercise(task(variant=variant), length, 1, 2) for variant in ("code", "text"))
        assert code.inputs.tolist() == text.inputs.tolist()
        return code.inputs.tolist(), code.answer.tolist(), text.answer.tolist()

    x, _, y = both(synthetic.CycleNavigation, 33)
    assert y == [(x.count(1) - x.count(2)) % 5]
    x, _, y = both(synthetic.OddsFirst, 9)
    assert y == [x[i] for i in (0, 2, 4, 6, 8, 1, 3, 5, 7)]
    _, code, y = both(synthetic.StackManipulation, 20)
    assert ended(y) == ended(code)[::-1]
    hidden = synthetic.SolveEquation(variant="text")
    seen = set()
    for sample in fixed_samples(hidden, 30, seed=0, rows=range(20)):
        equation, result = text(sample.inputs, "01234+-()x=*").split("=")
        seen |= set(equation)
        assert value(equation.replace("x", str(sample.answer[0]))) == int(result)
    assert "*" in seen


@pytest.mark.parametrize("hints", [0, 102])
@pytest.mark.parametrize("lowest_first", [False, True])
def test_decimal_addition(hints, lowest_first):
    task = synthetic.DecimalAddition(hints, lowest_first)
    for length in (*range(1, 65), 101):
        for sample in fixed_samples(task, length, seed=3, rows=range(2)):
            x, y = sample.inputs.tolist(), sample.answer.tolist()
            assert len(x) == task.input_length(length) and len(y) == task.answer_length(length)
            plus = x.index(10 + hints)
            numbers, places = [], []
            for part in (x[:plus], x[plus + 1 :], y):
                if hints:
                    places.append(part[::2])
                    part = part[1::2]
                digits = part[::-1] if lowest_first else part
                numbers.append(int("".join(map(str, digits))))
            assert numbers[0] + numbers[1] == numbers[2]
            assert all(len(str(n)) == length for n in numbers[:2])
            if hints:
                first, second, total = (p[::-1] if lowest_first else p for p in places)
                assert first == second == total[1:]
                assert total == list(range(total[0], total[0] + length + 1))
                assert 10 <= total[0] and total[-1] < 10 + hints


def test_decimal_addition_tells_the_digits_that_hints_are_for():
    with pytest.raises(
        UserError, match="of length 102: the length must be at least 1 and at most 101"
    ):
        fixed_samples(synthetic.DecimalAddition(), 102, seed=0, rows=range(1))


def test_decimal_addition_has_no_limit_of_digits():
    (sample,) = fixed_samples(synthetic.DecimalAddition(hints=0), 5000, seed=0, rows=range(1))
    assert len(sample.answer) == 5001 and max(sample.answer) <= 9


@pytest.mark.parametrize("task", ["ModularArithmeticBrackets", "SolveEquation"])
@pytest.mark.parametrize("modulus", [0, 11])
def test_a_modulus_whose_numbers_have_several_digits_is_refused(task, modulus):
    """The symbols of such an expression would be more than its length."""
    with pytest.raises(UserError, match=f"{task}.modulus is {modulus}: it must be from 1 to 10"):
        getattr(synthetic, task)(modulus)


@pytest.mark.parametrize("task", synthetic.TASKS)
def test_numbers_below_the_least_are_refused(task):
    """Rows would be empty or of another length than the task says, or NumPy would fail."""
    for name, least in task.least.items():
        made = task(**{name: least - 1})
        with pytest.raises(UserError, match=f"{name} is {least - 1}: it must be {least} or more"):
            fixed_samples(made, 500, seed=0, rows=range(1))


@pytest.mark.parametrize("queries", [0, 1, 5])
def test_recall(queries):
    task = synthetic.Recall(keys=96, values=7, queries=queries)
    for length in (*range(1, 65), 96):
        for sample in fixed_samples(task, length, seed=5, rows=range(2)):
            pairs = sample.inputs.reshape(-1, 2).tolist()
            memory = dict(pairs)
            assert len(pairs) == len(memory) == length and min(memory) >= 7 and max(memory) < 103
            asked = sample.queries.tolist()
            assert len(set(asked)) == len(asked) == min(queries or length, length)
            assert [memory[key] for key in asked] == sample.answer.tolist()


def share(values):
    """Return the share of each value."""
    found = collections.Counter(values)
    return {key: count / len(values) for key, count in sorted(found.items())}


def uniform(values, expected):
    """Return whether the expected values are equally frequent, within 4.5 sigma."""
    shares, p = share(values), 1 / len(expected)
    error = math.sqrt(p * (1 - p) / len(values))
    return set(shares) == set(expected) and all(abs(s - p) < 4.5 * error for s in shares.values())


def drawn(task, length, count=1500):
    return fixed_samples(task, length, seed=11, rows=range(count))


def test_initial_stacks_and_splits_are_uniform():
    stacks = [
        int(np.sum(np.cumprod(s.inputs < 2))) for s in drawn(synthetic.StackManipulation(), 9)
    ]
    assert uniform(stacks, range(1, 9))
    for task in (synthetic.BinaryAddition(), synthetic.BinaryMultiplication()):
        assert uniform([s.inputs.tolist().index(2) for s in drawn(task, 9)], range(1, 8))


def test_numbers_are_uniform_and_positive():
    roots = [binary(s.inputs.tolist()[::-1]) for s in drawn(synthetic.ComputeSqrt(), 4)]
    assert uniform(roots, range(1, 16))
    lone = [binary(s.inputs.tolist()) for s in drawn(synthetic.BinaryAddition(), 2)]
    assert uniform(lone, range(3))


def test_operators_digits_and_places_are_uniform():
    operators = np.concatenate(
        [s.inputs[1::2] for s in drawn(synthetic.ModularArithmetic(), 15, 300)]
    )
    assert uniform(operators.tolist(), (5, 6, 7))
    # (d+d): with five symbols, the operator is in the middle.
    brackets = [int(s.inputs[2]) for s in drawn(synthetic.ModularArithmeticBrackets(), 5)]
    assert uniform(brackets, (5, 6, 7))
    equations = [int(s.inputs[2]) for s in drawn(synthetic.SolveEquation(), 7)]
    assert uniform(equations, (5, 6))
    # (L op R): L has one, two or three of seven symbols, so R has three, two or one.
    texts = [text(s.inputs, "01234+-*()") for s in drawn(synthetic.ModularArithmeticBrackets(), 7)]
    kinds = [re.sub(r"\d", "d", re.sub(r"(?<=[d\d)])[+*-]", "o", t)) for t in texts]
    assert uniform(kinds, ("(do(d))", "(-do-d)", "((d)od)"))
    blanks = [s.inputs.tolist().index(2) for s in drawn(synthetic.MissingDuplicateString(), 11)]
    assert uniform(blanks, range(10))


def test_flip_flop_ignores_as_often_as_it_says():
    samples = drawn(synthetic.FlipFlop(ignore=0.5), 41, 200)
    between = np.concatenate([s.inputs[2:-1:2] for s in samples])
    shares = share(between.tolist())
    assert abs(shares[4] - 0.5) < 0.03 and abs(shares[2] - 0.25) < 0.03
