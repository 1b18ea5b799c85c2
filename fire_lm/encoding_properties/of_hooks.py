"""Properties of an encoding's hooks: each `has_...` raises an error if the encoding lacks it.

Those that need attention or a decoder are in `in_models`. The docstring of each says what to write
instead.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm import sharding
from fire_lm.models import ModelSize
from fire_lm.models.layer_position import positioned
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.contract import check_definition

SIZE = ModelSize(4, hidden_size=96, num_heads=12, head_dim=8, mlp_size=96, init_std=0.1)
LENGTH = 64  # training length


class Lacking(AssertionError):
    """The error for an encoding that lacks a property; the message says what was found."""


def require(condition: Any, found: str) -> None:
    """Raise `Lacking` unless the condition holds, also if Python ignores assertions (-O)."""
    if not condition:
        raise Lacking(found)


def content(length: int) -> tuple[jax.Array, ...]:
    """Return q, k and v, `[1, length, N, H]` each."""
    shape = (3, 1, length, SIZE.num_heads, SIZE.head_dim)
    return tuple(jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32))


def logits(
    encoding: PositionalEncoding, params: Any, q: jax.Array, k: jax.Array, q_pos: Any, k_pos: Any
) -> jax.Array:
    """Return scaled q·k plus bias, `[B, N, T, S]`, as attention adds them before masking."""
    q_pos, k_pos = jnp.asarray(q_pos, jnp.int32)[None], jnp.asarray(k_pos, jnp.int32)[None]
    length = k_pos.shape[1]
    q, k, scales, bias = positioned(encoding, params, None, q, k, q_pos, k_pos, None, length)
    products = jnp.einsum("BTNH,BSNH->BNTS", q, k, preferred_element_type=jnp.float32)
    if scales.on_logits_BT is not None:
        products = products * scales.on_logits_BT[:, None, :, None]
    return encoding.mix(params, products, bias(q_pos, k_pos))


def logit_scale(encoding: PositionalEncoding, params: Any, q_pos: jax.Array) -> jax.Array:
    """Return the encoding's factor on q·k for each query, `[B, T]`; 1 if it has none."""
    scale = encoding.logit_scale(params, q_pos)
    return jnp.ones(q_pos.shape, jnp.float32) if scale is None else scale


def init(encoding: PositionalEncoding, seed: int = 0) -> Any:
    return encoding.init(jax.random.key(seed))


def moved(encoding: PositionalEncoding) -> Any:
    """Return random parameters near the initial ones, as after some training."""
    rng = np.random.default_rng(2)
    return jax.tree.map(lambda x: jnp.float32(x + rng.normal(0, 0.1, x.shape)), init(encoding))


def at_first_and_later(encoding: PositionalEncoding) -> list[Any]:
    """Return the initial parameters, which may hide a term by starting at 0, and moved ones."""
    params = init(encoding)
    return [params, moved(encoding)] if params else [params]


def has_a_hook_for_its_parameters(encoding: PositionalEncoding) -> None:
    """An encoding with parameters acts through a hook, and its methods are not misspelt hooks.

    To fix: override the hook through which the parameters enter the model, by its exact name.
    """
    check_definition(encoding)


def has_finite_values_far_out(encoding: PositionalEncoding) -> None:
    """Values are finite up to 16 times the training length, also where attention masks them.

    To fix: take distances from `fire_lm.positions.base.distance`, which are never negative, and
    keep logarithms, roots and divisions away from 0 (`log1p`, `maximum`).
    """
    far = 16 * LENGTH
    q, k, _ = content(far)
    queries = np.array([0, 1, LENGTH - 1, LENGTH, 2 * LENGTH, far - 1])
    for params in at_first_and_later(encoding):
        out = logits(encoding, params, q[:, queries], k, queries, np.arange(far))
        require(np.all(np.isfinite(out)), "some values are infinite or NaN")


def largest_error(found: Any, expected: Any, floor: float = 0.0) -> float:
    """Return the largest error of a leaf, relative to the leaf's largest value or `floor`.

    `floor` is for values that cancel and leave only rounding errors. The result is NaN if any error
    is; Python's `max` would drop it.
    """

    def error(found: jax.Array, expected: jax.Array) -> float:
        return float(np.max(np.abs(found - expected)) / max(np.max(np.abs(expected)), floor))

    errors = jax.tree.leaves(jax.tree.map(error, found, expected))
    return float(np.max(errors, initial=0.0))


