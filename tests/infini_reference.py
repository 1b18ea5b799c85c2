"""Infini-attention written out in NumPy: one token, head and segment after another, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# The memory of each head at borders that gradients do not cross, by the index of the segment.
Constants = dict[tuple[int, int], tuple[np.ndarray, np.ndarray, int | None]]


def mixed_row(
    params: Any,
    y_TD: np.ndarray,
    documents: Sequence[int],
    tokens: int,
    rule: str,
    stops: Sequence[int] = (),
    constants: Constants | None = None,
) -> tuple[np.ndarray, Constants]:
    """Return the output `[T, D]` of a mixer with ALiBi's bias for one row.

    Args:
      params: The parameters of the layer.
      y_TD: The input.
      documents: The document of each token.
      tokens: The number of tokens in a segment.
      rule: As in `InfiniAttention`.
      stops: The segments before which the memory is a constant, as for gradients.
      constants: The memory there; by default, that of this row, which is the second result.
    """
    q, k, v = (
        np.tensordot(y_TD, params[name]["kernel"], 1) + params[name]["bias"]
        for name in ("query", "key", "value")
    )
    gates = 1 / (1 + np.exp(-params["mixer_gate"]))
    heads, kept = [], constants or {}
    for n, gate in enumerate(gates):
        slope = 2.0 ** (-8 * (n + 1) / len(gates))
        outs, width = [], k.shape[2]
        memory, weight, owner = np.zeros((width, v.shape[2])), np.zeros(width), None
        for index, start in enumerate(range(0, len(y_TD), tokens)):
            rows = range(start, min(start + tokens, len(y_TD)))
            if index in stops:
                memory, weight, owner = kept.setdefault((n, index), (memory, weight, owner))
            for i in rows:
                seen = [j for j in rows if j <= i and documents[j] == documents[i]]
                logits = [q[i, n] @ k[j, n] / width**0.5 - slope * (i - j) for j in seen]
                out = np.exp(logits) / np.sum(np.exp(logits)) @ v[seen, n]
                if documents[i] == owner:
                    out = gate * read(memory, weight, q[i, n]) + (1 - gate) * out
                outs.append(out)
            last = documents[rows[-1]]
            old = (memory, weight)
            if owner != last:
                memory, weight = np.zeros_like(memory), np.zeros_like(weight)
            for j in (j for j in rows if documents[j] == last):
                value = v[j, n]
                if rule == "delta" and owner == last:
                    value = value - read(*old, k[j, n])
                memory = memory + np.outer(feature(k[j, n]), value)
                weight = weight + feature(k[j, n])
            owner = last
        heads.append(outs)
    out = params["attention_out"]
    return np.tensordot(np.swapaxes(np.array(heads), 0, 1), out["kernel"], 2) + out["bias"], kept


def read(memory: np.ndarray, weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    return feature(x) @ memory / (feature(x) @ weight)


def feature(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.exp(x) - 1) + 1
