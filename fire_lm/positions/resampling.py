"""The positions of a sequence's tokens, which are 0, 1, 2, ... or are drawn in every step.

Training on positions that are spread over more than the training length exposes a model to the
positions of long sequences although the training sequences are short. In each step, all layers use
the same positions.

Sources: Ruoss et al., "Randomized Positional Encodings Boost Length Generalization" (ACL 2023),
section 3, which draws positions for each sequence (the authors' code draws once per batch), in
training and evaluation alike; Su, "equal-mean random positions" (kexue.fm/archives/9444), which
evaluates at 0, 1, 2, ...; arXiv:2602.14050 (RFS), which draws real numbers.

Shapes: B sequences (1 if the batch shares its positions), T tokens.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import UserError

# The smallest extent of a sequence; attention orders tokens by position, so positions must differ.
_SHORTEST = 1e-3


@dataclasses.dataclass(frozen=True)
class Resampling:
    """A rule for the positions of tokens; this base class always uses 0, 1, 2, ..."""

    # Whether training positions may lie between integers.
    float_positions: ClassVar[bool] = False
    # Whether training positions are spread over the same range at every length, so that the first
    # positions of a packed row are not those of a short document.
    spread_over_row: ClassVar[bool] = False
    evaluation_fields: ClassVar[tuple[str, ...]] = ()

    def largest(self, length: int) -> int:
        """Return the exclusive upper bound of the integer positions of `length` tokens.

        Raises:
          UserError: There are too few positions for `length` tokens.
        """
        return length

    def training_positions(
        self, rng: jax.Array, batch_size: int, length: int, tokens_B1: jax.Array | None = None
    ) -> jax.Array:
        """Return increasing positions `[B or 1, T]`, float32 if `float_positions`, or int32.

        With `tokens_B1`, int32 `[B, 1]`, row b is drawn as a sequence of `tokens_B1[b]` tokens, and
        its padding receives later positions, so that no token sees the padding. If the batch shares
        one draw, it is that of the longest row.
        """
        return jnp.arange(length, dtype=jnp.int32)[None]

    def evaluation_positions(self, length: int) -> jax.Array:
        """Return increasing positions `[1, T]`, int32."""
        return jnp.arange(length, dtype=jnp.int32)[None]


@dataclasses.dataclass(frozen=True)
class Drawn(Resampling, abc.ABC):
    """A rule that draws training positions in every step.

    Attributes:
      draw: "sequence" draws for each sequence of a batch; "batch" draws once for all sequences,
        which is cheaper for an encoding with a bias, because sequences that share their positions
        share one bias.
    """

    draw: Literal["sequence", "batch"] = dataclasses.field(default="sequence", kw_only=True)

    @abc.abstractmethod
    def drawn(self, rng: jax.Array, length: int) -> jax.Array:
        """Draw increasing positions `[T]`."""

    @abc.abstractmethod
    def drawn_before_padding(self, rng: jax.Array, length: int, tokens: jax.Array) -> jax.Array:
        """Draw positions `[T]` of `tokens` tokens and of the padding after them.

        `tokens` is an int32 scalar from 1 to T.
        """

    def training_positions(
        self, rng: jax.Array, batch_size: int, length: int, tokens_B1: jax.Array | None = None
    ) -> jax.Array:
        def row(key: jax.Array, tokens: jax.Array | None) -> jax.Array:
            if tokens is None:
                return self.drawn(key, length)
            return self.drawn_before_padding(key, length, tokens[0])

        if self.draw == "batch":
            return row(rng, None if tokens_B1 is None else jnp.max(tokens_B1, axis=0))[None]
        row_B = jnp.arange(batch_size)
        return jax.vmap(lambda b, tokens: row(jax.random.fold_in(rng, b), tokens))(row_B, tokens_B1)


@dataclasses.dataclass(frozen=True)
class RandomizedPositions(Drawn):
    """A rule that draws positions below max_length without replacement (Ruoss et al.).

    Attributes:
      max_length: The number of positions to draw from; at least the longest evaluation length.
      evaluation: The evaluation positions. "random" uses one fixed draw for all sequences, whereas
        the authors' code draws for each batch; standard errors of results therefore do not include
        the variation between draws, and a shorter sequence uses a subset of the positions. "even"
        spaces the positions evenly up to max_length - 1, near the average positions of a draw;
        "plain" means 0, 1, 2, ...
    """

    spread_over_row: ClassVar[bool] = True
    evaluation_fields: ClassVar[tuple[str, ...]] = ("evaluation",)

    max_length: int = 8192
    evaluation: Literal["plain", "even", "random"] = "random"

    def largest(self, length: int) -> int:
        if length > self.max_length:
            raise UserError(
                f"{type(self).__name__}.max_length is {self.max_length}, which is too small for "
                f"{length} tokens: raise it to at least the longest evaluation length"
            )
        return self.max_length

    def drawn(self, rng: jax.Array, length: int) -> jax.Array:
        self.largest(length)
        return jnp.sort(jax.random.permutation(rng, self.max_length)[:length]).astype(jnp.int32)

    def drawn_before_padding(self, rng: jax.Array, length: int, tokens: jax.Array) -> jax.Array:
        """Place all padding at max_length - 1, and draw the tokens' positions from those below."""
        self.largest(length + 1)
        drawn_T = jax.random.permutation(rng, self.max_length - 1)[:length]
        drawn_T = jnp.where(jnp.arange(length) < tokens, drawn_T, self.max_length - 1)
        return jnp.sort(drawn_T).astype(jnp.int32)

    def evaluation_positions(self, length: int) -> jax.Array:
        if self.evaluation == "plain":
            return super().evaluation_positions(length)
        if self.evaluation == "random":
            return self.drawn(jax.random.key(0), length)[None]
        self.largest(length)
        # Integer arithmetic keeps positions distinct: tokens at one position would see each other.
        even = np.arange(length, dtype=np.int64) * (self.max_length - 1) // max(1, length - 1)
        return jnp.asarray(even.astype(np.int32))[None]


