"""Synthetic tasks for length generalisation, which generate exercises of a given length.

The tasks are the 15 tasks of the Chomsky-hierarchy benchmark (`CHOMSKY`), decimal addition,
associative recall, the flip-flop language, and retrieval from text. Exercises are not stored; each
is generated from a seed, a number and a length. To add your own task, write a file with a frozen
dataclass, for example

    import dataclasses
    from fire_lm.tasks.synthetic import Sample, Task

    @dataclasses.dataclass(frozen=True)
    class Successor(Task):
        '''The task of adding 1 to every symbol, modulo the number of symbols.'''

        symbols: int = 7

        @property
        def input_symbols(self):
            return self.symbols

        @property
        def answer_symbols(self):
            return self.symbols

        def answer_length(self, length):
            return length

        def sample(self, rng, length):
            string = rng.integers(0, self.symbols, length)
            return Sample(string, (string + 1) % self.symbols)

A configuration can set the fields of the dataclass. The module `layouts` converts exercises to rows
of token ids, `exercises` generates numbered exercises for training and tests, and `scoring` counts
correct symbols.
"""

from __future__ import annotations

from fire_lm.tasks.synthetic.binary_addition import BinaryAddition
from fire_lm.tasks.synthetic.binary_multiplication import BinaryMultiplication
from fire_lm.tasks.synthetic.bucket_sort import BucketSort
from fire_lm.tasks.synthetic.common_words import CommonWords
from fire_lm.tasks.synthetic.compute_sqrt import ComputeSqrt
from fire_lm.tasks.synthetic.cycle_navigation import CycleNavigation
from fire_lm.tasks.synthetic.decimal_addition import DecimalAddition
from fire_lm.tasks.synthetic.duplicate_string import DuplicateString
from fire_lm.tasks.synthetic.even_pairs import EvenPairs
from fire_lm.tasks.synthetic.flip_flop import FlipFlop
from fire_lm.tasks.synthetic.frequent_words import FrequentWords
from fire_lm.tasks.synthetic.missing_duplicate_string import MissingDuplicateString
from fire_lm.tasks.synthetic.modular_arithmetic import ModularArithmetic
from fire_lm.tasks.synthetic.modular_arithmetic_brackets import ModularArithmeticBrackets
from fire_lm.tasks.synthetic.needles import Needles
from fire_lm.tasks.synthetic.odds_first import OddsFirst
from fire_lm.tasks.synthetic.parity_check import ParityCheck
from fire_lm.tasks.synthetic.passkey import Passkey
from fire_lm.tasks.synthetic.recall import Recall
from fire_lm.tasks.synthetic.reverse_string import ReverseString
from fire_lm.tasks.synthetic.solve_equation import SolveEquation
from fire_lm.tasks.synthetic.stack_manipulation import StackManipulation
from fire_lm.tasks.synthetic.task import Sample, Task
from fire_lm.tasks.synthetic.variable_tracking import VariableTracking

__all__ = ["CHOMSKY", "TASKS", "Sample", "Task", "configurables"]

# The tasks are ordered by their level in the hierarchy: regular, deterministic context-free,
# context-sensitive.
CHOMSKY: tuple[type[Task], ...] = (
    EvenPairs,
    ParityCheck,
    CycleNavigation,
    ModularArithmetic,
    ModularArithmeticBrackets,
    ReverseString,
    SolveEquation,
    StackManipulation,
    BinaryAddition,
    BinaryMultiplication,
    ComputeSqrt,
    DuplicateString,
    MissingDuplicateString,
    OddsFirst,
    BucketSort,
)

TASKS: tuple[type[Task], ...] = (
    *CHOMSKY,
    DecimalAddition,
    Recall,
    FlipFlop,
    Passkey,
    Needles,
    VariableTracking,
    CommonWords,
    FrequentWords,
)


def configurables() -> dict[str, type[Task]]:
    """Return the task classes, keyed by the names that configurations use."""
    return {task.__name__: task for task in TASKS}
