"""The parameters of a decoder's encodings, and the diagnostics and scalars computed from them.

Either all layers share one set of parameters (`share_position`), or each layer has its own set, and
the scan over layers stacks these sets along a leading axis. Several encodings alternate by layer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fire_lm.attention import Layout, TabulatedBias, Terms, Tokens, choose_implementation
from fire_lm.models.decoder import Decoder
from fire_lm.models.layer_position import has_parameters, position_name, positioned
from fire_lm.models.turns import Turn
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.base import Params
from fire_lm.positions.resampling import Resampling


class PositionStack(NamedTuple):
    """The parameters of one encoding in the layers that use it, with a leading axis of `layers`.

    `layers` are zero-based indices. Layers that share one set of parameters, or have none (`params`
    is {}), are represented by the first of them.
    """

    layers: tuple[int, ...]
    encoding: PositionalEncoding
    params: Params


class PositionLayer(NamedTuple):
    """The zero-based index of a layer, its encoding, and the encoding's parameters there."""

    layer: int
    encoding: PositionalEncoding
    params: Params


def position_stacks(model: Decoder, params: Any) -> list[PositionStack]:
    """Return the model's encodings as stacks of layers with their parameters.

    Identical encodings whose layers share their parameters, or have none, form one stack.
    """
    stacks = []
    for turn, encoding in enumerate(model.encodings):
        if not model.share_position and has_parameters(encoding):
            own = layers_of_turn(model, params, turn)["position"]
            stacks.append(PositionStack(indices_of_turn(model, turn), encoding, own))
        elif model.encodings.index(encoding) == turn:
            own = jax.tree.map(lambda leaf: leaf[None], shared_params(model, params, turn))
            stacks.append(PositionStack((turn,), encoding, own))
    return stacks


def indices_of_turn(model: Decoder, turn: int) -> tuple[int, ...]:
    """Return the zero-based indices of the layers of a turn.

    If n encodings alternate, turn t consists of the layers t, t + n, t + 2n, ...
    """
    return tuple(range(turn, model.size.num_layers, len(model.turns)))


def layers_of_turn(model: Decoder, params: Any, turn: int) -> Params:
    """Return the parameters of all layers of a turn, stacked along a leading axis."""
    layers: Params = params["layers"]
    return layers if len(model.encodings) == 1 else layers.get(f"block_{turn}", {})


def shared_params(model: Decoder, params: Any, turn: int) -> Params:
    """Return the encoding's parameters that the layers of a turn share, or {} if there are none."""
    shared: Params = params.get(position_name(model.encodings.index(model.encodings[turn])), {})
    return shared


def position_layers(model: Decoder, params: Any) -> list[PositionLayer]:
    """Return the encoding of each layer with its parameters, in the order of the layers.

    Layers that share their parameters, or have none, are represented by the first such layer.
    """
    layers = [
        PositionLayer(layer, encoding, jax.tree.map(lambda leaf: leaf[index], stacked))  # noqa: B023
        for numbers, encoding, stacked in position_stacks(model, params)
        for index, layer in enumerate(numbers)
    ]
    return sorted(layers, key=lambda layer: layer.layer)


def position_diagnostics(model: Decoder, params: Any) -> dict[str, jax.Array]:
    """Return the encodings' diagnostics, each as the maximum over all layers."""
    by_name: dict[str, list[jax.Array]] = {}
    for _, encoding, stacked in position_stacks(model, params):
        for name, value_L in (jax.vmap(encoding.diagnostics)(stacked) if stacked else {}).items():
            by_name.setdefault(name, []).append(jnp.max(value_L))
    return {name: functools.reduce(jnp.maximum, values) for name, values in by_name.items()}


def explain_nan(model: Decoder, diagnostics: Mapping[str, float], length: int) -> str | None:
    """Return why attention over `length` tokens returned NaN, or None if this is unknown.

    `diagnostics` contains the values of `position_diagnostics`.
    """
    reasons = (
        turn.encoding.explain_nan(diagnostics)
        for turn in model.turns
        if runs_in_kernel(model, turn, length)
    )
    return next(filter(None, reasons), None)


def runs_in_kernel(model: Decoder, turn: Turn, length: int) -> bool:
    """Return whether the TPU kernel computes attention with the bias of this turn's encoding."""
    mask = turn.mixer.attention_mask(turn.mask)
    if mask is None or choose_implementation(model.attention, length) != "tpu":
        return False
    within = mask.within(length)
    from fire_lm.attention.tpu import dispatch  # Pallas takes a while to import.

    obstacles: list[str | None] = []

    def record() -> None:
        encoding, pos_1T = turn.encoding, jnp.arange(length)[None]
        params = encoding.prepare(encoding.init(jax.random.key(0)))
        tables = encoding.common_bias(params, length, length)
        if tables is None:
            return
        q = jnp.zeros((1, length, model.size.num_heads, model.size.head_dim), model.dtype)
        rotated, _, _, bias = positioned(encoding, params, None, q, q, pos_1T, pos_1T, None, length)
        mix = functools.partial(encoding.mix, params) if encoding.acts_through("mix") else None
        terms = Terms(TabulatedBias(bias, tables), mix=mix)
        layout = Layout(in_order=True, consecutive=model.resampling == Resampling())
        obstacles.append(dispatch.obstacle(rotated, q, Tokens(pos_1T), terms, within, layout))

    jax.eval_shape(record)
    return obstacles == [None]


def reason_of_nan(model: Decoder, params: Any, length: int) -> str:
    """Return the most likely reason why a trained model returns NaN for `length` tokens."""
    reason = None
    if any(runs_in_kernel(model, turn, length) for turn in model.turns):
        diagnostics = {name: float(x) for name, x in position_diagnostics(model, params).items()}
        reason = explain_nan(model, diagnostics, length)
    return reason or "training may have diverged\nuse an earlier checkpoint"


def learned_scalars_by_layer(model: Decoder, params: Any) -> dict[str, jax.Array]:
    """Return the scalars that each layer's encoding and mixer learn.

    The keys consist of the name and the zero-based layer, such as "L/layer_3". A scalar that
    several layers share appears once, under the first of these layers.
    """
    stacks = [
        (layers, jax.vmap(encoding.learned_scalars)(stacked))
        for layers, encoding, stacked in position_stacks(model, params)
        if stacked
    ]
    for index, turn in enumerate(model.turns):
        own = layers_of_turn(model, params, index)
        stacks.append((indices_of_turn(model, index), jax.vmap(turn.mixer.learned_scalars)(own)))
    return _by_layer(stacks)


def diagnostics_by_layer(model: Decoder, diagnostics: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Return the diagnostics that mixers recorded in a forward pass, keyed as learned scalars.

    `diagnostics` is the collection of that name, {} if there are none.
    """
    if "layers" not in diagnostics:
        return {}
    return _by_layer(
        (indices_of_turn(model, turn), layers_of_turn(model, diagnostics, turn))
        for turn in range(len(model.turns))
    )


def _by_layer(
    stacks: Iterable[tuple[tuple[int, ...], Mapping[str, jax.Array]]],
) -> dict[str, jax.Array]:
    """Return the scalars `[L]` of stacks of layers as "name/layer_3", and so on."""
    return {
        f"{name}/layer_{layer}": value_L[index]
        for layers, scalars in stacks
        for name, value_L in scalars.items()
        for index, layer in enumerate(layers)
    }
