"""Methods for choosing the next token: greedy decoding, sampling and beam search.

Shapes: B examples, K continuations of each, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from fire_lm.errors import UserError


@dataclasses.dataclass(frozen=True)
class Greedy:
    """Greedy decoding, which chooses the likeliest token."""

    @property
    def label(self) -> str:
        """The name of the method in results."""
        return "greedy"

    @property
    def continuations(self) -> int:
        return 1

    def choose(self, logits_BKV: jax.Array, keys_BK: jax.Array) -> jax.Array:
        """Return token ids, int32 `[B, K]`; the random keys are not used."""
        del keys_BK
        return jnp.argmax(logits_BKV, axis=-1).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class Sample:
    """Sampling from the model's distribution after temperature, top-k and top-p, in this order.

    Hugging Face Transformers uses the same order.

    Attributes:
      temperature: The divisor of the logits, at least 1e-6.
      top_k: The number of likeliest tokens to draw from; None means all tokens.
      top_p: The probability that limits the tokens to draw from to the smallest set of likeliest
        tokens whose total probability is at least `top_p`; 1 means all tokens.
      samples: The number of continuations of each prompt.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    samples: int = 1

    def __post_init__(self) -> None:
        if not 1e-6 <= self.temperature < math.inf:  # below 1e-6, logits overflow float32
            raise UserError(
                f"temperature is {self.temperature:g}: it must be finite and at least 1e-6 (for 0, "
                "use Greedy)"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k is {self.top_k}: it must be 1 or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p:g}: it must be greater than 0 and at most 1")
        if self.samples < 1:
            raise UserError(f"samples is {self.samples}: it must be 1 or more")

    @property
    def label(self) -> str:
        filters = f"-k{self.top_k}" if self.top_k else ""
        filters += f"-p{self.top_p:g}" if self.top_p < 1 else ""
        return f"sample-t{self.temperature:g}{filters}"

    @property
    def continuations(self) -> int:
        return self.samples

    def choose(self, logits_BKV: jax.Array, keys_BK: jax.Array) -> jax.Array:
        """Return token ids, int32 `[B, K]`; each continuation uses its own random key."""
        draw = jax.vmap(jax.vmap(jax.random.categorical))
        logits_BKV = logits_BKV / self.temperature
        if self.top_k is None and self.top_p == 1:
            return draw(keys_BK, logits_BKV).astype(jnp.int32)
        size = logits_BKV.shape[-1]
        sorted_BKV, id_BKV = jax.lax.top_k(logits_BKV, min(size, self.top_k or size))
        probability_BKV = jax.nn.softmax(sorted_BKV, axis=-1)
        before_BKV = jnp.cumsum(probability_BKV, axis=-1) - probability_BKV
        sorted_BKV = jnp.where(before_BKV < self.top_p, sorted_BKV, -jnp.inf)
        place_BK1 = draw(keys_BK, sorted_BKV)[..., None]
        return jnp.take_along_axis(id_BKV, place_BK1, axis=-1)[..., 0].astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class Beam:
    """Beam search with the length penalty of Wu et al. (2016), Eq. 14, but no coverage penalty.

    Attributes:
      beams: K, the number of live hypotheses.
      alpha: The exponent of the penalty ((5 + n) / 6)^alpha that divides the log-probability of n
        generated tokens, including the stop token. The tokens of the prompt do not count;
        otherwise, the penalty would be nearly constant after a long prompt.
    """

    beams: int = 4
    alpha: float = 0.6

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise UserError(f"beams is {self.beams}: it must be 1 or more")
        if not 0 <= self.alpha < math.inf:
            raise UserError(f"alpha is {self.alpha:g}: it must be finite and at least 0")

    @property
    def label(self) -> str:
        return f"beam-{self.beams}" + (f"-alpha{self.alpha:g}" if self.alpha != 0.6 else "")

    @property
    def continuations(self) -> int:
        return self.beams

    def penalty(self, length: jax.Array | int) -> jax.Array:
        """Return the divisor of the log-probability of `length` generated tokens, float32."""
        return ((5.0 + jnp.asarray(length, jnp.float32)) / 6.0) ** self.alpha


Method = Greedy | Sample | Beam