def has_translation_invariance(encoding: PositionalEncoding) -> None:
    """Moving all positions by 16384, beyond every threshold, changes nothing in any layer."""
    x_BTD = content(LENGTH)[0].reshape(1, LENGTH, -1)

    def at(pos: np.ndarray, params: Any) -> jax.Array:
        embedded_BTD = encoding.embed(params, x_BTD, jnp.asarray(pos)[None])
        q = embedded_BTD.reshape(1, LENGTH, SIZE.num_heads, SIZE.head_dim)
        return logits(encoding, params, q, q, pos, pos)

    for params in at_first_and_later(encoding):
        here, there = at(np.arange(LENGTH), params), at(np.arange(LENGTH) + 16384, params)
        np.testing.assert_allclose(here, there, rtol=0, atol=1e-3)


def has_the_declared_invariance(encoding: PositionalEncoding) -> None:
    """Moving all positions changes nothing, unless `translation_invariant = False`.

    To fix: an encoding that uses more than differences of positions declares it in its class,
    `translation_invariant = False` (or a property, if it depends on settings); others omit that
    line.
    """
    if encoding.translation_invariant:
        has_translation_invariance(encoding)
        return
    try:
        has_translation_invariance(encoding)
    except AssertionError:
        return
    raise Lacking("translation_invariant = False, but moving all positions changes nothing")


def has_the_declared_use_of_the_context_length(encoding: PositionalEncoding) -> None:
    """`context_length` changes no value, unless `uses_context_length = True`.

    To fix: inputs are padded to the lengths of compiled programs, so a hook that uses
    `context_length` gives another value for the same text. Do without it, or declare it in the
    class, `uses_context_length = True` (or a property): inputs then keep their own length.
    """
    if encoding.uses_context_length:
        return
    pos, (q, k, _) = jnp.arange(40)[None], content(40)

    def values(params: Any, length: int) -> Any:
        rotated = encoding.rotate(params, q, k, pos, pos, length)
        return rotated, encoding.bias(params, pos, pos, length)

    for params in map(encoding.prepare, at_first_and_later(encoding)):
        same = jax.tree.map(np.array_equal, values(params, 40), values(params, 16 * LENGTH))
        require(jax.tree.all(same), "values depend on context_length, which is not declared")


def has_all_bits_of_positions(encoding: PositionalEncoding) -> None:
    """In a bfloat16 model, 256, 257, 4096 and 4097 remain four distances and four positions.

    To fix: compute with positions in float32, `distance(q_pos_BT, k_pos_BS).astype(jnp.float32)`,
    and return the bias in float32. If the bias is constant from some distance on (a window),
    declare it, `bias_window = 512` in the class or as a property; a table or buckets declare
    `integer_positions = True`.
    """
    params = moved(encoding)  # a bias may be 0 at first
    apart, window = np.array([256, 257, 4096, 4097]), encoding.bias_window
    q_pos = jnp.array([[5000]])
    if window is not None:  # the bias may have the same value at many distances
        far = np.array([window, window + 1, 2 * window, 4999])
        constant = different_biases(encoding, params, far) == 1
        require(constant, f"the bias goes on changing beyond {window}")
    elif not encoding.integer_positions:  # a bucket contains many distances
        biases = different_biases(encoding, params, apart)
        require(biases == len(apart), f"4 distances have {biases} different biases")
    bias = functools.partial(encoding.bias, context_length=5001)
    for hook, positions in ((bias, (q_pos, q_pos)), (encoding.logit_scale, (q_pos,))):
        program = str(jax.make_jaxpr(hook)(params, *positions))
        require("f16[" not in program, "bias or logit_scale computes in bfloat16 or float16")
    same = jnp.ones((1, 4, SIZE.num_heads, SIZE.head_dim), jnp.bfloat16)
    rotated, _ = encoding.rotate(params, same, same, jnp.asarray(apart)[None], q_pos, 5001)
    if rotated.shape != same.shape or np.any(rotated != same):
        require(rotated.dtype == jnp.bfloat16, f"rotate turns bfloat16 into {rotated.dtype}")
        rotations = {tuple(row.ravel().tolist()) for row in np.asarray(rotated)[0]}
        require(len(rotations) == 4, f"4 positions have {len(rotations)} different rotations")


def different_biases(encoding: PositionalEncoding, params: Any, distances: np.ndarray) -> int:
    """Return how many distinct biases the keys at these distances have; all, if without a bias."""
    q_pos, k_pos = jnp.array([[5000]]), jnp.asarray(5000 - distances)[None]
    bias = encoding.bias(params, q_pos, k_pos, 5001)
    if bias is None:
        return len(set(distances.tolist()))
    require(bias.dtype == jnp.float32, f"the bias is {bias.dtype}, not float32")
    return len({tuple(row) for row in np.asarray(bias)[0, :, 0].T.tolist()})


