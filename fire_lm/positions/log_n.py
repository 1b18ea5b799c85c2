"""Attention scaled by log n: queries far out sharpen their softmax over the more keys they see.

Source: Su, "scaled dot product attention from entropy invariance" (kexue.fm/archives/8823):
softmax(log_m(n) q·k / sqrt(H)), m the training length. With causal attention n is the number of
keys that the query sees, i + 1 (i is the drawn position where positions are resampled). Trained as
it is; over a model trained without it, only lengths beyond the training length are scaled (the
clipped form of Qwen).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.attention.common_bias import CommonBias


@dataclasses.dataclass(frozen=True)
class LogN:
    """The factor log_m(i + 1) of a query at position i; composes with every encoding.

    Attributes:
      clipped: at least 1, for a model that was trained without it; False is the training form.
      on: what is multiplied: "logits" (q·k alone), "bias" (the encoding's bias alone), "both".
    """

    clipped: bool = False
    on: Literal["logits", "bias", "both"] = "logits"

    def factor(self, q_pos_BT: jax.Array, train_length: int) -> jax.Array:
        """log(i + 1) / log(train_length), float32 `[B, T]`."""
        factor_BT = jnp.log1p(q_pos_BT.astype(jnp.float32)) * np.float32(1 / np.log(train_length))
        return jnp.maximum(factor_BT, 1.0) if self.clipped else factor_BT

    def scale_logits(
        self, scale_BT: jax.Array | None, q_pos_BT: jax.Array, train_length: int
    ) -> jax.Array | None:
        """The factor on q·k `[B, T]`, on top of the encoding's own `scale_BT`."""
        if self.on == "bias":
            return scale_BT
        factor_BT = self.factor(q_pos_BT, train_length)
        return factor_BT if scale_BT is None else scale_BT * factor_BT

    def scale_bias(
        self, bias_BNTS: jax.Array | None, q_pos_BT: jax.Array, train_length: int
    ) -> jax.Array | None:
        """The bias `[B, N, T, S]` of queries at `q_pos_BT`."""
        if self.on == "logits" or bias_BNTS is None:
            return bias_BNTS
        return bias_BNTS * self.factor(q_pos_BT, train_length)[:, None, :, None]

    def scale_tables(self, tables: CommonBias | None, train_length: int) -> CommonBias | None:
        """The same for the bias as tables."""
        if self.on == "logits" or tables is None:
            return tables
        pos_1P = jnp.arange(tables.gain_P.size)[None]
        return tables._replace(gain_P=tables.gain_P * self.factor(pos_1P, train_length)[0])

    def __str__(self) -> str:
        """Its name in the tables of results; two settings have two names."""
        form = "-clipped" if self.clipped else ""
        return f"log_n{form}" + ("" if self.on == "logits" else f"-{self.on}")
