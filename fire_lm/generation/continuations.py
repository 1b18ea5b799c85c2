"""Text that a run's model generates after a prompt, using the run's own vocabulary."""

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
from fire_lm.models import Decoder, check_token_ids, padded_length

# The minimum width to which prompts are padded.
_SMALLEST_WIDTH = 128


@dataclasses.dataclass(frozen=True)
class Continuation:
    """The text generated after a prompt.

    Attributes:
      text: The decoded tokens, truncated before the first stop string. The prompt and this text
        together are what all ids decode to, so the text of a SentencePiece model often begins with
        a space.
      tokens: The generated ids. Unlike `text`, they include the end-of-document token, the stop
        string, and any tokens that the model generated after the stop string.
      logprobs: The natural logarithms of the tokens' probabilities under the model.
      score: The sum of `logprobs`, which is divided by the length penalty in a beam search.
      ended: The reason why the text ended: "end of document", "stop string", or "length" if
        the limit of `new_tokens` was reached.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    score: float
    ended: Literal["end of document", "stop string", "length"]


@dataclasses.dataclass(frozen=True)
class Writer:
    """A model and its vocabulary, with settings that determine how a text is continued.

    Attributes:
      model: The model.
      params: Its parameters.
      data: The data that the model was trained on, whose vocabulary is used.
      new_tokens: The maximum number of generated tokens.
      method: The method by which tokens are chosen.
      stop: Strings that end a continuation without being part of it.
      seed: The seed for sampling. A sampled continuation depends on the seed and on the number of
        the prompt.
      mesh: The device mesh to use, if any.

    Raises:
      UserError: The vocabulary cannot represent a stop string.
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
            if reason := vocabulary.never_decoded(self.data, stop):
                raise UserError(
                    f"the stop string {stop!r} would never match, because {reason}: remove the "
                    "stop string"
                )

    def encode(self, prompt: str) -> np.ndarray:
        """Return the ids of a prompt for the model, int32 `[P]`, beginning with token 0.

        Raises:
          UserError: The prompt is empty or not valid UTF-8, the vocabulary lacks some of its
            characters, or the model's embedding has no row for one of its tokens.
        """
        if not prompt:
            raise UserError("the prompt is empty: it must have at least one character")
        if any("\ud800" <= character <= "\udfff" for character in prompt):
            raise UserError(f"the prompt {prompt[:40]!a} is not valid UTF-8: convert it to UTF-8")
        if lacking := vocabulary.unknown(self.data, prompt):
            raise UserError(
                f"the prompt {prompt[:40]!r} contains {lacking!r}, which the vocabulary "
                f"{self.data.vocabulary} cannot represent: remove that text"
            )
        ids = np.concatenate([[0], vocabulary.encode(self.data, prompt)]).astype(np.int32)
        check_token_ids(ids, self.model.vocab_size, f"the prompt {prompt[:40]!r}")
        return ids

    def continue_prompts(
        self,
        prompts: Sequence[np.ndarray],
        numbers: Sequence[int],
        context_length: int | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> list[list[Continuation]]:
        """Return the continuations of each encoded prompt.

        Beams are sorted from best to worst, and samples are in the order of sampling.

        Args:
          numbers: The numbers of the prompts, from which the random keys are derived.
          context_length: The number of tokens in a prompt together with its continuation. The
            default is the number that the longest prompt needs.
          on_text: A callback that receives the text of the first prompt's continuation as it grows.
            Beam search does not call it.

        Raises:
          UserError: A prompt is too long for the model.
          RunFailed: The model returns NaN.
        """
        lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        rows = np.zeros((len(prompts), width(int(lengths.max()))), np.int32)
        for row, prompt in zip(rows, prompts, strict=True):
            row[: len(prompt)] = prompt
        key = jax.random.key(self.seed)
        keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(jnp.asarray(numbers))

        def show(tokens_BKT: np.ndarray) -> None:
            assert on_text is not None
            on_text(self.text_of(prompts[0], tokens_BKT[0, 0])[0])

        generated = generate(
            self.model,
            self.params,
            rows,
            lengths,
            new_tokens=self.new_tokens,
            method=self.method,
            stop_ids=(vocabulary.end_of_document(self.data),),
            keys_B=keys,
            context_length=context_length,
            mesh=self.mesh,
            on_tokens=show if on_text else None,
        )
        return [self._of_example(generated, *example) for example in enumerate(prompts)]

    def text_of(
        self, prompt: Sequence[int] | np.ndarray, tokens: Sequence[int] | np.ndarray
    ) -> tuple[str, bool]:
        """Return the text of ids after a prompt, and whether a stop string truncated the text."""
        text = vocabulary.decode_after(self.data, prompt, tokens)
        ends = [place for stop in self.stop if (place := text.find(stop)) >= 0]
        return (text[: min(ends)], True) if ends else (text, False)

    def _of_example(
        self, generated: Generated, example: int, prompt: np.ndarray
    ) -> list[Continuation]:
        """Return the continuations of the prompt with the index `example`."""
        continuations = []
        for k, length in enumerate(generated.lengths_BK[example]):
            if not length:
                continue  # there are fewer beams than requested
            tokens = generated.tokens_BKT[example, k, :length]
            text, cut = self.text_of(prompt, tokens)
            ended = "end of document" if generated.stopped_BK[example, k] else "length"
            continuations.append(
                Continuation(
                    text,
                    tuple(map(int, tokens)),
                    tuple(map(float, generated.logprobs_BKT[example, k, :length])),
                    float(generated.scores_BK[example, k]),
                    "stop string" if cut else ended,  # type: ignore[arg-type]
                )
            )
        return continuations


def width(length: int) -> int:
    """Return the width to which prompts of `length` tokens are padded."""
    return padded_length(length, _SMALLEST_WIDTH)
