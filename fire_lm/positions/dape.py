"""DAPE: an MLP over the heads that corrects each logit, given q·k and the bias of all heads.

Source: Zheng et al., "DAPE" (NeurIPS 2024, arXiv:2405.14722). For a query and a key, with A = q·k /
sqrt(H) and the bias B of another encoding, `[N]` each,

    logit = A + B + W2 leaky(W1 [A; B] + b1) + b2

The encoding of B is combined with this one by `together.Together`. The authors' FIRE has one hidden
layer, with a leaky ReLU, and its threshold starts at 64. DAPE v2, which also convolves along the
keys, is absent: a row of it would depend on whether one more key exists.

Shapes: B batch, T queries, S keys, N heads, U = 2N, F hidden.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from fire_lm.errors import UserError
from fire_lm.positions.base import Params, PositionalEncoding

# The default precision on TPU would round these float32 operands to bfloat16.
_exact = functools.partial(jnp.einsum, precision="highest")


@dataclasses.dataclass(frozen=True)
class DAPE(PositionalEncoding):
    """An MLP over the heads' logits. Parameters per layer for 12 heads: 1,196.

    The TPU kernel does not support it.

    Attributes:
      hidden: The width F of the MLP.
      slope: The slope of the leaky ReLU below 0.
    """

    hidden: int = 32
    slope: float = 0.01

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise UserError(f"DAPE.hidden is {self.hidden}: it must be 1 or more")

    def init(self, rng: jax.Array) -> Params:
        """Draw all parameters from U(-r, r) with r = 1 / sqrt(inputs), torch's default."""
        shapes = {"1": (2 * self.num_heads, self.hidden), "2": (self.hidden, self.num_heads)}
        rngs = iter(jax.random.split(rng, 4))
        params: Params = {}
        for layer, (inputs, outputs) in shapes.items():
            r = 1 / math.sqrt(inputs)
            for name, shape in (("W", (inputs, outputs)), ("b", (outputs,))):
                params[name + layer] = jax.random.uniform(next(rngs), shape, jnp.float32, -r, r)
        return params

    def mix(
        self, params: Params, products_BNTS: jax.Array, bias_BNTS: jax.Array | None
    ) -> jax.Array:
        logits_BNTS = super().mix(params, products_BNTS, bias_BNTS)
        if bias_BNTS is None:
            bias_BNTS = jnp.zeros_like(products_BNTS)
        bias_BNTS = jnp.broadcast_to(bias_BNTS, products_BNTS.shape)
        both_BUTS = jnp.concatenate([products_BNTS, bias_BNTS], axis=1)
        hidden_BFTS = _exact("BUTS,UF->BFTS", both_BUTS, params["W1"])
        hidden_BFTS = hidden_BFTS + params["b1"][None, :, None, None]
        hidden_BFTS = jnp.where(hidden_BFTS > 0, hidden_BFTS, self.slope * hidden_BFTS)
        change_BNTS = _exact("BFTS,FN->BNTS", hidden_BFTS, params["W2"])
        return logits_BNTS + change_BNTS + params["b2"][None, :, None, None]
