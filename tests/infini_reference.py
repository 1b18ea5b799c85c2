"""Infini-attention written out: one token, head and segment after another, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp


def mixed_row(
    params: Any,
    y_TD: jax.Array,
    documents: Sequence[int],
    slopes: Sequence[float],
    tokens: int,
    rule: str,
    backward: int | None,
) -> jax.Array:
    """Return the output `[T, D]` of a mixer with ALiBi's bias for one row.

    Args:
      params: The parameters of the layer.
      y_TD: The input.
      documents: The document of each token.
      slopes: ALiBi's slope of each head.
      tokens: The number of tokens in a segment.
      rule, backward: As in `InfiniAttention`.
    """
    q, k, v = (
        jnp.tensordot(y_TD, params[name]["kernel"], 1) + params[name]["bias"][None]
        for name in ("query", "key", "value")
    )
    gates = 1 / (1 + jnp.exp(-params["mixer_gate"]))
    heads = [
        _head(q[:, n], k[:, n], v[:, n], gates[n], slope, documents, tokens, rule, backward)
        for n, slope in enumerate(slopes)
    ]
    out = params["attention_out"]
    return jnp.tensordot(jnp.stack(heads, 1), out["kernel"], 2) + out["bias"][None]


def _head(q, k, v, gate, slope, documents, tokens, rule, backward):
    length, width = q.shape
    memory, weight, owner = jnp.zeros((width, v.shape[1])), jnp.zeros(width), None
    outs = []
    for index, start in enumerate(range(0, length, tokens)):
        rows = range(start, min(start + tokens, length))
        if backward is not None and index % backward == 0:
            memory, weight = jax.lax.stop_gradient((memory, weight))
        for i in rows:
            seen = [j for j in rows if j <= i and documents[j] == documents[i]]
            logits = jnp.stack([q[i] @ k[j] / width**0.5 - slope * (i - j) for j in seen])
            weights = jnp.exp(logits) / jnp.sum(jnp.exp(logits))
            out = sum(w * v[j] for w, j in zip(weights, seen, strict=True))
            if documents[i] == owner:
                out = gate * read(memory, weight, q[i]) + (1 - gate) * out
            outs.append(out)
        last = documents[rows[-1]]
        old_memory, old_weight, old_owner = memory, weight, owner
        if owner != last:
            memory, weight = jnp.zeros_like(memory), jnp.zeros_like(weight)
        for j in (j for j in rows if documents[j] == last):
            value = v[j]
            if rule == "delta" and old_owner == last:
                value = value - read(old_memory, old_weight, k[j])
            memory = memory + jnp.outer(feature(k[j]), value)
            weight = weight + feature(k[j])
        owner = last
    return jnp.stack(outs)


def read(memory: jax.Array, weight: jax.Array, x: jax.Array) -> jax.Array:
    return feature(x) @ memory / (feature(x) @ weight)


def feature(x: jax.Array) -> jax.Array:
    return jax.nn.elu(x) + 1
