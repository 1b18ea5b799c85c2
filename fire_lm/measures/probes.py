"""Internal values of a trained model, as shown in figures.

* The learned biases as a function of distance, as in Figures 4 and 8 of the FIRE paper.
* The attention scores of one head and query, with and without position interpolation, as in Figure
  1 of "Position Interpolation Improves ALiBi Extrapolation" (2310.13017).

Shape suffixes: T = tokens of a text, S = keys, N = heads.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.models import Attention, Decoder, check_token_ids, position_layers, query_logits
from fire_lm.models.mixers.attention import PerHead, bias_scale
from fire_lm.models.positions_of_layers import layers_of_turn
from fire_lm.models.segments import keys_under
from fire_lm.results.tables import AttentionScore, BiasValue


def interpolated(model: Decoder) -> Decoder | None:
    """Return the model with position interpolation, or None if no encoding supports it.

    Also None if layers have a mixer other than attention, so that there are no scores to compare.
    """
    if not all(isinstance(turn.mixer, Attention) for turn in model.turns):
        return None
    changed = tuple(encoding.interpolated() or encoding for encoding in model.encodings)
    return None if changed == model.encodings else model.with_encodings(changed)


def learned_biases(
    model: Decoder,
    params: Any,
    *,
    run: str,
    encoding: str,
    step: int,
    queries: Sequence[int] = (128, 8192),
    points: int = 64,
) -> list[BiasValue]:
    """Return the biases of `queries`, ordered by layer, query, head and key.

    Layers that share their parameters or have no parameters are represented by the first such
    layer, and layers without a bias are omitted. For each query, the context ends at the query
    itself, also in encoders.

    Args:
      model, params: The model and its parameters.
      run, encoding, step: The values of these columns of the rows.
      queries: The queries, counted from 1 as in the paper. In the rows, positions are counted from
        0, so the paper's query 128 with keys 1 .. 128 becomes query 127 with keys 0 .. 127.
      points: The approximate number of keys for each query.
    """
    rows = []
    for layer, positions, own in position_layers(model, params):
        repetition, index = divmod(layer, len(model.turns))
        turn = model.turns[index]
        scale_LN = bias_scale(turn.log_n, PerHead.of_layer(layers_of_turn(model, params, index)))
        before = dataclasses.replace(turn.mask, causal=True)
        for query in (counted_from_1 - 1 for counted_from_1 in queries):
            keys = int(keys_under(before, jnp.int32(query)))
            key_S = query + 1 - keys + sampled_keys(keys - 1, points)
            bias_NS = _bias(own, key_S, positions, turn.log_n, query, keys)
            if bias_NS is not None and scale_LN is not None:
                bias_NS = bias_NS * scale_LN[repetition][:, None]
            rows += [
                BiasValue(run, encoding, step, layer, head, query, int(key), float(value))
                for head, bias_S in enumerate([] if bias_NS is None else np.asarray(bias_NS))
                for key, value in zip(key_S, bias_S, strict=True)
            ]
    return rows


def sampled_keys(query: int, points: int) -> np.ndarray:
    """Return, in ascending order, about `points` of the keys that `query` attends to.

    If there are at most `points` keys, all keys are returned. Otherwise, the keys are spaced evenly
    in the logarithm of distance + 1 and include the query's own key and the oldest key.
    """
    if query < points:
        return np.arange(query + 1, dtype=np.int32)
    distances = np.unique(np.rint(np.geomspace(1, query + 1, points))) - 1
    return (query - distances[::-1]).astype(np.int32)


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5))
def _bias(
    params: Any, key_S: jax.Array, encoding: Any, log_n: Any, query: int, keys: int
) -> jax.Array | None:
    """Return the biases `[N, S]` of a query that sees `keys` keys, or None if there is no bias.

    All layers of an encoding share one compiled program for each query.
    """
    q_pos_BT = jnp.full((1, 1), query, jnp.int32)
    bias_BNTS = encoding.bias(params, q_pos_BT, key_S[None], query + 1)
    if bias_BNTS is None:
        return None
    bias_NS: jax.Array = bias_BNTS[0, :, 0]
    scale_BT = (
        log_n and log_n.scales(None, jnp.full((1, 1), keys), encoding.train_length).on_bias_BT
    )
    return bias_NS if scale_BT is None else bias_NS * scale_BT[0, 0]


def attention_scores(
    model: Decoder,
    params: Any,
    tokens_T: np.ndarray,
    *,
    run: str,
    encoding: str,
    variant: str,
    step: int,
    head: int = -1,
    bins: int = 128,
) -> list[AttentionScore]:
    """Return the pre-softmax scores of the last token in a head of the first layer, by key.

    The keys are divided into bins, oldest keys first. Keys that the token does not see, such as
    those beyond a window, are omitted.

    Args:
      model, params: The model and its parameters.
      tokens_T: The token ids of the input. It should have the length of interest, because encodings
        that depend on the context length use the length of the complete input.
      run, encoding, variant, step: The values of these columns of the rows.
      head: The index of the head, starting at 0; a negative index counts from the last head.
      bins: The maximum number of rows; the keys are divided evenly among them.
    """
    check_token_ids(tokens_T, model.vocab_size, "the text")
    head, query = head % model.size.num_heads, len(tokens_T) - 1
    logits = jax.jit(functools.partial(query_logits, model, layer=0, query=query))
    score_S = np.asarray(logits(params, jnp.asarray(tokens_T, jnp.int32)[None]))[0, head]
    rows = []
    seen_S = np.flatnonzero(score_S != -np.inf)
    for key_S in np.array_split(seen_S, min(bins, len(seen_S))):
        score = score_S[key_S]
        place = (run, encoding, variant, step, 0, head, query, int(key_S[0]), int(key_S[-1]))
        rows.append(
            AttentionScore(*place, float(score.mean()), float(score.min()), float(score.max()))
        )
    return rows
