"""Properties that an encoding must have in attention and in a decoder; see `of_hooks`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.attention import Layout, Terms, Tokens, attend, seen
from fire_lm.attention.decay import cumulative_decay
from fire_lm.encoding_properties.of_hooks import (
    SIZE,
    at_first_and_later,
    content,
    init,
    largest_error,
    logits,
    require,
)
from fire_lm.generation.cache import prefill, read_token
from fire_lm.models import Decoder, Turn, segment_positions
from fire_lm.models.mixers import State
from fire_lm.positions import PositionalEncoding


def decoder(encoding: PositionalEncoding) -> Decoder:
    embeds = encoding.acts_through("embed")  # there is one embedding
    return Decoder(SIZE, (Turn(encoding),), vocab_size=32, share_position=embeds)


def has_the_same_values_in_blocks(encoding: PositionalEncoding) -> None:
    """Every implementation gives equal values, and gradients to q, k, v and the parameters.

    To fix: `bias` is called with a part of the queries at a time. A value may therefore depend on
    the positions of its own query and key, the parameters and `context_length`, but never on the
    array's shape or its first or largest position.
    """
    pos = jnp.arange(300)[None]

    def loss(inputs: Any, implementation: Any, in_order: bool) -> tuple[jax.Array, jax.Array]:
        params, q, k, v = inputs
        params = encoding.prepare(params)
        tokens = Tokens(pos)
        if (gates := encoding.log_decay(params, q.reshape(1, 300, -1))) is not None:
            tokens = tokens._replace(decay=cumulative_decay(gates))
        q, k = encoding.rotate(params, q, k, pos, pos, 300)
        terms = Terms(
            bias=lambda q_pos, k_pos: encoding.bias(params, q_pos, k_pos, 300),
            logit_scale_BT=encoding.logit_scale(params, pos),
            mix=functools.partial(encoding.mix, params),
        )
        layout = Layout(in_order=in_order, implementation=implementation)
        out = attend(q, k, v, tokens, tokens, terms, layout=layout)
        return jnp.sum(jnp.sin(out)), out

    inputs = (init(encoding), *content(300))
    gradient = jax.grad(loss, has_aux=True)
    dense, *others = (
        jax.jit(functools.partial(gradient, implementation=name, in_order=in_order))(inputs)
        for name, in_order in (("dense", False), ("blockwise", False), ("blockwise", True))
    )
    (dense_params, *dense_qkv), dense_out = dense
    for (in_params, *in_qkv), out in others:
        require(largest_error(out, dense_out) < 1e-5, "block-wise attention gives other values")
        in_qkv_differ = largest_error(in_qkv, dense_qkv) >= 1e-4
        require(not in_qkv_differ, "block-wise attention gives other gradients to q, k or v")
        # A gradient can cancel completely: a softmax ignores FIRE's last bias.
        alike = largest_error(in_params, dense_params, floor=1.0) < 1e-4
        require(alike, "block-wise attention gives other gradients to the parameters")


def has_no_leaks(encoding: PositionalEncoding) -> None:
    """A logit's gradient is zero for later tokens, other documents, padding, and unseen tokens.

    Unseen are those beyond the windows and chunks of the layers. To fix: a hook may not mix values
    from different tokens (no mean, sum, roll or cumsum over the axis of tokens).
    """
    model = windowed(encoding)
    segment = jnp.asarray([[1] * 12 + [2] * 4 + [0] * 2])
    length = segment.shape[1]
    tokens, pos = jnp.arange(1, length + 1)[None], segment_positions(jnp.arange(length), segment)
    params = filled(model)

    def logits_of_0(table: jax.Array) -> jax.Array:
        out = model.apply({"params": {**params, "embedding": table}}, tokens, pos, segment)
        return jnp.asarray(out)[0, :, 0]

    jacobian = jax.jit(jax.jacrev(logits_of_0))(params["embedding"])  # [T, V, D]
    slope = np.max(np.abs(np.asarray(jacobian)[:, 1 : length + 1]), axis=-1)
    depends = slope > 0
    allowed = seen_through_layers(model, Tokens(pos, segment))
    later = ~np.tri(length, dtype=bool)
    require(not np.any(depends & later), "the logits depend on later tokens")
    own = np.asarray(segment)[0]
    apart = own[:, None] != own[None]
    require(not np.any(depends & apart), "the logits depend on other documents or on padding")
    beyond = np.max(slope[~allowed])
    least = _rounding(encoding) * np.max(slope)
    require(beyond <= least, "the logits depend on tokens beyond the window or chunk")
    require(np.all(depends | ~allowed), "the logits ignore some earlier tokens")


def has_no_leaks_in_decoding(encoding: PositionalEncoding) -> None:
    """Decoded logits are equal for other padding, other prompts and other unseen tokens.

    The gradient of a step for what is cached of such tokens is zero. To fix: see `has_no_leaks`.
    """
    model, new, width = windowed(encoding), 3, 12
    params, lengths = filled(model), np.array([4, width], np.int32)
    pos_C = jnp.arange(width + new)

    @jax.jit
    def decoded(tokens: jax.Array) -> tuple[jax.Array, Any, Any]:
        prompts = (tokens[:, :width], jnp.asarray(lengths))
        _, cache = prefill(model, params, *prompts, pos_C, new, 1, width + new)

        def one(cache: Any, index: jax.Array) -> Any:
            token = jnp.take_along_axis(tokens, lengths[:, None] + index, axis=1)
            place = (index, prompts[1], pos_C, width + new)
            logits, cache = read_token(model, params, cache, token, *place)
            return cache, logits[:, 0]

        cache = jax.lax.scan(one, cache, jnp.arange(new - 1))[0]

        def last(cache: Any) -> tuple[jax.Array, jax.Array]:
            logits = one(cache, jnp.int32(new - 1))[1]
            return jnp.sum(logits[:, 0]), logits

        gradient, logits = jax.grad(last, has_aux=True, allow_int=True)(cache)
        return logits, gradient, [past.state.common.places for past in cache]

    tokens = np.random.default_rng(0).integers(1, model.vocab_size, (2, width + new))
    last = lengths + new - 1
    pos = jnp.arange(width + new)[None]
    allowed = seen_through_layers(model, Tokens(pos))[last]
    others = np.where(allowed, tokens, tokens % (model.vocab_size - 1) + 1)
    (expected, *of_cache), (found, *_) = (decoded(jnp.asarray(x)) for x in (tokens, others))
    equal = np.max(np.abs(expected - found)) <= _rounding(encoding)
    require(equal, "decoding depends on padding or beyond the window or chunk")
    for turn, gradient, place in zip(model.turns, *of_cache, strict=True):
        slope = np.concatenate(slopes_of_keys(gradient.state), axis=1)
        distance = last[:, None] - np.asarray(place)
        window, chunk = (most or width + new for most in (turn.window, turn.chunk))
        allowed = (distance > 0) & (distance < window) & (last[:, None] // chunk == place // chunk)
        equal = np.array_equal(slope > 0, allowed)
        require(equal, "a step has a gradient for unseen cached tokens")
    changed = np.array(tokens)
    changed[np.arange(2), last] = changed[np.arange(2), last] % (model.vocab_size - 1) + 1
    ignored = np.allclose(expected, decoded(jnp.asarray(changed))[0])
    require(not ignored, "decoding ignores its input")


def slopes_of_keys(state: State) -> list[np.ndarray]:
    """Return the largest slope for the key and value of each token in a gradient, `[B, S]` each."""
    prompt, own = state.prompt, state.own
    return [
        np.maximum(*(np.max(np.abs(x), axis=axes) for x in pair))
        for pair, axes in (
            ((prompt.k_BNHP, prompt.v_BNHP), (0, 2, 3)),
            ((own.k_BKRNH, own.v_BKRNH), (0, 2, 4, 5)),
        )
    ]


def _rounding(encoding: PositionalEncoding) -> float:
    """Return by how much values may differ that unseen tokens must not change.

    The gates before a window are in the sums of both query and key, which cancel up to rounding.
    """
    return 1e-6 if encoding.acts_through("log_decay") else 0.0


def windowed(encoding: PositionalEncoding) -> Decoder:
    """Return a decoder whose layers together see fewer tokens than a document of 12."""
    model = decoder(encoding)
    return model.clone(turns=(Turn(encoding, window=3), Turn(encoding, chunk=5)))


def filled(model: Decoder) -> Any:
    """Return random parameters, which takes less time than compiling an initialisation."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.float32(rng.normal(0, 0.1, leaf.shape)), shapes)


