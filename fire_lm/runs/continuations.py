"""Text that a run's model writes after a prompt, by its own vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fire_lm.data import Tokenized
from fire_lm.data import tokens as vocabulary
from fire_lm.errors import UserError
from fire_lm.generation import Generated, Greedy, Method, generate
from fire_lm.models import Decoder

# Prompts are padded to multiples of it; a program is compiled for each width.
_SMALLEST_WIDTH = 128


@dataclasses.dataclass(frozen=True)
class Continuation:
    """The text generated after a prompt.

    Attributes:
      text: of the tokens, cut before the first stop string.
      tokens: generated ids, the end-of-document token included; with those of the stop string and
        what the model wrote after it, which `text` lacks.
      logprobs: natural logarithms of their probabilities under the model.
      score: the sum of `logprobs`; of a beam divided by its length penalty.
      ended: by "end of document", "stop string", or "length" (`new_tokens` were not enough).
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    score: float
    ended: Literal["end of document", "stop string", "length"]


@dataclasses.dataclass(frozen=True)
class Writer:
    """A model with its vocabulary, and how it continues a text.

    Attributes:
      data: that it was trained on, of which the vocabulary is used.
      new_tokens: generated at most.
      stop: strings that end a continuation; they are not part of it.
      seed: of sampling. A continuation depends on it and on the number of its prompt.

    Raises:
      UserError: the vocabulary cannot express a stop string.
    """

    model: Decoder
    params: Any
    data: Tokenized
    new_tokens: int
    method: Method = Greedy()
    stop: tuple[str, ...] = ()
    seed: int = 0
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        for stop in self.stop:
            if lacking := vocabulary.unknown(self.data, stop):
                raise UserError(
                    f"the vocabulary {self.data.vocabulary} cannot express {lacking!r} of the stop "
                    f"{stop!r}, which would never be met: remove it"
                )

    def encode(self, prompt: str) -> np.ndarray:
        """Ids int32 `[P]` as the model reads them; token 0 begins a text.

        Raises:
          UserError: the prompt is empty, or the vocabulary lacks some of its characters.
        """
        if not prompt:
            raise UserError("the prompt is empty: it must have one character or more")
        if any("\ud800" <= character <= "\udfff" for character in prompt):
            raise UserError(f"the prompt {prompt[:40]!a} is not valid UTF-8: convert it")
        if lacking := vocabulary.unknown(self.data, prompt):
            raise UserError(
                f"the vocabulary {self.data.vocabulary} cannot express {lacking!r} of the prompt "
                f"{prompt[:40]!r}: remove it"
            )
        return np.concatenate([[0], vocabulary.encode(self.data, prompt)]).astype(np.int32)

    def continue_prompts(
        self,
        prompts: Sequence[np.ndarray],
        numbers: Sequence[int],
        context_length: int | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> list[list[Continuation]]:
        """Continuations of each encoded prompt, best or first drawn first.

        Args:
          numbers: of the prompts, from which their random keys are made.
          context_length: tokens of prompt and answer; by default of the longest.
          on_text: called with the text so far of the first continuation.

        Raises:
          UserError: a prompt is too long for the model. RunFailed: the model gives NaN.
        """
        lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        rows = np.zeros((len(prompts), width(int(lengths.max()))), np.int32)
        for row, prompt in zip(rows, prompts, strict=True):
            row[: len(prompt)] = prompt
        key = jax.random.key(self.seed)
        keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(jnp.asarray(numbers))

        def show(tokens_BKT: np.ndarray) -> None:
            assert on_text is not None
            on_text(self.text_of(tokens_BKT[0, 0])[0])

        found = generate(
            *(self.model, self.params, rows, lengths),
            new_tokens=self.new_tokens,
            method=self.method,
            stop_ids=(vocabulary.end_of_document(self.data),),
            keys_B=keys,
            context_length=context_length,
            mesh=self.mesh,
            on_tokens=show if on_text else None,
        )
        return [self._of_example(found, example) for example in range(len(prompts))]

    def text_of(self, tokens: np.ndarray) -> tuple[str, bool]:
        """The text of generated ids, and whether a stop string has cut it."""
        text = vocabulary.decode(self.data, tokens)
        ends = [place for stop in self.stop if (place := text.find(stop)) >= 0]
        return (text[: min(ends)], True) if ends else (text, False)

    def _of_example(self, found: Generated, example: int) -> list[Continuation]:
        result = []
        for k, length in enumerate(found.lengths_BK[example]):
            if not length:
                continue  # fewer beams than asked for
            tokens = found.tokens_BKT[example, k, :length]
            text, cut = self.text_of(tokens)
            ended = "end of document" if found.stopped_BK[example, k] else "length"
            result.append(
                Continuation(
                    text,
                    tuple(map(int, tokens)),
                    tuple(map(float, found.logprobs_BKT[example, k, :length])),
                    float(found.scores_BK[example, k]),
                    "stop string" if cut else ended,  # type: ignore[arg-type]
                )
            )
        return result


def width(length: int) -> int:
    """Columns for prompts of `length` tokens: 128 times 1, 1.5, 2, 3, 4, 6, ...

    A program is compiled for each, and a third of the columns at most is padding (beyond 128).
    """
    columns = _SMALLEST_WIDTH
    while columns < length:
        power = columns & (columns - 1) == 0
        columns = columns * 3 // 2 if power else columns * 4 // 3
    return columns
