"""The conversion of models to the settings and arrays of stock classes in `transformers`.

A stock class must compute exactly the same function as our model. GPT-2 has the same layers as our
decoder and a table of positions, which can contain learned rows, zeros (no encoding) or sinusoids.
GPT-NeoX has the same layers with rotary positions. Every other model requires its own code.

Shapes: V vocabulary, D model, H head dim, P positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fire_lm.interop.layer_forms import GPT2, GPT_NEOX, Arrays, layer_of, norm_arrays, reordered
from fire_lm.models import Decoder, Turn
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.learned import Learned
from fire_lm.positions.nope import NoPE
from fire_lm.positions.resampling import Resampling
from fire_lm.positions.rope import RoPE
from fire_lm.positions.rope_scaling import Llama3, NTKAware, PositionInterpolation, YaRN
from fire_lm.positions.sinusoidal import Sinusoidal, sinusoids


class Stock(NamedTuple):
    """A model in the form of a configuration and weights for Hugging Face transformers.

    Attributes:
      config: The fields of `config.json`, including `architectures` and `model_type`.
      arrays: The float32 state dict, without the output matrix if it is tied to the embedding.
    """

    config: dict[str, Any]
    arrays: Arrays


def stock(model: Decoder, params: Any, positions: int) -> Stock | None:
    """Return the model in the form of a stock class that computes the same function, or None.

    Args:
      positions: The number of positions to support, unless the model has a learned table.
    """
    size, encoding = model.size, model.encodings[0]
    form = _FORMS.get(type(encoding))
    if (
        form is None
        or model.turns != (Turn(encoding),)
        or model.resampling != Resampling()
        or size.num_heads * size.head_dim != size.hidden_size
    ):
        return None
    return form(model, params, encoding, positions)


def _gpt2(model: Decoder, params: Any, table_PD: np.ndarray, scale: float = 1.0) -> Stock:
    """Return a GPT-2 model whose input is `scale` times the embedding plus a row of the table."""
    size, layers = model.size, params["layers"]
    embedding_VD = np.asarray(params["embedding"])
    arrays = {
        "transformer.wte.weight": embedding_VD * np.float32(scale),
        "transformer.wpe.weight": np.asarray(table_PD, np.float32),
        **norm_arrays("transformer.ln_f", params["final_norm"]),
    }
    if scale != 1:
        arrays["lm_head.weight"] = embedding_VD
    for index in range(size.num_layers):
        arrays |= GPT2.arrays(index, layer_of(layers, index))
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_positions": len(table_PD),
        "n_embd": size.hidden_size,
        "n_layer": size.num_layers,
        "n_head": size.num_heads,
        "n_inner": size.mlp_size,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": scale == 1,
    }
    return Stock(config, arrays)


def _neox(
    model: Decoder, params: Any, rope: RoPE, positions: int, rope_parameters: dict[str, Any]
) -> Stock:
    size, layers = model.size, params["layers"]
    arrays = {
        "gpt_neox.embed_in.weight": np.asarray(params["embedding"]),
        **norm_arrays("gpt_neox.final_layer_norm", params["final_norm"]),
    }
    layers = reordered(layers, halves(rope))
    for index in range(size.num_layers):
        arrays |= GPT_NEOX.arrays(index, layer_of(layers, index))
    rope_parameters = {
        "rope_theta": rope.base,
        "partial_rotary_factor": rotary_factor(rope),
        **rope_parameters,
    }
    config = {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "hidden_size": size.hidden_size,
        "num_hidden_layers": size.num_layers,
        "num_attention_heads": size.num_heads,
        "intermediate_size": size.mlp_size,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "use_parallel_residual": False,
        "attention_bias": True,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "tie_word_embeddings": True,
        "max_position_embeddings": positions,
        "rope_parameters": rope_parameters,
        # Transformers 4 reads these instead; they suffice for RoPE without a scaling.
        "rotary_pct": rope_parameters["partial_rotary_factor"],
        "rotary_emb_base": rope_parameters["rope_theta"],
    }
    return Stock(config, arrays)


def halves(rope: RoPE) -> np.ndarray:
    """Return the order of a head's dims in which dim k is rotated with dim k + d/2.

    d is the number of rotated dims.
    """
    order_H = np.arange(rope.head_dim)
    if rope.layout == "interleaved":
        turned = order_H[: rope.rotary_width]
        order_H = np.concatenate([turned[0::2], turned[1::2], order_H[rope.rotary_width :]])
    return order_H


def _without_positions(model: Decoder, params: Any, _: NoPE, positions: int) -> Stock:
    return _gpt2(model, params, np.zeros((positions, model.size.hidden_size), np.float32))


def _with_a_table(model: Decoder, params: Any, learned: Learned, _: int) -> Stock:
    return _gpt2(model, params, np.asarray(learned.table(params["position"])))


def _with_waves(model: Decoder, params: Any, waves: Sinusoidal, positions: int) -> Stock:
    table_PD = sinusoids(jnp.arange(positions)[None], model.size.hidden_size, waves.base)[0]
    return _gpt2(model, params, np.asarray(table_PD), math.sqrt(model.size.hidden_size))


def _rotary(model: Decoder, params: Any, rope: RoPE, positions: int) -> Stock | None:
    """Return a GPT-NeoX model, or None if GPT-NeoX does not support the scaling of `rope`.

    Scalings that depend on the input length are excluded, because transformers does not update the
    rotation of cached keys when the input grows.
    """
    scaling = rope.scaling
    if rope.turning_fraction < 1:
        return None
    if scaling is None:
        return _neox(model, params, rope, positions, {"rope_type": "default"})
    form = _SCALINGS.get(type(scaling))
    if form is None or scaling.follows_input:
        return None
    parameters = form(scaling, rope)
    return None if parameters is None else _neox(model, params, rope, positions, parameters)


def rotary_factor(rope: RoPE) -> float:
    """Return the share of dims for which transformers, which rounds down, rotates as many."""
    factor, width = rope.rotary_fraction, rope.rotary_width
    return factor if int(rope.head_dim * factor) == width else (width + 0.25) / rope.head_dim


def _ntk(scaling: NTKAware, rope: RoPE) -> dict[str, Any]:
    assert scaling.factor is not None
    width = rope.rotary_width
    return {
        "rope_type": "default",
        # A single pair of dimensions has the frequency 1 for every base.
        "rope_theta": rope.base * scaling.factor ** (width / max(width - 2, 1)),
    }


def _yarn(scaling: YaRN, rope: RoPE) -> dict[str, Any] | None:
    if scaling.ramp != "code":
        return None
    return {
        "rope_type": "yarn",
        "factor": scaling.factor,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "original_max_position_embeddings": rope.train_length,
    }


def _llama3(scaling: Llama3, rope: RoPE) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
        "original_max_position_embeddings": scaling.original_length or rope.train_length,
    }


_FORMS: dict[type[PositionalEncoding], Callable[..., Stock | None]] = {
    NoPE: _without_positions,
    Learned: _with_a_table,
    Sinusoidal: _with_waves,
    RoPE: _rotary,
}
_SCALINGS: dict[type, Callable[..., dict[str, Any] | None]] = {
    PositionInterpolation: lambda scaling, _: {"rope_type": "linear", "factor": scaling.factor},
    NTKAware: _ntk,
    YaRN: _yarn,
    Llama3: _llama3,
}
