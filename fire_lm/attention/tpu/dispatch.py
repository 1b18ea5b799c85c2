"""The path from `attend` to the TPU kernels: whether they can run, and the arguments they need.

The check is made while the program is traced. Two conditions depend on values that are known only
when it runs: the positions must be consecutive, and the tables must represent the bias exactly
(`CommonBias.exact`). If either condition fails, the output is NaN.

Shapes: B batch, T tokens, N heads, H head dim.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from fire_lm.attention.common_bias import CommonBias, common_form
from fire_lm.attention.terms import BiasFn, Layout, Mask, Terms, Tokens, parts
from fire_lm.attention.tpu import tpu_attention
from fire_lm.attention.tpu.part_lists import MOST_KINKS
from fire_lm.attention.tpu.schedule import DTYPES, HEAD_DIMS, LANES, block_of_slices


def obstacle(
    q_BTNH: jax.Array, v_BTNH: jax.Array, tokens: Tokens, terms: Terms, mask: Mask, layout: Layout
) -> str | None:
    """Return why the kernels cannot run, as a predicate ("needs ..."), or None if they can."""
    if not layout.in_order:
        return "needs queries and keys that are the same tokens (in_order=True)"
    if not mask.causal or mask.chunk is not None:
        return "needs a causal mask without chunks"
    if mask.window is not None and tokens.place is None and not layout.consecutive:
        return "needs places or consecutive positions (0, 1, 2, ...) for a window"
    slices = 1 if layout.sharding is None else parts(layout.sharding, 1, q_BTNH.shape[1])
    if slices > 1 and mask.window is not None:
        return f"needs windows of at most {q_BTNH.shape[1] // slices} tokens, a device's slice"
    if slices > 1 and block_of_slices(q_BTNH.shape[1], slices) is None:
        length = q_BTNH.shape[1]
        return (
            f"needs slices of a multiple of {2 * LANES} tokens on a device, not {length // slices}"
        )
    if q_BTNH.shape[3] < v_BTNH.shape[3]:
        return f"needs values at most as wide as queries and keys ({q_BTNH.shape[3]})"
    widths_fit = q_BTNH.shape[3] in HEAD_DIMS and v_BTNH.shape[3] in HEAD_DIMS
    if not widths_fit or q_BTNH.dtype.name not in DTYPES:
        dtypes, widths = " or ".join(DTYPES), " or ".join(map(str, HEAD_DIMS))
        apart = f" with values of {v_BTNH.shape[3]}" * (q_BTNH.shape[3] != v_BTNH.shape[3])
        return (
            f"needs a head dim of {widths} in {dtypes}, not {q_BTNH.shape[3]}{apart} in "
            f"{q_BTNH.dtype}"
        )
    if terms.mix is not None:
        return "computes each head by itself, and cannot mix the logits of heads"
    if not _has_bias(terms.bias, tokens.pos):
        return None
    tables = common_form(terms.bias)
    if tables is None:
        return "needs a bias with tables (a CommonBias), such as FIRE's with activation 'relu'"
    if tables.kink_K.size > MOST_KINKS:
        return f"needs a bias with at most {MOST_KINKS} kinks, not {tables.kink_K.size}"
    if not jnp.issubdtype(tokens.pos.dtype, jnp.integer):
        return "needs integer positions for a bias"
    if not layout.consecutive:
        return "needs consecutive positions (0, 1, 2, ...) for a bias"
    return None


def _has_bias(bias: BiasFn | None, pos_BT: jax.Array) -> bool:
    if bias is None:
        return False
    one = jax.ShapeDtypeStruct((pos_BT.shape[0], 1), jnp.int32)
    return jax.eval_shape(bias, one, one) is not None


def attend_on_tpu(
    q_BTNH: jax.Array,
    k_BTNH: jax.Array,
    v_BTNH: jax.Array,
    tokens: Tokens,
    terms: Terms,
    mask: Mask,
    sharding: NamedSharding | None,
) -> jax.Array:
    """Compute `attend` with the kernels, for inputs for which `obstacle` returns None."""
    pos_BT, segment_BT = tokens.pos, tokens.segment
    tables = common_form(terms.bias) if _has_bias(terms.bias, pos_BT) else None
    pos_of_bias_BT = None
    if tables is not None:
        if segment_BT is None and pos_BT.shape[0] == 1:
            follow = jnp.all(pos_BT == _places(pos_BT))
        else:
            covered = tables.row_P.shape[0]
            follow, pos_of_bias_BT = _follow_one_another(pos_BT, segment_BT, covered), pos_BT
        tables = _nan_unless(tables.exact & follow, tables)
    return tpu_attention(
        q_BTNH,
        k_BTNH,
        v_BTNH,
        bias=tables,
        logit_scale_BT=terms.logit_scale_BT,
        bias_scale_BT=None if tables is None else terms.bias_scale_BT,
        segment_BT=segment_BT,
        pos_BT=pos_of_bias_BT,
        decay=tokens.decay,
        sink_N=terms.sink_N,
        window=mask.window,
        sharding=sharding,
    )


def _nan_unless(holds: jax.Array, tables: CommonBias) -> CommonBias:
    return tables._replace(offset_KN=jnp.where(holds, tables.offset_KN, jnp.nan))


def _follow_one_another(pos_BT: jax.Array, segment_BT: jax.Array | None, covered: int) -> jax.Array:
    """Return whether each document's positions are consecutive and below `covered`.

    The positions of two tokens of a document must differ by as much as their indices in the array.
    """
    shift_BT = pos_BT - _places(pos_BT)
    if segment_BT is None:
        segment_BT = jnp.zeros_like(pos_BT)
    by_document = jax.lax.sort(jnp.broadcast_arrays(segment_BT, shift_BT), num_keys=1)
    next_segment, next_shift = (jnp.diff(x_BT) != 0 for x_BT in by_document)
    in_tables_BT = (pos_BT >= 0) & (pos_BT < covered)
    return jnp.all(next_segment | ~next_shift) & jnp.all(in_tables_BT)


def _places(pos_BT: jax.Array) -> jax.Array:
    return jnp.arange(pos_BT.shape[1], dtype=pos_BT.dtype)[None]
