"""Stack Manipulation (deterministic context-free): apply actions to a stack (arXiv:2207.02098)."""

from __future__ import annotations

import dataclasses

import numpy as np

from fire_lm.tasks.synthetic.task import Sample, Task, Variant, bits, terminated

POP, PUSH_0, PUSH_1, END = 2, 3, 4, 2


@dataclasses.dataclass(frozen=True)
class StackManipulation(Task):
    """The task of applying actions to a stack.

    The input consists of the initial stack, from bottom to top, and the actions. The answer is the
    resulting stack, followed by a 2 and padded with zeros. In an input of n symbols, the number of
    initial elements is uniform from 1 to n - 1; an input of one symbol is a stack without actions.
    POP on an empty stack does nothing.

    Attributes:
      variant: 'code' writes the resulting stack from top to bottom, 'text' from bottom to top.
    """

    variant: Variant = "code"
    input_symbols = 5
    answer_symbols = 3
    terminator = END

    def answer_length(self, length: int) -> int:
        return length + 1

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        height = int(rng.integers(1, length)) if length > 1 else 1
        initial = bits(rng, height)
        actions = rng.integers(POP, PUSH_1 + 1, length - height)
        stack = initial.tolist()
        for action in actions.tolist():
            if action != POP:
                stack.append(action - PUSH_0)
            elif stack:
                stack.pop()
        shown = np.array(stack[::-1] if self.variant == "code" else stack, np.int64)
        return Sample(np.concatenate([initial, actions]), terminated(shown, END, length + 1))