def seen_through_layers(model: Decoder, tokens: Tokens) -> np.ndarray:
    """Return which tokens the output for each token can depend on, bool `[T, T]`."""
    reached = np.eye(tokens.pos.shape[1], dtype=bool)
    for _ in range(model.size.num_layers // len(model.turns)):
        for turn in model.turns:
            reached = np.asarray(seen(tokens, tokens, turn.mask))[0] @ reached
    return reached


def has_the_common_form(encoding: PositionalEncoding) -> None:
    """If an encoding provides tables, they equal its bias, also in attention and in its gradients.

    To fix: tables are derived automatically from a bias that depends on distance only. An encoding
    with another bias declares `translation_invariant = False`, or overrides `common_bias`.
    """
    raw, length = init(encoding), 100
    pos = jnp.arange(length)[None]
    bias = encoding.bias(raw, pos, pos, length)
    form = encoding.common_bias(raw, length, length)
    expected = bias is not None and has_tables(encoding)
    returned = "no tables" if form is None else "tables"
    require((form is not None) == expected, f"`common_bias` returns {returned}")
    if form is None or bias is None:
        return
    causal = np.tri(length, dtype=bool)
    scale = max(1.0, float(np.max(np.abs(bias[0][:, causal]))))
    tables = np.asarray(form(pos, pos))
    np.testing.assert_allclose(tables[..., causal], bias[..., causal], atol=1e-5 * scale)
    far = form(pos + 1, pos)  # beyond the last row: NaN, not the value of another row
    bounded = np.all(np.isnan(far[:, :, -1])) and not np.any(np.isnan(far[:, :, :-1]))
    require(bounded, "the tables are not NaN exactly beyond their last row")
    if form.kink_K.size:  # The kernel relies on this near the diagonal.
        monotonic = np.all(np.diff(form.slab_MP) >= 0) and np.all(np.diff(form.row_P) <= 0)
        require(monotonic, "the tables are not monotonic")

    def loss(params: Any, tables: bool) -> jax.Array:
        form = encoding.common_bias(params, length, length)
        own = functools.partial(encoding.bias, params, context_length=length)
        chosen: Any = form if tables else lambda q_pos, k_pos: own(q_pos, k_pos)
        layout = Layout(implementation="dense")
        q, k, v = content(length)
        out = attend(q, k, v, Tokens(pos), Tokens(pos), Terms(chosen), layout=layout)
        return jnp.sum(jnp.sin(out))

    gradient = jax.jit(jax.grad(loss), static_argnames="tables")
    ours, own = (gradient(raw, tables=tables) for tables in (True, False))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-3), ours, own)


