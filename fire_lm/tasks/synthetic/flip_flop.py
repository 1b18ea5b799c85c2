"""The flip-flop language (Liu et al. 2023, arXiv:2306.00946): recall the last bit written."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.errors import UserError
from fire_lm.tasks.synthetic.task import Sample, Task, bits

WRITE, READ, IGNORE = 2, 3, 4


@dataclasses.dataclass(frozen=True)
class FlipFlop(Task):
    """The task of recalling the last bit that was written in a sequence of instructions.

    A bit follows each instruction except the final READ, whose bit is the answer. The first
    instruction is WRITE. The bit after each READ is the bit that was last written. If `length` is
    even, the input has one symbol fewer.

    Attributes:
      ignore: The probability of IGNORE; WRITE and READ are equally likely otherwise.
    """

    ignore: float = 0.8
    input_symbols = 5
    answer_symbols = 2
    shortest = 3

    def __post_init__(self) -> None:
        if not 0 <= self.ignore <= 1:
            raise UserError(
                f"FlipFlop.ignore is {self.ignore}: it must be a probability from 0 to 1"
            )

    def input_length(self, length: int) -> int:
        return length - 1 + length % 2

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        pairs = self.input_length(length) // 2
        other = (1 - self.ignore) / 2
        instructions = rng.choice([WRITE, READ, IGNORE], pairs, p=[other, other, self.ignore])
        instructions[0] = WRITE
        values = bits(rng, pairs)
        # The index of the latest WRITE at or before each instruction.
        written = np.maximum.accumulate(np.where(instructions == WRITE, np.arange(pairs), 0))
        values = np.where(instructions == READ, values[written], values)
        text = np.append(np.stack([instructions, values], axis=1).ravel(), READ)
        return Sample(text, values[written[-1:]])