def has_values_between_integer_positions(encoding: PositionalEncoding) -> None:
    """Halfway between two integer positions, hooks do not return the values of one of them.

    To fix: resampling may draw such positions, which are float32, so do not round positions. A
    table or buckets declare `integer_positions = True` in the class (or as a property): such
    resampling is then refused.
    """
    if encoding.integer_positions:
        return
    params, (q, k, _) = moved(encoding), content(1)
    triples = np.array([2.0, 5.0, 11.0, 23.0])[:, None] + [0.0, 0.5, 1.0]
    q_pos, k_pos = jnp.asarray(triples, jnp.float32).reshape(1, -1), jnp.zeros((1, 1))
    q = jnp.broadcast_to(q, (1, q_pos.size, *q.shape[2:]))  # only the positions differ
    bias = encoding.bias(params, q_pos, k_pos, LENGTH)
    values = {
        "embed": encoding.embed(params, q.reshape(1, q_pos.size, -1), q_pos),
        "rotate": encoding.rotate(params, q, k, q_pos, k_pos, LENGTH)[0],
        "bias": None if bias is None else jnp.swapaxes(bias, 1, 2),
        "logit_scale": encoding.logit_scale(params, q_pos),
    }
    for hook, found in values.items():
        rows = np.zeros((*triples.shape, 1)) if found is None else np.asarray(found)
        below, half, above = np.moveaxis(rows.reshape(*triples.shape, -1), 1, 0)
        differ = np.any(below != above, axis=-1)
        rounded = np.all(half == below, axis=-1) | np.all(half == above, axis=-1)
        always = np.any(differ) and np.all(rounded[differ])
        require(not always, f"`{hook}` rounds positions between two integers")


def has_finite_gradients_at_distance_0(encoding: PositionalEncoding) -> None:
    """Gradients to parameters and contents are finite, at position 0 and at later ones.

    To fix: `log`, `sqrt` and powers have infinite slopes at 0, which `where` does not hide: keep
    their argument positive (`jnp.maximum(distance, 1.0)`, then `where`; or `log1p`).
    """
    q, k, _ = content(3)

    def total(params: Any, q: jax.Array, k: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(logits(encoding, params, q, k, np.arange(3), np.arange(3))))

    gradient = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    for params in at_first_and_later(encoding):
        leaves = jax.tree.leaves(gradient(params, q, k))
        finite = all(np.all(np.isfinite(leaf)) for leaf in leaves)
        require(finite, "some gradients are infinite or NaN")


def has_equal_decode_rows(encoding: PositionalEncoding) -> None:
    """One query against a cache gives its row of the full matrix, except for the last bits.

    Without AVX-512, XLA computes the last elements of an array by other instructions than the rest.

    To fix: see `has_the_same_values_in_blocks`.
    """
    for params in at_first_and_later(encoding):
        _check_decode_rows(encoding, params)


def _check_decode_rows(encoding: PositionalEncoding, params: Any) -> None:
    pos = jnp.arange(90)[None]
    q, k, _ = content(90)
    full_bias = encoding.bias(params, pos, pos, 90)
    full_q, _ = encoding.rotate(params, q, k, pos, pos, 90)
    full_scale = logit_scale(encoding, params, pos)
    for row in (0, 1, 16, 50, 89):
        at = pos[:, row : row + 1]
        one_q, _ = encoding.rotate(params, q[:, row : row + 1], k, at, pos, 90)
        np.testing.assert_allclose(one_q, full_q[:, row : row + 1], rtol=1e-6, atol=1e-7)
        one_scale = logit_scale(encoding, params, at)
        np.testing.assert_allclose(one_scale, full_scale[:, row : row + 1], rtol=1e-6, atol=1e-7)
        one_bias = encoding.bias(params, at, pos, 90)
        if one_bias is not None and full_bias is not None:
            expected = full_bias[:, :, row : row + 1]
            np.testing.assert_allclose(one_bias, expected, rtol=1e-6, atol=1e-7)


def has_equal_values_in_packed_documents(encoding: PositionalEncoding) -> None:
    """With restarting positions, each document has the values that it has by itself.

    To fix: take positions from `q_pos` and `k_pos`, never from `jnp.arange` of the array's length.
    """
    for params in at_first_and_later(encoding):
        _check_packed_documents(encoding, params)


