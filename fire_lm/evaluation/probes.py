"""Numbers from inside a trained model, for figures.

* Learned biases by distance: Figures 4 and 8 of the FIRE paper.
* Attention scores of one head and query, with and without position interpolation: Figure 1 of
  "Position Interpolation Improves ALiBi Extrapolation" (2310.13017).

Shapes: T tokens of a text, S keys, N heads.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.models import Decoder, position_layers, query_logits
from fire_lm.results.tables import AttentionScore, BiasValue


def interpolated(model: Decoder) -> Decoder | None:
    """Return the model with position interpolation, or None if no encoding supports it."""
    changed = tuple(encoding.interpolated() or encoding for encoding in model.encodings)
    return None if changed == model.encodings else model.clone(encodings=changed)


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
    """Return the biases of some queries by layer, query, head and key.

    Layers that share their parameters, or have none, are represented once, by the first of them;
    layers without a bias are omitted. The input ends at the query.

    Args:
      model: The model.
      params: Its parameters.
      run: The run's name in the rows.
      encoding: The encoding's name in the rows.
      step: The step in the rows.
      queries: The queries, counted from 1 as in the paper: its query 128 with keys 1 .. 128 becomes
        query 127 with keys 0 .. 127 in the rows, which count from 0.
      points: The approximate number of keys per query.
    """
    rows = []
    for layer, positions, own in position_layers(model, params):
        for query in (counted_from_1 - 1 for counted_from_1 in queries):
            key_S = sampled_keys(query, points)
            bias_NS = _bias(own, key_S, positions, model.log_n, query)
            rows += [
                BiasValue(run, encoding, step, layer, head, query, int(key), float(value))
                for head, bias_S in enumerate([] if bias_NS is None else np.asarray(bias_NS))
                for key, value in zip(key_S, bias_S, strict=True)
            ]
    return rows


def sampled_keys(query: int, points: int) -> np.ndarray:
    """Return keys that `query` attends to, ascending.

    These are all keys, or about `points` of them, spaced evenly in the logarithm of distance + 1.
    The query's own key and the oldest key are among them.
    """
    if query < points:
        return np.arange(query + 1, dtype=np.int32)
    distances = np.unique(np.rint(np.geomspace(1, query + 1, points))) - 1
    return (query - distances[::-1]).astype(np.int32)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _bias(params: Any, key_S: jax.Array, encoding: Any, log_n: Any, query: int) -> jax.Array | None:
    """Return the biases `[N, S]`; the program is compiled once for all layers of an encoding."""
    q_pos_BT = jnp.full((1, 1), query, jnp.int32)
    bias_BNTS = encoding.bias(params, q_pos_BT, key_S[None], query + 1)
    if bias_BNTS is None:
        return None
    bias_NS: jax.Array = bias_BNTS[0, :, 0]
    scale_BT = log_n and log_n.scales(None, q_pos_BT + 1, encoding.train_length).on_bias_BT
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
    layer: int = 0,
    head: int = -1,
    query: int | None = None,
    bins: int = 128,
) -> list[AttentionScore]:
    """Return the scores of one head for a query and its keys before the softmax, oldest keys first.

    Args:
      model: The model.
      params: Its parameters.
      tokens_T: The model's input, of the length of interest: all of it counts as context for
        encodings that depend on the length.
      run: The run's name in the rows.
      encoding: The encoding's name in the rows.
      variant: The name, in the rows, of the changes of `model` from training.
      step: The step in the rows.
      layer: The layer, from 0; negative numbers count from the last one.
      head: The head, likewise.
      query: The query's position in the text; None means the last token.
      bins: The number of rows, among which the keys are divided evenly.
    """
    layer, head = layer % model.size.num_layers, head % model.size.num_heads
    query = len(tokens_T) - 1 if query is None else query
    logits = jax.jit(functools.partial(query_logits, model, layer=layer, query=query))
    score_S = np.asarray(logits(params, jnp.asarray(tokens_T, jnp.int32)[None]))[0, head]
    rows = []
    for key_S in np.array_split(np.arange(query + 1), min(bins, query + 1)):
        score = score_S[key_S]
        place = (run, encoding, variant, step, layer, head, query, int(key_S[0]), int(key_S[-1]))
        rows.append(
            AttentionScore(*place, float(score.mean()), float(score.min()), float(score.max()))
        )
    return rows
