"""The way from `attend` to the kernels: when they can run, on each device of a mesh.

The kernels take the tokens of a document to be at positions that follow one another, and a bias to
be its tables. Whether that is so depends on numbers that are known at run time alone: so the step
holds `blockwise_attention` too, and takes it when it must.

Shapes: B batch, T tokens, N heads, H head dim.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

from fire_lm.attention.blockwise import blockwise_attention
from fire_lm.attention.common_bias import CommonBias
from fire_lm.attention.dense import BiasFn
from fire_lm.attention.saved_residuals import SAVED
from fire_lm.attention.tpu import forward_pass, scale_queries, with_gradients
from fire_lm.attention.tpu.schedule import DTYPES, HEAD_DIMS


def obstacle(
    q_BTNH: jax.Array,
    q_pos_BT: jax.Array,
    bias: BiasFn,
    tables: CommonBias | None,
    in_order: bool,
) -> str | None:
    """Why the kernels cannot run, or None."""
    if not in_order:
        return "takes queries and keys that are the same tokens (in_order)"
    if q_BTNH.shape[3] not in HEAD_DIMS or q_BTNH.dtype.name not in DTYPES:
        dtypes, widths = " or ".join(DTYPES), " or ".join(map(str, HEAD_DIMS))
        return f"takes heads of width {widths} in {dtypes}, not {q_BTNH.shape[3]} in {q_BTNH.dtype}"
    if tables is None and has_bias(bias, q_pos_BT):
        return "takes a bias that has the common form, as FIRE has with ReLU"
    if tables is not None and not jnp.issubdtype(q_pos_BT.dtype, jnp.integer):
        return "takes a bias at integer positions"
    return None


def has_bias(bias: BiasFn, q_pos_BT: jax.Array) -> bool:
    one = jax.ShapeDtypeStruct((q_pos_BT.shape[0], 1), q_pos_BT.dtype)
    return jax.eval_shape(bias, one, one) is not None


def attend_on_tpu(
    q_BTNH: jax.Array,
    k_BTNH: jax.Array,
    v_BTNH: jax.Array,
    *,
    pos_BT: jax.Array,
    bias: BiasFn,
    tables: CommonBias | None,
    logit_scale_BT: jax.Array | None,
    bias_scale_BT: jax.Array | None,
    segment_BT: jax.Array | None,
    sharding: NamedSharding | None,
) -> jax.Array:
    """`attend` of tokens to themselves, where there is no `obstacle`."""
    qkv_BTNH = (q_BTNH, k_BTNH, v_BTNH)
    by_place = segment_BT is None and pos_BT.shape[0] == 1
    pos_of_bias = None if by_place or tables is None else pos_BT
    by_token = ByToken(
        logit_scale_BT, None if tables is None else bias_scale_BT, segment_BT, pos_of_bias
    )
    if tables is None:  # positions order the tokens, and do no more
        return _attention(sharding, None, None, qkv_BTNH, None, by_token, [])

    def in_blocks(*qkv_BTNH: jax.Array) -> jax.Array:
        return blockwise_attention(
            *qkv_BTNH,
            q_pos_BT=pos_BT,
            k_pos_BS=pos_BT,
            bias=bias,
            logit_scale_BT=logit_scale_BT,
            bias_scale_BT=bias_scale_BT,
            q_segment_BT=segment_BT,
            k_segment_BS=segment_BT,
            # Without in_order: its groups of blocks, each a program, take minutes to compile.
        )

    if by_place:
        in_tables = jnp.all(pos_BT == _places(pos_BT))
    else:
        in_tables = _follow_one_another(pos_BT, segment_BT)
    # A custom gradient may not close over what has gradients: here, over an encoding's parameters.
    blocks = jax.make_jaxpr(in_blocks)(*qkv_BTNH)
    usable = in_tables & tables.exact
    return _attention(
        sharding, blocks.jaxpr, usable, qkv_BTNH, tables, by_token, list(blocks.consts)
    )


class ByToken(NamedTuple):
    """`[B or 1, T]`, or None: factors on q k and on the bias, segment, position for the bias."""

    logit_scale: jax.Array | None
    bias_scale: jax.Array | None
    segment: jax.Array | None
    pos: jax.Array | None


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Mask:
    """The leaves of the inputs whose gradients are needed."""

    leaves: tuple[bool, ...]


# One gradient for both ways, each whole inside its branch: differentiated by itself, the branch
# taken would write zeros in place of all that the other keeps.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(sharding: NamedSharding | None, blocks: Any, usable: Any, *inputs: Any) -> jax.Array:
    """Attention by the kernels where `usable`, else by the program `blocks`.

    `inputs`: q, k, v; tables; by token; what `blocks` takes before q, k, v.
    """
    return _forward(sharding, blocks, usable, inputs, _scaled(inputs))[0]


def _scaled(inputs: Any) -> jax.Array:
    """The queries as the kernels take them; here, not in the kernels' branch, since there it could
    not be merged with what makes the queries."""
    (q_BTNH, _, _), _, by_token, _ = inputs
    return scale_queries(q_BTNH) if by_token.logit_scale is None else q_BTNH


def _forward(
    sharding: NamedSharding | None, blocks: Any, usable: Any, inputs: Any, scaled_BTNH: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The output, and the softmax's sums where the kernels made it."""

    def kernel() -> tuple[jax.Array, jax.Array]:
        (_, *kv_BTNH), *rest = inputs[:3]
        of_kernel = ((scaled_BTNH, *kv_BTNH), *rest)
        return _on_each_device(_kernel_forward, sharding, (), of_kernel)

    def in_blocks() -> tuple[jax.Array, jax.Array]:
        batch, length, heads, _ = inputs[0][0].shape
        return _run(blocks, inputs), jnp.zeros((batch, heads, length), jnp.float32)

    return kernel() if blocks is None else jax.lax.cond(usable, kernel, in_blocks)