def _check_packed_documents(encoding: PositionalEncoding, params: Any) -> None:
    lengths = (40, 50)
    pos = np.concatenate([np.arange(length) for length in lengths])
    q_pos = jnp.asarray(np.stack([pos, pos[::-1]]), jnp.int32)  # two examples, different positions
    q, k, _ = content(90)
    q, k = (jnp.concatenate([x, x[:, ::-1]]) for x in (q, k))
    packed_q, packed_k = encoding.rotate(params, q, k, q_pos, q_pos, 90)
    packed_scale = logit_scale(encoding, params, q_pos)
    packed_bias = encoding.bias(params, q_pos, q_pos, 90)
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        alone = jnp.arange(length)[None]
        alone_q, alone_k = encoding.rotate(params, q[:1, rows], k[:1, rows], alone, alone, 90)
        scale = logit_scale(encoding, params, alone)
        pairs = ((packed_q, alone_q), (packed_k, alone_k), (packed_scale, scale))
        for packed, separate in pairs:
            np.testing.assert_allclose(packed[:1, rows], separate, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(packed[1:, ::-1][:, rows], separate, rtol=1e-6, atol=1e-6)
        bias = encoding.bias(params, alone, alone, 90)
        if bias is not None and packed_bias is not None:
            first, second = jnp.broadcast_to(packed_bias, (2, *packed_bias.shape[1:]))
            for packed in (first, second[:, ::-1, ::-1]):
                np.testing.assert_allclose(packed[:, rows, rows], bias[0], rtol=1e-5, atol=1e-5)
        start += length


def has_no_hidden_state(encoding: PositionalEncoding) -> None:
    """Compiled and eager calls agree.

    To fix: a hook is a pure function of its arguments: no counters, no `np.random`, and no state
    kept between calls.
    """
    params, pos = init(encoding), np.arange(40)
    q, k, _ = content(40)
    function = functools.partial(logits, encoding, q_pos=pos, k_pos=pos)
    compiled = jax.jit(function)(params, q, k)
    np.testing.assert_allclose(function(params, q, k), compiled, rtol=1e-5, atol=1e-5)


def has_the_documented_size(encoding: PositionalEncoding) -> None:
    """The class's docstring states the number of parameters for 12 heads, as in the models here.

    To fix: the class's docstring needs a sentence "Parameters per layer for 12 heads: 24." or
    "Parameters: none."
    """
    if encoding.parts:
        for part in encoding.parts.values():
            has_the_documented_size(part)
        return
    text = " ".join((type(encoding).__doc__ or "").split())
    sentence = re.search(r"Parameters[^:]*: (none|[\d,]+)([^.]*)", text)
    if sentence is None:
        raise Lacking(f"the docstring of {type(encoding).__name__} lacks 'Parameters...: N'")
    numbers = re.findall(r"\b\d[\d,]*", sentence[0].replace("12 heads", ""))
    documented = {int(number.replace(",", "")) for number in numbers} or {0}
    size = sum(leaf.size for leaf in jax.tree.leaves(init(encoding)))
    stated = " or ".join(map(str, sorted(documented)))
    require(size in documented, f"it has {size} parameters for 12 heads; its docstring: {stated}")


def has_a_place_on_every_mesh(encoding: PositionalEncoding) -> None:
    """Each parameter matches one row of the sharding table, in layers and shared by all layers.

    To fix: a shared parameter named `embedding` is split as a table `[positions, hidden_size]`.
    Choose another name for any other parameter.
    """
    shapes = jax.eval_shape(encoding.init, jax.random.key(0))
    stacked = jax.tree.map(lambda leaf: jnp.zeros((SIZE.num_layers, *leaf.shape)), shapes)
    mesh = sharding.abstract_mesh(sharding.MeshShape(1, 16, 4))
    sharding.tree_shardings({"params": {"position": shapes, "layers": {"position": stacked}}}, mesh)


def has_interpolation_beyond_training_alone(encoding: PositionalEncoding) -> None:
    """If there is interpolation, it changes values only beyond the training length.

    The parameters are the same.

    To fix: `interpolated` returns None if the encoding has no interpolation.
    """
    changed = encoding.interpolated()
    if changed is None:
        return
    jax.tree.map(np.testing.assert_array_equal, init(changed), init(encoding))
    params = moved(encoding)
    for length in (LENGTH, 2 * LENGTH):
        (q, k, _), pos = content(length), np.arange(length)
        plain, squeezed = (logits(one, params, q, k, pos, pos) for one in (encoding, changed))
        alike = np.array_equal(plain, squeezed)
        changes = "no values" if alike else "values"
        require(
            alike == (length <= LENGTH),
            f"`interpolated` changes {changes} at {length} tokens after training at {LENGTH}",
        )
