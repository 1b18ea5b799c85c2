"""The memory of Infini-attention (Munkhdalai et al., 2024, 2404.07143) as pure functions.

A row is cut into segments of U tokens, of which the last may be shorter. A memory holds, for each
head, sums over the tokens of earlier segments, which know nothing of positions. If rows contain
several documents, a memory belongs to the document of the last token before its segment, and only
the tokens of that document read it. All sums are float32.

Shapes: B batch, G segments of a row, U tokens of a segment, N heads, H head dim of keys, V that of
values, L layers.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.models.segments import segment_starts

Rule = Literal["linear", "delta"]

# The default precision on TPU would round these float32 operands to bfloat16.
_exact = functools.partial(jnp.einsum, precision="highest")

# The least denominator of a retrieval. Its square, by which a gradient is divided, is not 0.
_LEAST = 1e-15


class Memory(NamedTuple):
    """What a head remembers.

    Attributes:
      M: The sum over tokens of the products of key features and values, `[..., N, H, V]`.
      z: The sum over tokens of key features, `[..., N, H]`.
    """

    M: jax.Array
    z: jax.Array


class Cut(NamedTuple):
    """The segments of rows, with the borders between them at multiples of U tokens of the row.

    Attributes:
      writes_BGU: Whether a token is written to the memory that the next segment reads.
      reads_BGU: Whether a token reads the memory before its segment.
      resumes_BG: Whether the memory after a segment includes the memory before it.
      owner_BG: The document to which the memory before a segment belongs.
    """

    writes_BGU: jax.Array
    reads_BGU: jax.Array
    resumes_BG: jax.Array
    owner_BG: jax.Array


def cut_rows(segment_BT: jax.Array | None, length: int, tokens: int) -> Cut:
    """Cut rows of `length` tokens, with the documents `segment_BT` or one each, into segments."""
    document_BGU = by_segment(_documents(segment_BT, length), tokens, fill=-1)
    last_BG = document_BGU[:, :, -1]
    owner_BG = jnp.pad(last_BG[:, :-1], ((0, 0), (1, 0)), constant_values=-2)
    return Cut(
        writes_BGU=document_BGU == last_BG[:, :, None],
        reads_BGU=document_BGU == owner_BG[:, :, None],
        resumes_BG=last_BG == owner_BG,
        owner_BG=owner_BG,
    )


def ids_of_segments(segment_BT: jax.Array | None, length: int, tokens: int) -> jax.Array:
    """Return a different number for each document in each segment, int32 `[B or 1, T]`."""
    index_1T = jnp.arange(length, dtype=jnp.int32)[None] // tokens
    return _documents(segment_BT, length) * (length // tokens + 1) + index_1T


def _documents(segment_BT: jax.Array | None, length: int) -> jax.Array:
    """Return the index of the document of each token in its row, `[B or 1, T]`."""
    if segment_BT is None:
        return jnp.zeros((1, length), jnp.int32)
    return jnp.cumsum(segment_starts(segment_BT), axis=1, dtype=jnp.int32)


def by_segment(x_BT: jax.Array, tokens: int, fill: int = 0) -> jax.Array:
    """Return `x_BT` `[B, T, ...]` as `[B, G, U, ...]`, padded with `fill`."""
    padding = [(0, 0), (0, -x_BT.shape[1] % tokens)] + [(0, 0)] * (x_BT.ndim - 2)
    padded = jnp.pad(x_BT, padding, constant_values=fill)
    return padded.reshape(x_BT.shape[0], -1, tokens, *x_BT.shape[2:])


def features(x: jax.Array) -> jax.Array:
    """Return s(x) = elu(x) + 1 in float32.

    For x < 0 it is exp(x), which elu would round to -1 first.
    """
    x = x.astype(jnp.float32)
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.minimum(x, 0)))


def retrieved(memory: Memory, s_UNH: jax.Array) -> jax.Array:
    """Return s(x) M / (s(x) z), Eq. 3, `[..., U, N, V]`, for the features of queries or keys.

    An empty memory returns 0.
    """
    value_UNV = _exact("...UNH,...NHV->...UNV", s_UNH, memory.M)
    weight_UN = _exact("...UNH,...NH->...UN", s_UNH, memory.z)
    return value_UNV / jnp.maximum(weight_UN, _LEAST)[..., None]


def new_values(
    rule: Rule, memory: Memory, s_UNH: jax.Array, v_UNV: jax.Array, reads_U: jax.Array
) -> jax.Array:
    """Return what tokens write: their values, or, by the delta rule, what is new in them, float32.

    The rules are "linear" (Eq. 4) and "delta" (Eq. 5). `memory` is that before the segment, and
    `reads_U` is whether each token reads it. `s_UNH` are the features of the keys.
    """
    v_UNV = v_UNV.astype(jnp.float32)
    if rule == "linear":
        return v_UNV
    return v_UNV - jnp.where(reads_U[..., None, None], retrieved(memory, s_UNH), 0.0)


def sums(s_UNH: jax.Array, v_UNV: jax.Array, writes_U: jax.Array) -> Memory:
    """Return what the tokens of a segment add to a memory, Eq. 4.

    `writes_U` is whether each token is written.
    """
    s_UNH = jnp.where(writes_U[..., None, None], s_UNH, 0.0)
    return Memory(_exact("...UNH,...UNV->...NHV", s_UNH, v_UNV), jnp.sum(s_UNH, axis=-3))


def memories(
    rule: Rule, s_BGUNH: jax.Array, v_BGUNV: jax.Array, cut: Cut, backward: int | None = None
) -> Memory:
    """Return the memory before each segment, `[B, G, N, ...]`, from key features and values.

    By the rule "linear", it is a sum over segments that is computed in parallel. The update of
    "delta" reads the memory, so segments are processed one after another. `backward` is the number
    of consecutive segments between borders that no gradient crosses, or None for no such borders.
    """
    if rule == "delta":
        return _delta_sums(s_BGUNH, v_BGUNV, cut, backward)
    before = _sums_of_segments(s_BGUNH, v_BGUNV, cut)
    if backward is None:
        return before
    start_G = np.arange(s_BGUNH.shape[1]) // backward * backward
    same_BG = cut.owner_BG == cut.owner_BG[:, start_G]

    def stopped(x_BG: jax.Array) -> jax.Array:
        """Subtract the sum at the last such border, and add it as a constant."""
        start_BG = jnp.where(like(same_BG, x_BG), x_BG[:, start_G], 0.0)
        return x_BG + (jax.lax.stop_gradient(start_BG) - start_BG)

    return jax.tree.map(stopped, before)


def _sums_of_segments(s_BGUNH: jax.Array, v_BGUNV: jax.Array, cut: Cut) -> Memory:
    def joined(old: Any, new: Any) -> Any:
        (resumed, x), (resumes, y) = old, new
        return resumed & resumes, jax.tree.map(
            lambda x, y: jnp.where(like(resumes, x), x, 0.0) + y, x, y
        )

    # What the last segment adds is not read, but leaving it out would copy all features and values.
    added = sums(s_BGUNH, v_BGUNV.astype(jnp.float32), cut.writes_BGU)
    _, after = jax.lax.associative_scan(joined, (cut.resumes_BG, added), axis=1)
    return jax.tree.map(
        lambda x: jnp.pad(x, [(0, 0), (1, 0)] + [(0, 0)] * (x.ndim - 2))[:, :-1], after
    )


def _delta_sums(s_BGUNH: jax.Array, v_BGUNV: jax.Array, cut: Cut, backward: int | None) -> Memory:
    (batch, count, _, heads, width), values = s_BGUNH.shape, v_BGUNV.shape[-1]
    end_G = jnp.arange(1, count + 1)
    stops_G = jnp.zeros(count, bool) if backward is None else end_G % backward == 0

    def segment(memory: Memory, inputs: Any) -> tuple[Memory, Memory]:
        s_BUNH, v_BUNV, of_segment, stops = inputs
        v_BUNV = new_values("delta", memory, s_BUNH, v_BUNV, of_segment.reads_BGU)
        new = sums(s_BUNH, v_BUNV, of_segment.writes_BGU)

        def continued(x: jax.Array, y: jax.Array) -> jax.Array:
            x = jnp.where(like(of_segment.resumes_BG, x), x, 0.0) + y
            return jnp.where(stops, jax.lax.stop_gradient(x), x)

        return jax.tree.map(continued, memory, new), memory

    empty = Memory(
        jnp.zeros((batch, heads, width, values), jnp.float32),
        jnp.zeros((batch, heads, width), jnp.float32),
    )
    inputs = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (s_BGUNH, v_BGUNV, cut))
    _, before = jax.lax.scan(segment, empty, (*inputs, stops_G))
    return jax.tree.map(lambda x_GB: jnp.moveaxis(x_GB, 0, 1), before)


def like(mask: jax.Array, x: jax.Array) -> jax.Array:
    """Return a mask with as many axes as `x`."""
    return mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim))
