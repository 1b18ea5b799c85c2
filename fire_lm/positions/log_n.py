"""Attention scaled by log n, which sharpens the softmax of queries that see more keys.

Source: Su, "scaled dot product attention from entropy invariance" (kexue.fm/archives/8823):
softmax(log_m(n) q·k / sqrt(H)), where m is the training length. With causal attention, n is the
number of keys that the query sees, that is, its position in its own document, counted from 1. This
number does not depend on the positions that an encoding receives, so random positions leave it
unchanged (kexue.fm/archives/9444 recommends combining the two methods). A model trained with the
scaling uses it at all lengths; for a model trained without the scaling, only lengths beyond the
training length are scaled (Qwen's clipped form).

SSMax (Nakanishi, "Scalable-Softmax", arXiv:2501.19399) learns the factor of each head: softmax(s
log(n) q·k / sqrt(H)). Its s starts so that the mean factor of a training sequence is 1.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.attention.terms import CAUSAL, Mask
from fire_lm.errors import UserError


class Scales(NamedTuple):
    """The factors that multiply a query's logits (q·k) and its bias.

    Each is float32 `[B or 1, T]`; None means 1 for all queries.
    """

    on_logits_BT: jax.Array | None
    on_bias_BT: jax.Array | None


@dataclasses.dataclass(frozen=True)
class LogN:
    """A scaling of attention by log_m(n) for queries that see n keys, usable with every encoding.

    Attributes:
      clipped: Whether to replace factors below 1 by 1, as is needed for a model that was trained
        without the scaling. Training with the scaling uses False.
      on: The terms that are multiplied: "logits" (only q·k), "bias" (only the encoding's bias) or
        "both".
      learned: Whether each head learns its factor s on log(n), as in SSMax. Parameters per layer
        for 12 heads: 12.
    """

    clipped: bool = False
    on: Literal["logits", "bias", "both"] = "logits"
    learned: bool = False

    def __post_init__(self) -> None:
        if self.clipped and self.learned:
            raise UserError(
                "LogN.clipped and LogN.learned are both True: a clipped factor is for models that "
                "were trained without the scaling, so set one to False"
            )

    def initial_scale(self, train_length: int, mask: Mask = CAUSAL) -> float:
        """Return the s that gives the queries of a training sequence the mean factor 1."""
        place = np.arange(train_length)
        first, last = 0 * place, place if mask.causal else 0 * place + train_length - 1
        if mask.window is not None:
            first = np.maximum(first, place - mask.window + 1)
            last = np.minimum(last, place + mask.window - 1)
        if mask.chunk is not None:
            start = place - place % mask.chunk
            first, last = np.maximum(first, start), np.minimum(last, start + mask.chunk - 1)
        return 1 / max(float(np.mean(np.log(last - first + 1))), 1e-3)

    def factor(self, keys_BT: jax.Array, train_length: int) -> jax.Array:
        """Return log(n) / log(train_length) for n = `keys_BT` keys per query, float32 `[B, T]`.

        If `clipped` is set, smaller factors are replaced by 1. If `learned` is set, the result is
        log(n), which the learned factor of each head multiplies.
        """
        keys_BT = keys_BT.astype(jnp.float32)
        if self.learned:
            return jnp.log(keys_BT)
        factor_BT = jnp.log(keys_BT) * np.float32(1 / np.log(train_length))
        return jnp.where(keys_BT > train_length, factor_BT, 1.0) if self.clipped else factor_BT

    def scales(
        self, logit_scale_BT: jax.Array | None, keys_BT: jax.Array, train_length: int
    ) -> Scales:
        """Return the factors on the logits and the bias for queries that each see `keys_BT` keys.

        `keys_BT` is int32; `logit_scale_BT` is the encoding's own factor for q·k, or None for 1.
        """
        factor_BT = self.factor(keys_BT, train_length)
        if self.on != "bias":
            logit_scale_BT = factor_BT if logit_scale_BT is None else logit_scale_BT * factor_BT
        return Scales(logit_scale_BT, None if self.on == "logits" else factor_BT)

    def __str__(self) -> str:
        """Return the name used in tables of results; different settings have different names."""
        form = "-clipped" if self.clipped else "-learned" if self.learned else ""
        return f"log_n{form}" + ("" if self.on == "logits" else f"-{self.on}")
