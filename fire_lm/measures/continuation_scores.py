"""Log-likelihoods of continuations, each conditioned on its own context.

Rows of different lengths share compiled programs (padded_rows.py). If an encoding or the positions
depend on the length of the input, only rows of the same length are scored together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fire_lm.errors import RunFailed
from fire_lm.measures.padded_rows import padded_width
from fire_lm.measures.scoring import batch_results, sequences_at_a_time, target_scorer
from fire_lm.models import Decoder, check_decoder, check_token_ids, depends_on_length, reason_of_nan
from fire_lm.sharding import of_rows

# The ids of a context and the ids of its continuation, neither of which is empty.
Row = tuple[Sequence[int], Sequence[int]]


def continuation_scores(
    model: Decoder, params: Any, rows: Sequence[Row], mesh: Mesh, tokens_per_batch: int = 2**14
) -> Iterator[tuple[int, float, bool]]:
    """Yield the score of the continuation in each row, starting with the longest rows.

    Each item consists of the row's index, the log-probability of the continuation given the
    context, in nats, and whether greedy decoding would generate the continuation. The model reads
    the context and all tokens of the continuation except the last.

    Args:
      model, params: The model and its parameters.
      rows: The contexts and continuations, as token ids.
      mesh: The mesh over which batches are split.
      tokens_per_batch: The maximum number of tokens in a batch, including padding. A batch contains
        at least one row for each part into which `mesh` splits it.

    Raises:
      UserError: An id has no row in the model's embedding, or the model is an encoder.
      TooLarge: A batch does not fit in memory.
      RunFailed: The model returns NaN.
    """
    check_decoder(model)
    for row in rows:
        for ids in row:
            check_token_ids(ids, model.vocab_size, "a text to score")
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    for width, group in _by_width(model, rows).items():
        batch_size = sequences_at_a_time(width, tokens_per_batch, mesh)
        batch_size = min(batch_size, ways * -(-len(group) // ways))
        batches = batch_results(
            target_scorer(model, mesh),
            params,
            _laid_out([rows[index] for index in group], width),
            batch_size,
            mesh,
            f"scoring answers of {batch_size} x {width} tokens at a time",
            "lower evaluate.tokens_per_batch, or the lengths of the inputs",
        )
        scores = itertools.chain.from_iterable(batches)  # also of rows that fill the last batch
        for index, (hits, logprob) in zip(group, scores, strict=False):
            if np.isnan(logprob):
                raise RunFailed(
                    f"the model returns NaN: {reason_of_nan(model, params, width)}",
                    everywhere=True,  # all processes have the same arrays
                )
            yield index, float(logprob), bool(hits == len(rows[index][1]))


def compile_scores(
    model: Decoder, params: Any, tokens: int, mesh: Mesh, tokens_per_batch: int
) -> jax.stages.Compiled:
    """Compile the program of `continuation_scores` for a batch of rows of `tokens` tokens each.

    `params` are shapes with shardings. The devices of the mesh need not be attached to this job.
    """
    width = padded_width(model, tokens)
    shape = sequences_at_a_time(width, tokens_per_batch, mesh), width
    rows_BT = jax.ShapeDtypeStruct(shape, np.int32, sharding=of_rows(mesh, width))
    return target_scorer(model, mesh).lower(params, *[rows_BT] * 4).compile()


def _by_width(model: Decoder, rows: Sequence[Row]) -> dict[int, list[int]]:
    """Return the indices of the rows that are padded to each length, the longest first."""
    counts = [len(context) + len(continuation) - 1 for context, continuation in rows]
    exact = depends_on_length(model, max(counts, default=1))
    widths: dict[int, list[int]] = {}
    for index in sorted(range(len(rows)), key=lambda index: -counts[index]):
        widths.setdefault(padded_width(model, counts[index], exact), []).append(index)
    return widths


def _laid_out(rows: Sequence[Row], width: int) -> list[np.ndarray]:
    """Return the inputs, targets, weights and segments of rows, each int32 `[B, T]`."""
    read, targets, weights, segments = np.zeros((4, len(rows), width), np.int32)
    for number, (context, continuation) in enumerate(rows):
        ids = [*context, *continuation]
        end = len(ids) - 1
        read[number, :end], targets[number, :end] = ids[:-1], ids[1:]
        weights[number, end - len(continuation) : end] = 1
        segments[number, :end] = 1
    return [read, targets, weights, segments]
