"""The gradients of the bias tables, computed from the sums of the backward kernel.

Shapes: N heads, G groups of sequences, E examples with different positions (or 1), P tokens
(padded), K kinks, M slabs, X rows of sums of R = 128 lanes; C, U, S and W as in `near_tables`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fire_lm.attention.common_bias import per_rate
from fire_lm.attention.tpu.near_tables import NearTables
from fire_lm.attention.tpu.schedule import LANES
from fire_lm.attention.tpu.tables import Tables


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Wanted:
    """The bias tables whose gradients are needed.

    The kinks need no gradient: the bias is continuous there, so its derivative with respect to a
    kink is 0 for fixed slopes and offsets.

    Attributes:
      segment: Whether the gradients of the slopes and offsets are needed.
      row, gain, slab, rate: Whether the gradient of the table with this name is needed.
    """

    segment: bool = False
    row: bool = False
    gain: bool = False
    slab: bool = False
    rate: bool = False

    @classmethod
    def of(cls, tables: Any) -> Wanted:
        """Return the gradients that JAX requests.

        `tables` is a `Tables` of `CustomVJPPrimal` objects, or None if there is no bias.
        """
        if tables is None:
            return cls()
        return cls(
            segment=tables.slope_KN.perturbed or tables.offset_KN.perturbed,
            row=tables.row_EP.perturbed,
            gain=tables.gain_EP.perturbed,
            slab=tables.slab_MP.perturbed,
            rate=tables.rate is not None and tables.rate.perturbed,
        )

    @property
    def any(self) -> bool:
        return any(dataclasses.astuple(self))

    def only(self, tables: Tables | None) -> Tables | None:
        """Return `tables` with None in place of each table whose gradient is not needed."""
        if tables is None:
            return None
        names = {
            "slope_KN": self.segment,
            "offset_KN": self.segment,
            "row_EP": self.row,
            "gain_EP": self.gain,
            "slab_MP": self.slab,
            "rate": self.rate,
        }
        absent: dict[str, Any] = {name: None for name in Tables._fields if not names.get(name)}
        return tables._replace(**absent)


def sizes_of_sums(bias: Tables | None, wanted: Wanted, length: int) -> dict[str, int]:
    """Return the number of rows of each sum that `wanted` needs, in the order of `Sums.starts`."""
    if bias is None:
        return {}
    assert not (wanted.slab and bias.kink_K.size), (
        "a slab with kinks has no gradient of its own: request that of its rate"
    )
    kinks, chunks = bias.kink_K.size, length // LANES
    sizes: dict[str, int] = {}
    if wanted.segment:
        sizes |= {"offset": kinks + 1, "slope": kinks + 1}
    if wanted.rate:
        sizes |= {"rate": 1}
    return sizes | {name: chunks for name in ("row", "gain", "slab") if getattr(wanted, name)}


def to_tables(tables: Tables, sums_GNXR: jax.Array, starts: dict[str, int]) -> Tables:
    """Return the gradient of each table, computed from the sums, or None where it is not needed.

    The gradients do not include the factor ln 2 yet (see `backward`).
    """
    found: dict[str, Any] = dict.fromkeys(Tables._fields)
    sums_NXR = jnp.sum(sums_GNXR, axis=0)
    chunks, kinks = tables.row_EP.shape[1] // LANES, tables.kink_K.size

    def sum_of(name: str, size: int, sums: jax.Array = sums_NXR) -> jax.Array:
        return jax.lax.slice_in_dim(sums, starts[name], starts[name] + size, axis=-2)

    for name in ("row", "gain"):
        if name in starts:
            d_GP = jnp.sum(sum_of(name, chunks, sums_GNXR), axis=1).reshape(-1, chunks * LANES)
            shared = tables.row_EP.shape[0] == 1
            found[f"{name}_EP"] = jnp.sum(d_GP, axis=0, keepdims=True) if shared else d_GP
    if "slab" in starts:
        d_slab_NP = sum_of("slab", chunks).reshape(-1, chunks * LANES)
        if tables.slab_MP.shape[0] == 1:
            d_slab_NP = jnp.sum(d_slab_NP, axis=0, keepdims=True)
        found["slab_MP"] = d_slab_NP
    for name in ("offset", "slope"):
        if name in starts:
            found[f"{name}_KN"] = jnp.sum(sum_of(name, kinks + 1), axis=2).T
    if "rate" in starts:
        assert tables.rate is not None
        found["rate"] = per_rate(jnp.sum(sum_of("rate", 1)), tables.rate)
    return Tables(**found)


def with_near(found: Tables, near: NearTables, sums_NCUSW: jax.Array, tables: Tables) -> Tables:
    """Return `found` with the contributions of the parts near the diagonal added."""
    d_slope_NK, d_offset_NK, d_rate = near.gradients(sums_NCUSW, tables.kink_K.size + 1)
    if found.slope_KN is not None:
        found = found._replace(
            slope_KN=found.slope_KN + d_slope_NK.T, offset_KN=found.offset_KN + d_offset_NK.T
        )
    if found.rate is not None:
        assert tables.rate is not None
        found = found._replace(rate=found.rate + per_rate(d_rate, tables.rate))
    return found
