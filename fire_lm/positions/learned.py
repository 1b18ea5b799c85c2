"""Learned absolute positions: a table with one row per position, added to the token embeddings.

Source: Gehring et al. (2017). The table is initialised from N(0, 0.02), as in GPT-2.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import UserError
from fire_lm.positions.base import Params, PositionalEncoding


@dataclasses.dataclass(frozen=True)
class Learned(PositionalEncoding):
    """A learned table of embeddings, one row per position.

    Parameters, max_length * hidden_size in total: 1572864 for 2048 positions of width 768, 6144 for
    64 positions of width 96.

    Positions beyond the table have no row: `check_length` raises an error before the model runs,
    and `embed` returns NaN for such positions rather than the row of another position.

    Attributes:
      max_length: The number of rows of the table; None means the training length.
      interpolation: A factor of at least 1 by which positions are divided at evaluation, so that
        the table of a trained model covers inputs that are longer by nearly this factor; values
        between two learned rows are interpolated linearly. None leaves the positions unchanged.
    """

    translation_invariant = False
    integer_positions: ClassVar[bool] = True
    length_fields: ClassVar[tuple[str, ...]] = ("max_length",)
    evaluation_fields: ClassVar[tuple[str, ...]] = ("interpolation",)

    max_length: int | None = None
    interpolation: float | None = None

    def __post_init__(self) -> None:
        if self.max_length is not None and self.max_length < 1:
            raise UserError(f"Learned.max_length is {self.max_length}: it must be 1 or more")
        if self.interpolation is not None and not 1 <= self.interpolation < math.inf:
            raise UserError(
                f"Learned.interpolation is {self.interpolation}: it must be 1 or more, and finite"
            )

    @property
    def learned_rows(self) -> int:
        """The number of rows that are parameters."""
        return self.train_length if self.max_length is None else self.max_length

    @property
    def rows(self) -> int:
        """The number of positions that the table covers."""
        return math.floor((self.learned_rows - 1) * (self.interpolation or 1.0)) + 1

    def table(self, params: Params) -> jax.Array:
        """Return the row of each position that the table covers, float32 `[rows, D]`."""
        learned = params["embedding"]
        if self.interpolation is None:
            return learned
        place_P = np.arange(self.rows) / self.interpolation
        below_P = np.floor(place_P).astype(np.int32)
        above_P = np.minimum(below_P + 1, self.learned_rows - 1)
        share_P1 = (place_P - below_P).astype(np.float32)[:, None]
        return (1 - share_P1) * learned[below_P] + share_P1 * learned[above_P]

    def check_length(self, length: int, context_length: int) -> None:
        if length > self.rows:
            raise UserError(
                f"length {length} is beyond the {self.rows} positions that the Learned encoding "
                "covers\nuse shorter inputs, train with Learned.max_length = "
                f"{length} or more, or set Learned.interpolation for evaluation"
            )

    def init(self, rng: jax.Array) -> Params:
        shape = (self.learned_rows, self.hidden_size)
        return {"embedding": 0.02 * jax.random.normal(rng, shape, jnp.float32)}

    def embed(self, params: Params, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
        if not jnp.issubdtype(pos_BT.dtype, jnp.integer):
            raise UserError(
                "Learned has rows only for integer positions, but resampling draws fractional "
                "ones: use @RandomizedPositions(), or another encoding"
            )
        rows_BTD = (
            self.table(params)
            .at[pos_BT]
            .get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
        )
        return (x_BTD.astype(jnp.float32) + rows_BTD).astype(x_BTD.dtype)
