"""T5's relative position bias: one learned number per head and bucket of distances.

Source: Raffel et al. (JMLR 2020) and their code, in the causal (unidirectional) form; Eq. 6 of the
FIRE paper with K + 1 = `num_buckets`. Let B = `num_buckets`, E = B / 2 and D = `max_distance`.
Every distance n below E has its own bucket; from E on, the buckets are spaced logarithmically up
to D:

    bucket(n) = min(B - 1, E + floor(ln(n / E) / ln(D / E) * (B - E)))

In encoders (the bidirectional form), B is half of `num_buckets`, and later keys have buckets of
their own, numbered from B on.

T5 shares one table among all layers (configs/positions/t5.gin); umT5 has one table per layer
(t5_per_layer.gin). The bias is added to q·k/sqrt(H) without scaling.
"""

from __future__ import annotations

import bisect
import dataclasses
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import UserError
from fire_lm.positions.base import Params, PositionalEncoding, distance


def bucket_starts(num_buckets: int, max_distance: int) -> np.ndarray:
    """Return the smallest distance of each bucket except bucket 0, int32 `[num_buckets - 1]`.

    The bucket of a distance is the number of starts that do not exceed the distance. The starts are
    computed with integer powers instead of logarithms, so that rounding cannot move them.
    """
    exact = num_buckets // 2

    def reached(n: int, step: int) -> bool:
        """Return whether distance n lies in bucket `exact + step` or beyond."""
        return n**exact * exact**step >= max_distance**step * exact**exact

    beyond = range(exact, max_distance + 1)
    starts = list(range(1, exact + 1))
    for step in range(1, num_buckets - exact):
        starts.append(beyond[bisect.bisect_left(beyond, True, key=partial(reached, step=step))])
    return np.asarray(starts, np.int32)


@dataclasses.dataclass(frozen=True)
class T5(PositionalEncoding):
    """A learned bias for each head and bucket of distances.

    Parameters per layer for 12 heads: 768 with the default buckets.

    Attributes:
      num_buckets: The even number B of buckets; the FIRE paper uses 64, and Raffel et al. use 32.
      max_distance: The distance D; distances from D on (and some below D) share the last bucket.
    """

    integer_positions: ClassVar[bool] = True

    num_buckets: int = 64
    max_distance: int = 128

    def __post_init__(self) -> None:
        if self.num_buckets < 2 or self.num_buckets % 2:
            raise UserError(f"T5.num_buckets is {self.num_buckets}: it must be even and at least 2")
        if self.max_distance <= self.num_buckets // 2:
            raise UserError(
                f"T5.max_distance is {self.max_distance}: it must be more than "
                f"{self.num_buckets // 2}, half of T5.num_buckets"
            )

    def init(self, rng: jax.Array) -> Params:
        """Initialise the table as in T5X, uniformly with variance 1 / mean(fan_in, fan_out)."""
        init = jax.nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        return {"table": init(rng, (self.num_buckets, self.num_heads), jnp.float32)}

    def bidirectional(self) -> PositionalEncoding:
        if self.num_buckets % 4:
            raise UserError(
                f"T5.num_buckets is {self.num_buckets}: it must be a multiple of 4 in an encoder, "
                "because earlier and later keys have half of the buckets each"
            )
        return _BidirectionalT5(**self.model_shape, causal=self)

    def bias(
        self, params: Params, q_pos_BT: jax.Array, k_pos_BS: jax.Array, context_length: int
    ) -> jax.Array:
        starts_K = bucket_starts(self.num_buckets, self.max_distance)
        return _bias_of(params["table"], starts_K, q_pos_BT, k_pos_BS)


@dataclasses.dataclass(frozen=True)
class _BidirectionalT5(PositionalEncoding):
    """T5's bias in encoders: as many buckets as `causal`, half of them for later keys.

    The settings and the initial table are those of `causal`.
    """

    integer_positions: ClassVar[bool] = True

    causal: T5

    @property
    def title(self) -> str:
        return f"bidirectional {self.causal.title}"

    @property
    def causal_form(self) -> T5:
        return self.causal

    def init(self, rng: jax.Array) -> Params:
        return self.causal.init(rng)

    def bias(
        self, params: Params, q_pos_BT: jax.Array, k_pos_BS: jax.Array, context_length: int
    ) -> jax.Array:
        half = self.causal.num_buckets // 2
        starts_K = bucket_starts(half, self.causal.max_distance)
        earlier_BNTS, later_BNTS = (
            _bias_of(table_KN, starts_K, q_pos_BT, k_pos_BS)
            for table_KN in (params["table"][:half], params["table"][half:])
        )
        is_later_B1TS = (k_pos_BS[:, None, :] > q_pos_BT[:, :, None])[:, None]
        return jnp.where(is_later_B1TS, later_BNTS, earlier_BNTS)


def _bias_of(
    table_KN: jax.Array, starts_K: np.ndarray, q_pos_BT: jax.Array, k_pos_BS: jax.Array
) -> jax.Array:
    """Return the bias `[B, N, T, S]` of a table of buckets that begin at `starts_K`."""
    for pos in (q_pos_BT, k_pos_BS):
        if not jnp.issubdtype(pos.dtype, jnp.integer):
            raise UserError(
                f"T5 needs integer positions, not {pos.dtype}: its buckets are not defined for "
                "fractional distances\nuse @RandomizedPositions() for resampling, or another "
                "encoding (FIRE, KERPLE, ALiBi)"
            )
    return jax.lax.platform_dependent(
        table_KN,
        distance(q_pos_BT, k_pos_BS),
        cpu=partial(_looked_up, starts_K=starts_K),
        default=partial(_multiplied, starts_K=starts_K),
    )


def _looked_up(table_KN: jax.Array, distance_BTS: jax.Array, starts_K: np.ndarray) -> jax.Array:
    """Gather the bias of each distance from the table, `[B, N, T, S]`."""
    last = int(starts_K[-1])  # the last bucket begins here
    bucket_D = np.searchsorted(starts_K, np.arange(last + 1), side="right")
    by_distance_ND = table_KN[jnp.asarray(bucket_D)].T
    near_BTS = jnp.minimum(distance_BTS, last)
    return jnp.moveaxis(jnp.take(by_distance_ND, near_BTS, axis=1), 1, 0)


def _multiplied(table_KN: jax.Array, distance_BTS: jax.Array, starts_K: np.ndarray) -> jax.Array:
    """Return the same biases as `_looked_up`, but as a product of one-hot buckets and the table.

    Accelerators fuse the comparisons that yield the one-hot buckets into the product. A TPU has no
    fast gather (XLA estimates 28 times the time on a v4), and on a GPU, the gradient of a gather is
    a scatter that adds in no fixed order. "highest" keeps full float32 precision.
    """
    first_K = jnp.asarray(np.append(np.int32(0), starts_K))
    end_K = jnp.asarray(np.append(starts_K, np.iinfo(np.int32).max))
    distance_BTS1 = distance_BTS[..., None]
    in_bucket_BTSK = (distance_BTS1 >= first_K[None, None, None]) & (
        distance_BTS1 < end_K[None, None, None]
    )
    return jnp.einsum(
        "BTSK,KN->BNTS", in_bucket_BTSK.astype(jnp.float32), table_KN, precision="highest"
    )