def has_tables(encoding: PositionalEncoding) -> bool:
    """Return whether the encoding provides tables.

    All encodings with a bias of the distance only do, and FIRE with no activation but ReLU. Two
    encodings together do if one of them has a bias, and this one does.
    """
    biased = [part for part in encoding.parts.values() if part.acts_through("bias")]
    if len(biased) == 1:
        return has_tables(biased[0])
    if (
        biased
        or encoding.translation_invariant
        or type(encoding).common_bias is PositionalEncoding.common_bias
    ):
        return encoding.translation_invariant
    activation = getattr(encoding, "activation", "relu")
    return activation == "relu" and not getattr(encoding, "final_activation", False)


def has_parameters_of_its_own_in_every_layer(encoding: PositionalEncoding) -> None:
    """Layers start from different parameters, except for scalars, or have none at all.

    To fix: draw initial values with the `rng` that `init` receives, which differs between layers.
    If they are meant to be constants, declare it in the class: `constant_init = True`.
    """
    model, expected = decoder(encoding), init(encoding)
    if model.share_position:
        return
    entries = position_entries(model)
    places = ["layers"] * bool(expected)
    require(list(entries) == places, f"parameters are in {list(entries)}, not {places}")
    stacked = jax.tree.map(lambda leaf: (SIZE.num_layers, *leaf.shape), expected)
    shapes = jax.tree.map(jnp.shape, entries.get("layers", {}))
    require(shapes == stacked, f"parameters have the shapes {shapes}, not {stacked}")
    arrays = [leaf for leaf in jax.tree.leaves(entries) if leaf.ndim > 1]
    differ = any(np.any(leaf[0] != leaf[1]) for leaf in arrays)
    if encoding.constant_init:
        require(not differ, "constant_init = True, but layers start from different parameters")
    else:
        require(differ or not arrays, "all layers start from the same parameters")


def position_entries(model: Decoder) -> dict[str, Any]:
    """Return the encoding's initial parameters in the decoder, by their place in the tree."""

    def entries(rng: jax.Array) -> dict[str, Any]:
        tokens = jnp.zeros((1, 1), jnp.int32)
        params = model.init(rng, tokens, tokens)["params"]
        places = {"top": params, "layers": params["layers"]}
        return {name: place["position"] for name, place in places.items() if "position" in place}

    return jax.jit(entries)(jax.random.key(0))


def has_explicit_dtypes_and_axes(encoding: PositionalEncoding) -> None:
    """Every hook casts dtypes and adds axes explicitly; JAX converts nothing silently.

    To fix: positions are int32 and all maths is float32, so cast before mixing them,
    `distance(q_pos_BT, k_pos_BS).astype(jnp.float32)`; and give both sides of an operation the same
    number of axes, `params["w"][None, :, None, None] * distance_BTS[:, None]`. Python numbers can
    be mixed with anything.
    """
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        pos, (q, k, _) = jnp.arange(4)[None], content(4)
        for params in map(encoding.prepare, at_first_and_later(encoding)):
            encoding.embed(params, q.reshape(1, 4, -1), pos)
            encoding.diagnostics(params), encoding.learned_scalars(params)
            if (gates := encoding.log_decay(params, q.reshape(1, 4, -1))) is not None:
                shape = (1, 4, encoding.num_heads)
                fits = gates.shape == shape and gates.dtype == jnp.float32 and np.all(gates <= 0)
                require(fits, f"`log_decay` is not float32 {shape} with values of at most 0")
            logits(encoding, params, q, k, pos[0], pos[0])
            encoding.common_bias(params, 4, 4)