@dataclasses.dataclass(frozen=True)
class UniformPositions(RandomizedPositions):
    """A rule that draws real positions uniformly from [0, max_length - 1] (RFS, arXiv:2602.14050).

    The gaps that keep positions distinct in float32 take the share max_length / 2^22 of the
    interval if there are few tokens: 0.2 % of the default, 3 % of 131,072, 25 % of the largest.

    Attributes:
      max_length: The number of positions in the interval; at least the longest evaluation length,
        and at most 2^20.
      evaluation: The evaluation positions, as in `RandomizedPositions`.
    """

    float_positions: ClassVar[bool] = True

    evaluation: Literal["plain", "even"] = "plain"

    def __post_init__(self) -> None:
        if self.max_length > 2**20:
            raise UserError(
                f"UniformPositions.max_length is {self.max_length}: it must be {2**20} or less, "
                "because float32 distinguishes too few positions"
            )

    def drawn(self, rng: jax.Array, length: int) -> jax.Array:
        return self._drawn(rng, length, jnp.int32(length))

    def drawn_before_padding(self, rng: jax.Array, length: int, tokens: jax.Array) -> jax.Array:
        """Draw the tokens' positions as in a row without padding; the padding follows."""
        self.largest(length + 1)
        return self._drawn(rng, length, tokens)

    def _drawn(self, rng: jax.Array, length: int, tokens: jax.Array) -> jax.Array:
        self.largest(length)
        # Equal positions would see each other, so neighbours are at least this far apart, which
        # exceeds the rounding of all positions.
        least = self.max_length * 2.0**-22
        end = self.max_length * (1 - least) - 1
        index_T = jnp.arange(length)
        drawn_T = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(rng, i)))(index_T)
        drawn_T = jnp.where(index_T < tokens, end * drawn_T, end)
        return jnp.sort(drawn_T) + least * index_T.astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class _EqualMean(Drawn):
    """A rule that spaces positions evenly on [0, n], where the extent n is drawn with mean T."""

    float_positions: ClassVar[bool] = True

    @abc.abstractmethod
    def extent(self, rng: jax.Array, length: float | jax.Array) -> jax.Array:
        """Draw the extent n of a sequence of `length` tokens, a float32 scalar."""

    def drawn(self, rng: jax.Array, length: int) -> jax.Array:
        extent = jnp.maximum(self.extent(rng, length), _SHORTEST)
        return jnp.linspace(0, 1, length, dtype=jnp.float32) * extent

    def drawn_before_padding(self, rng: jax.Array, length: int, tokens: jax.Array) -> jax.Array:
        """Draw positions for `tokens` tokens, and continue with the same spacing in the padding."""
        number = tokens.astype(jnp.float32)
        extent = jnp.maximum(self.extent(rng, number), _SHORTEST)
        steps = jnp.maximum(number - 1, 1)
        return jnp.arange(length, dtype=jnp.float32) / steps * extent


@dataclasses.dataclass(frozen=True)
class ExponentialPositions(_EqualMean):
    """A rule whose extent n is exponentially distributed (kexue.fm/archives/9444)."""

    def largest(self, length: int) -> int:
        return 17 * length  # the logarithm of a float32 draw is above -16.7

    def extent(self, rng: jax.Array, length: float | jax.Array) -> jax.Array:
        return length * jax.random.exponential(rng, dtype=jnp.float32)


@dataclasses.dataclass(frozen=True)
class BetaPositions(_EqualMean):
    """A rule whose extent n is max_length * Beta(alpha, beta) (kexue.fm/archives/9444).

    Attributes:
      max_length: The largest extent, which must exceed the training length.
      alpha: The first parameter of the Beta distribution; the mean T determines beta.
    """

    max_length: int = 8192
    alpha: float = 2.0

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise UserError(f"BetaPositions.alpha is {self.alpha}: it must be positive")

    def largest(self, length: int) -> int:
        if length >= self.max_length:
            raise UserError(
                f"BetaPositions.max_length is {self.max_length}: it must exceed the training "
                f"length, which is {length}"
            )
        return self.max_length

    def extent(self, rng: jax.Array, length: float | jax.Array) -> jax.Array:
        if isinstance(length, int):
            self.largest(length)
        beta = self.alpha * (self.max_length / length - 1)
        return self.max_length * jax.random.beta(rng, self.alpha, beta, dtype=jnp.float32)