def _run(blocks: Any, inputs: Any) -> jax.Array:
    (out_BTNH,) = jax.core.eval_jaxpr(blocks, inputs[3], *inputs[0])
    return out_BTNH


def _attention_forward(
    sharding: NamedSharding | None, blocks: Any, usable: Any, *inputs: Any
) -> tuple[jax.Array, Any]:
    def is_primal(x: Any) -> bool:
        return hasattr(x, "perturbed")

    mask = Mask(tuple(x.perturbed for x in jax.tree.leaves(inputs, is_leaf=is_primal)))
    usable, inputs = jax.tree.map(lambda x: x.value, (usable, inputs), is_leaf=is_primal)
    scaled = _scaled(inputs)
    out, log_sum = _forward(sharding, blocks, usable, inputs, scaled)
    out, log_sum = (checkpoint_name(x, SAVED) for x in (out, log_sum))
    return out, (usable, inputs, mask, scaled, out, log_sum)


def _attention_backward(
    sharding: NamedSharding | None, blocks: Any, residuals: Any, d_out: Any
) -> tuple[Any, ...]:
    usable, inputs, mask, scaled, *outputs = residuals
    leaves, tree = jax.tree.flatten(inputs)
    if not isinstance(d_out, jax.Array):
        d_out = jnp.zeros_like(outputs[0])

    def gradients(attend: Callable[[Any], jax.Array], leaves: list[jax.Array]) -> list[jax.Array]:
        def of_asked(asked: list[jax.Array]) -> jax.Array:
            rest = iter(asked)
            merged = [
                next(rest) if is_asked else leaf
                for is_asked, leaf in zip(mask.leaves, leaves, strict=True)
            ]
            return attend(jax.tree.unflatten(tree, merged))

        asked = [leaf for leaf, is_asked in zip(leaves, mask.leaves, strict=True) if is_asked]
        return jax.vjp(of_asked, asked)[1](d_out)[0]

    def kernel() -> list[jax.Array]:
        found = gradients(
            lambda inputs: _on_each_device(_kernel_backward, sharding, outputs, inputs[:3]),
            [scaled, *leaves[1:]],
        )
        if mask.leaves[0] and inputs[2].logit_scale is None:
            found[0] = scale_queries(found[0])
        return found

    def in_blocks() -> list[jax.Array]:
        return gradients(lambda inputs: _run(blocks, inputs), leaves)

    found = iter(kernel() if blocks is None else jax.lax.cond(usable, kernel, in_blocks))
    cotangents = [next(found) if is_asked else None for is_asked in mask.leaves]
    return None, *jax.tree.unflatten(tree, cotangents)


