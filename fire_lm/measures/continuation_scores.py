"""Log-likelihoods of continuations, each conditioned on its own context.

Rows of different lengths share compiled programs: they are padded on the right, and the padding is
a separate segment that no token attends to. If an encoding or the positions depend on the length of
the input, only rows of the same length are scored together, without padding.

Shape suffixes: B = batch, T = tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fire_lm.hardware.memory import check_program
from fire_lm.measures.scoring import sequences_at_a_time
from fire_lm.models import (
    Decoder,
    check_token_ids,
    depends_on_length,
    keys_seen,
    readable_length,
)
from fire_lm.models.loss import target_losses
from fire_lm.sharding import ACTIVATIONS, BATCH

_SHORTEST = 32

# The ids of a context and the ids of its continuation, neither of which is empty.
Row = tuple[Sequence[int], Sequence[int]]


def continuation_scores(
    model: Decoder,
    params: Any,
    rows: Sequence[Row],
    mesh: Mesh,
    tokens_per_batch: int = 2**14,
) -> Iterator[tuple[int, float, bool]]:
    """Yield the score of the continuation in each row, starting with the longest rows.

    Each item consists of the row's index, the log-probability of the continuation given the
    context, in nats, and whether greedy decoding would generate the continuation. The model reads
    the context and all tokens of the continuation except the last.

    Args:
      model: The model.
      params: The parameters of the model.
      rows: The contexts and continuations, as token ids.
      mesh: The mesh over which batches are split.
      tokens_per_batch: The maximum number of tokens in a batch, including padding. A batch contains
        at least one row for each part into which `mesh` splits it.

    Raises:
      UserError: An id has no row in the model's embedding.
      TooLarge: A batch does not fit in memory.
    """
    for row in rows:
        for ids in row:
            check_token_ids(ids, model.vocab_size, "a text to score")
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    for width, group in _of_one_width(model, rows):
        batch_size = sequences_at_a_time(width, tokens_per_batch, mesh)
        batch_size = min(batch_size, ways * -(-len(group) // ways))
        pos_1T = np.asarray(model.resampling.evaluation_positions(width))
        for start in range(0, len(group), batch_size):
            part = group[start : start + batch_size]
            arrays = _laid_out([rows[index] for index in part], width, batch_size)
            layout = NamedSharding(mesh, BATCH)
            placed = [jax.make_array_from_callback(x.shape, layout, x.__getitem__) for x in arrays]
            scorer = _scorer(model, mesh)
            if start == 0:
                check_program(
                    scorer.lower(params, pos_1T, *placed).compile(),  # `scorer` keeps the program
                    list(mesh.devices.flat),
                    f"scoring answers of {batch_size} x {width} tokens at a time",
                    "lower evaluate.tokens_per_batch, or the lengths of the inputs",
                )
            found = scorer(params, pos_1T, *placed)
            logprob_B, greedy_B = (np.asarray(x)[: len(part)] for x in found)
            yield from zip(part, map(float, logprob_B), map(bool, greedy_B), strict=True)


def compile_scores(
    model: Decoder, params: Any, tokens: int, mesh: Mesh, tokens_per_batch: int
) -> jax.stages.Compiled:
    """Compile the program of `continuation_scores` for a batch of rows.

    Args:
      model: The model.
      params: The shapes and shardings of the parameters.
      tokens: The number of tokens that the model reads in each row.
      mesh: The mesh, whose devices need not be attached to this job.
      tokens_per_batch: The maximum number of tokens in a batch, including padding.
    """
    width = padded_width(model, tokens)
    batch_size = sequences_at_a_time(width, tokens_per_batch, mesh)
    rows_BT = jax.ShapeDtypeStruct(
        (batch_size, width), np.int32, sharding=NamedSharding(mesh, BATCH)
    )
    pos_1T = np.asarray(model.resampling.evaluation_positions(width))
    return _scorer(model, mesh).lower(params, pos_1T, *[rows_BT] * 4).compile()


def padded_width(model: Decoder, tokens: int) -> int:
    """Return the padded length at which a row of `tokens` tokens is scored."""
    return _width(model, tokens, depends_on_length(model, tokens))


def _width(model: Decoder, tokens: int, exact: bool) -> int:
    if exact:
        return tokens
    return readable_length(model, tokens, max(_SHORTEST, 1 << (tokens - 1).bit_length()))


def _of_one_width(model: Decoder, rows: Sequence[Row]) -> Iterator[tuple[int, list[int]]]:
    """Yield each padded length, longest first, with the indices of the rows padded to it."""
    counts = [len(context) + len(continuation) - 1 for context, continuation in rows]
    exact = depends_on_length(model, max(counts, default=1))
    widths: dict[int, list[int]] = {}
    for index in sorted(range(len(rows)), key=lambda index: -counts[index]):
        widths.setdefault(_width(model, counts[index], exact), []).append(index)
    yield from widths.items()


def _laid_out(rows: Sequence[Row], width: int, batch_size: int) -> list[np.ndarray]:
    """Return the inputs, targets, weights and segments of a batch, each int32 `[B, T]`.

    If there are fewer than `batch_size` rows, the arrays end with rows of zeros.
    """
    read, targets, weights, segments = np.zeros((4, batch_size, width), np.int32)
    for number, (context, continuation) in enumerate(rows):
        ids = [*context, *continuation]
        end = len(ids) - 1
        read[number, :end], targets[number, :end] = ids[:-1], ids[1:]
        weights[number, end - len(continuation) : end] = 1
        segments[number, :end] = 1
    return [read, targets, weights, segments]


@functools.lru_cache(maxsize=4)
def _scorer(model: Decoder, mesh: Mesh) -> jax.stages.Wrapped:
    """Return a jitted function that scores the arrays that `_laid_out` returns.

    The function returns two arrays `[B]`: the log-probability of each continuation, and whether
    greedy decoding would generate it.
    """

    # As in `scoring.scorer`, a loop over layers costs nothing without a backward pass.
    activations = NamedSharding(mesh, ACTIVATIONS)
    model = model.clone(scan_layers=True, remat="none", activation_sharding=activations)

    @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, PartitionSpec()))
    def scores(
        params: Any, pos_1T: Any, inputs_BT: Any, targets_BT: Any, weights_BT: Any, segment_BT: Any
    ) -> tuple[jax.Array, jax.Array]:
        # All rows share their positions, and therefore the bias. For log n on the bias, they must
        # also share the number of keys seen, which the segments would change for padding only.
        seen_1T = keys_seen(inputs_BT.shape[1])
        found = model.apply({"params": params}, inputs_BT, pos_1T, segment_BT, seen_BT=seen_1T)
        logits_BTV = cast(jax.Array, found)
        logits_BTV = logits_BTV.astype(jnp.float32)
        logprob_BT = -target_losses(logits_BTV, targets_BT)[0]
        counts_BT = weights_BT > 0
        greedy_BT = jnp.argmax(logits_BTV, axis=-1) == targets_BT
        return (
            jnp.sum(jnp.where(counts_BT, logprob_BT, 0.0), axis=-1),
            jnp.all(greedy_BT | ~counts_BT, axis=-1),
        )

    return scores
