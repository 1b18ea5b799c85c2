"""Learned absolute positions: a table of embeddings, one row a position, added to the tokens'.

Source: Gehring et al. (2017); initialised as GPT-2's, N(0, 0.02).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from fire_lm.errors import UserError
from fire_lm.positions.base import Params, PositionalEncoding


@dataclasses.dataclass(frozen=True)
class Learned(PositionalEncoding):
    """A table. Parameters in all, max_length * hidden_size: 1572864 for 2048 positions of width
    768, 6144 for 64 of width 96.

    It knows no position from `max_length` on: `check_length` says so before anything runs, and
    `embed` gives NaN for them rather than another position's row.

    Attributes:
      max_length: rows of the table; None: the training length.
    """

    translation_invariant: ClassVar[bool] = False
    integer_positions: ClassVar[bool] = True
    length_fields: ClassVar[tuple[str, ...]] = ("max_length",)

    max_length: int | None = None

    def __post_init__(self) -> None:
        if self.max_length is not None and self.max_length < 1:
            raise UserError(f"Learned.max_length is {self.max_length}: it must be 1 or more")

    @property
    def rows(self) -> int:
        """The number of positions that it knows."""
        return self.train_length if self.max_length is None else self.max_length

    def check_length(self, length: int, context_length: int) -> None:
        del context_length
        if length > self.rows:
            raise UserError(
                f"length {length} is beyond the {self.rows} positions that this encoding has "
                "learned.\nUse shorter inputs, or train with Learned.max_length = "
                f"{length} or more."
            )

    def init(self, rng: jax.Array) -> Params:
        shape = (self.rows, self.hidden_size)
        return {"embedding": 0.02 * jax.random.normal(rng, shape, jnp.float32)}

    def embed(self, params: Params, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
        if not jnp.issubdtype(pos_BT.dtype, jnp.integer):
            raise UserError(
                "Learned has one row for each integer position: fractional positions "
                "(resampling) need an encoding that is a function of them."
            )
        rows_BTD = (
            params["embedding"]
            .at[pos_BT]
            .get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
        )
        return (x_BTD.astype(jnp.float32) + rows_BTD).astype(x_BTD.dtype)
