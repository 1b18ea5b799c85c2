"""FoX: forget gates, with which each token lowers the logits of all earlier keys of a head.

Source: Lin et al., "Forgetting Transformer" (ICLR 2025, arXiv:2503.02130), and its code,

    f_i = sigmoid(y_i W + b),   logit_ij = q_i·k_j / sqrt(H) + sum_{j < m <= i} log f_m

where y is the normed input of the layer. CABLE (arXiv:2503.08067) is the same model with the
opposite signs of W and b, since log sigmoid(z) = -softplus(-z). Without W, the gates are a learned
slope of ALiBi, and gates that are not learned are ALiBi itself.

The authors decay W with the rate 0.1; here, as for all parameters of encodings, there is no weight
decay. Gates use no positions: random positions and interpolation do not act on them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import UserError
from fire_lm.positions.base import Params, PositionalEncoding


@dataclasses.dataclass(frozen=True)
class FoX(PositionalEncoding):
    """A forget gate for each head.

    Parameters per layer for 12 heads: 1,164 at a width of 96, 12 without W, or 0 with fixed gates.
    At a width of 768, there are 9,228.

    Attributes:
      gates: "learned" computes gates from the input of the layer, "bias" learns one constant for
        each head, and "fixed" uses constants.
      init_bias: The initial b. With 0, as in the paper, a token halves all earlier weights, which
        hides other encodings of the layer at first; with 5, the half-life is about 100 tokens. It
        has no effect on fixed gates.
      shortest, longest: The time constants t of the first and the last head in tokens, for gates
        e^(-1/t) that are fixed. Those between are spaced evenly in log t. With the defaults, 8
        heads have ALiBi's slopes.
    """

    gates: Literal["learned", "bias", "fixed"] = "learned"
    init_bias: float = 0.0
    shortest: float = 2.0
    longest: float = 256.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            unused = field.name in ("shortest", "longest") and self.gates != "fixed"
            if unused and value != field.default:
                raise UserError(
                    f"FoX.{field.name} is {value:g}: it has no effect with FoX.gates = "
                    f"'{self.gates}', so leave it at {field.default:g}"
                )
        if not 0 < self.shortest <= self.longest < math.inf:
            raise UserError(
                f"FoX.shortest is {self.shortest:g} and FoX.longest is {self.longest:g}: shortest "
                "must be above 0, and longest at least as long"
            )

    @property
    def constant_init(self) -> bool:
        return self.gates == "bias"

    def init(self, rng: jax.Array) -> Params:
        bias_N = jnp.full((self.num_heads,), self.init_bias, jnp.float32)
        if self.gates == "fixed":
            return {}
        if self.gates == "bias":
            return {"b": bias_N}
        shape = (self.hidden_size, self.num_heads)
        return {"gate_W": 0.02 * jax.random.normal(rng, shape), "b": bias_N}

    def log_decay(self, params: Params, y_BTD: jax.Array) -> jax.Array:
        if self.gates == "learned":
            y_BTD, W_DN = y_BTD.astype(jnp.float32), params["gate_W"]
            # The default precision on TPU would round these float32 operands to bfloat16.
            z_BTN = jnp.einsum("BTD,DN->BTN", y_BTD, W_DN, precision="highest")
            return jax.nn.log_sigmoid(z_BTN + params["b"][None, None])
        if self.gates == "bias":
            log_gate_N = jax.nn.log_sigmoid(params["b"])
        else:
            time_N = np.geomspace(self.shortest, self.longest, self.num_heads)
            log_gate_N = jnp.asarray(-1 / time_N, jnp.float32)
        return jnp.broadcast_to(log_gate_N[None, None], (*y_BTD.shape[:2], self.num_heads))

    def learned_scalars(self, params: Params) -> dict[str, jax.Array]:
        """Return each head's half-life in tokens for the gate sigmoid(b), where y W is 0."""
        half_life_N = math.log(2) / jax.nn.softplus(-params["b"])
        return {f"half_life_{head}": half_life_N[head] for head in range(self.num_heads)}