_attention.defvjp(_attention_forward, _attention_backward, symbolic_zeros=True)


def _follow_one_another(pos_BT: jax.Array, segment_BT: jax.Array | None) -> jax.Array:
    """Whether tokens of a document are as far apart by position as by place, and in the tables."""
    shift_BT = pos_BT - _places(pos_BT)
    if segment_BT is None:
        segment_BT = jnp.zeros_like(pos_BT)
    by_document = jax.lax.sort(jnp.broadcast_arrays(segment_BT, shift_BT), num_keys=1)
    next_segment, next_shift = (jnp.diff(x_BT) != 0 for x_BT in by_document)
    in_tables_BT = (pos_BT >= 0) & (pos_BT < pos_BT.shape[1])
    return jnp.all(next_segment | ~next_shift) & jnp.all(in_tables_BT)


def _places(pos_BT: jax.Array) -> jax.Array:
    return jnp.arange(pos_BT.shape[1], dtype=pos_BT.dtype)[None]


def _kernel_forward(
    outputs: tuple[()], qkv_BTNH: Any, tables: CommonBias | None, by_token: ByToken
) -> tuple[jax.Array, jax.Array]:
    return forward_pass(*qkv_BTNH, **_named(tables, by_token))


def _kernel_backward(
    outputs: tuple[jax.Array, jax.Array],
    qkv_BTNH: Any,
    tables: CommonBias | None,
    by_token: ByToken,
) -> jax.Array:
    return with_gradients(*outputs, *qkv_BTNH, **_named(tables, by_token))


def _named(tables: CommonBias | None, by_token: ByToken) -> dict[str, Any]:
    return dict(
        bias=tables,
        logit_scale_BT=by_token.logit_scale,
        bias_scale_BT=by_token.bias_scale,
        segment_BT=by_token.segment,
        pos_BT=by_token.pos,
    )


def _on_each_device(
    run: Callable[..., Any], sharding: NamedSharding | None, outputs: Any, inputs: Any
) -> Any:
    """`run(outputs, *inputs)`, on every device's sequences and heads: XLA cannot split a kernel.

    `outputs`: those of the forward pass, in the backward pass; else empty.
    """
    if sharding is None or sharding.mesh.size == 1:
        return run(outputs, *inputs)
    qkv_BTNH, tables, by_token = inputs
    batch, heads = (_axis(sharding, axis, qkv_BTNH[0].shape[axis]) for axis in (0, 2))
    by_example = PartitionSpec(batch, None, heads, None)
    of_outputs = (by_example, PartitionSpec(batch, heads, None))

    def rows(x_BT: jax.Array) -> PartitionSpec:
        return PartitionSpec() if x_BT.shape[0] == 1 else PartitionSpec(batch, None)

    of_tables: Any = None
    if tables is not None:
        of_tables = jax.tree.map(lambda _: PartitionSpec(), tables)
        by_head = {"slope_KN": PartitionSpec(None, heads), "offset_KN": PartitionSpec(None, heads)}
        if tables.slab_MP.shape[0] > 1:
            by_head["slab_MP"] = PartitionSpec(heads)
        of_tables = of_tables._replace(**by_head)
    of_inputs = (by_example, of_tables, jax.tree.map(rows, by_token))
    return jax.shard_map(
        run,
        mesh=sharding.mesh,
        in_specs=(of_outputs, *of_inputs) if outputs else ((), *of_inputs),
        out_specs=by_example if outputs else of_outputs,
        check_vma=False,
    )(tuple(outputs), *inputs)


def _axis(sharding: NamedSharding, axis: int, size: int) -> Any:
    """The mesh axes that split an array's `axis`; None, for whole, if they do not divide it."""
    names = sharding.spec[axis]
    parts = 1
    for name in (names,) if isinstance(names, str) else names or ():
        parts *= sharding.mesh.shape[name]
    return None if size % parts else names
