"""A model's answers to synthetic exercises, in the layouts `slots` and `autoregressive`.

Exercises in the layout `slots` are answered in a single forward pass, in padded rows
(padded_rows.py), so the accuracy at a length depends neither on the width nor on the batch.

Shapes: B = exercises, T = tokens, m = symbols in an answer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import RunFailed
from fire_lm.generation import generate
from fire_lm.measures.padded_rows import padded_logits
from fire_lm.models import (
    Decoder,
    depends_on_length,
    padded_length,
    padded_positions,
    readable_length,
    reason_of_nan,
)
from fire_lm.tasks.synthetic import Sample, Task
from fire_lm.tasks.synthetic.layouts import answers, lay_out, prompt, row_length

# The minimum numbers of tokens to which rows or prompts, and answers, are padded.
_SMALLEST_WIDTH, _SMALLEST_ANSWER = 16, 2
# The maximum number of tokens in a forward pass, unless a row has more. On CPUs, the arrays of two
# rows of 1,000 tokens fit into caches.
_TOKENS_AT_A_TIME = 2**11

NOT_A_NUMBER = -1  # in place of the id of a token if the logits are NaN

# A function (exercises, length) -> answers, int [B, m]; all exercises have this length.
Answering = Callable[[Sequence[Sample], int], np.ndarray]


def slot_answers(model: Decoder, params: Any, task: Task) -> Answering:
    """Return a function that answers exercises in the layout `slots`.

    The function uses the model's evaluation positions. It raises RunFailed if the model returns
    NaN, because the most likely symbol would then be an arbitrary one.
    """
    exact = any(encoding.uses_context_length for encoding in model.encodings)

    def answering(samples: Sequence[Sample], length: int) -> np.ndarray:
        tokens = row_length(task, "slots", length)
        padded = tokens if exact else padded_length(tokens, _SMALLEST_WIDTH)
        width = readable_length(model, tokens, padded)
        pos_1T = padded_positions(model, tokens, width)[None]
        segment_1T = (np.arange(width) < tokens).astype(np.int32)[None]
        inputs_BT = lay_out(task, "slots", samples, width).inputs
        rows = min(len(samples), max(1, _TOKENS_AT_A_TIME // width))
        filled_BT = np.pad(inputs_BT, ((0, -len(samples) % rows), (0, 0)), mode="edge")
        parts = np.split(filled_BT, len(filled_BT) // rows)
        ids = [predicted(model)(params, part, pos_1T, segment_1T) for part in parts]
        answer_BT = np.concatenate(jax.device_get(ids))[: len(samples)]
        if (answer_BT[:, :tokens] == NOT_A_NUMBER).any():
            raise RunFailed(
                f"{task.label} at length {length}: the model returns NaN: "
                f"{reason_of_nan(model, params, tokens)}"
            )
        return answers(task, "slots", answer_BT, length)

    return answering


@functools.lru_cache(maxsize=4)
def predicted(model: Decoder) -> jax.stages.Wrapped:
    """Return a jitted function that maps inputs `[B, T]` to the most likely ids, int32 `[B, T]`.

    An id is `NOT_A_NUMBER` if a logit of the token is NaN.
    """

    @jax.jit
    def ids(params: Any, inputs_BT: Any, pos_1T: Any, segment_1T: Any) -> jax.Array:
        segment_BT = jnp.broadcast_to(segment_1T, inputs_BT.shape)
        logits_BTV = padded_logits(model, params, inputs_BT, pos_1T, segment_BT)
        broken_BT = jnp.isnan(logits_BTV).any(axis=-1)
        return jnp.where(broken_BT, NOT_A_NUMBER, jnp.argmax(logits_BTV, axis=-1)).astype(jnp.int32)

    return ids


def generated_answers(model: Decoder, params: Any, task: Task) -> Answering:
    """Return a function that answers exercises by greedy decoding.

    Each answer has the same number of tokens as the correct answer. More tokens are generated where
    that does not change the first ones, so that few programs are compiled. The model uses its
    evaluation positions.
    """

    def answering(samples: Sequence[Sample], length: int) -> np.ndarray:
        prompts = [prompt("autoregressive", sample) for sample in samples]
        lengths = np.array([len(ids) for ids in prompts], np.int32)
        longest, size = int(lengths.max()), task.answer_length(length)
        rows = np.zeros((len(prompts), padded_length(longest, _SMALLEST_WIDTH)), np.int32)
        for row, ids in zip(rows, prompts, strict=True):
            row[: len(ids)] = ids
        exact = depends_on_length(model, longest + size)
        padded = size if exact else padded_length(size, _SMALLEST_ANSWER)
        new_tokens = readable_length(model, longest + size, longest + padded) - longest
        generated = generate(model, params, rows, lengths, new_tokens=new_tokens)
        return answers(task, "autoregressive", generated.tokens_BKT[:, 0], length)

    return answering
