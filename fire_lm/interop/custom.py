"""Conversion of a model to the settings and arrays of `hub/modeling_fire_lm.py`.

That file contains the PyTorch code for models that no class of the `transformers` library can
represent. It only implements formulas; numbers that follow from the settings of an encoding
(frequencies, slopes, bucket boundaries) are computed here and stored in the exported settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np

from fire_lm.errors import UserError
from fire_lm.interop.layer_forms import FIRE_LM, Arrays, layer_of, linear_arrays, norm_arrays
from fire_lm.interop.stock import Stock
from fire_lm.models import Attention, Decoder
from fire_lm.models.positions_of_layers import layers_of_turn, shared_params
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.angles import pair_frequencies
from fire_lm.positions.fire import FIRE
from fire_lm.positions.kerple import LARGEST_POWER, SMALLEST, KERPLELog, KERPLEPower
from fire_lm.positions.learned import Learned
from fire_lm.positions.nope import NoPE
from fire_lm.positions.rope import RoPE
from fire_lm.positions.sandwich import Sandwich, sandwich_frequencies, sandwich_scales
from fire_lm.positions.sinusoidal import Sinusoidal
from fire_lm.positions.t5 import T5, bucket_starts
from fire_lm.positions.xpos import XPos, decay_rates

Settings = dict[str, Any]


def custom(model: Decoder, params: Any, context_length: int) -> Stock:
    """Return the settings and the float32 arrays of a model that uses only fire_lm's encodings.

    The exported model reads every input at the positions 0, 1, 2, ...

    Args:
      context_length: The input length that length-dependent encodings assume.

    Raises:
      UserError: The exported code has no form of an encoding or a mixer.
    """
    check_exportable(model)
    size = model.size
    arrays: Arrays = {"model.embedding.weight": np.asarray(params["embedding"])}
    arrays |= norm_arrays("model.final_norm", params["final_norm"])
    turns = len(model.encodings)
    for turn, encoding in enumerate(model.encodings):
        layers = layers_of_turn(model, params, turn)
        for row, index in enumerate(range(turn, size.num_layers, turns)):
            layer = layer_of(layers, row)
            arrays |= FIRE_LM.arrays(index, layer)
            if "position" in layer:
                own = _learned(encoding, layer["position"])
                arrays |= {f"model.layers.{index}.position.{k}": v for k, v in own.items()}
        if model.share_position:
            own = _learned(encoding, jax.tree.map(np.asarray, shared_params(model, params, turn)))
            arrays |= {f"model.positions.{turn}.{name}": value for name, value in own.items()}
    settings = [_SETTINGS[type(each.causal_form)](each, context_length) for each in model.encodings]
    log_n = [
        turn.log_n and {"on": turn.log_n.on, "clipped": turn.log_n.clipped} for turn in model.turns
    ]
    follows = any(encoding.uses_context_length for encoding in model.encodings)
    purpose = "CausalLM" if model.causal else "MaskedLM"
    config = {
        "architectures": [f"FireLMFor{purpose}"],
        "model_type": "fire_lm",
        "auto_map": {
            "AutoConfig": "configuration_fire_lm.FireLMConfig",
            f"AutoModelFor{purpose}": f"modeling_fire_lm.FireLMFor{purpose}",
        },
        "hidden_size": size.hidden_size,
        "num_hidden_layers": size.num_layers,
        "num_attention_heads": size.num_heads,
        "head_dim": size.head_dim,
        "intermediate_size": size.mlp_size,
        "positions": settings,
        "share_position": model.share_position,
        "log_n": _by_turn(log_n),
        "train_length": model.encodings[0].train_length,
        "context_length": context_length if follows else None,
        "tie_word_embeddings": True,
    }
    for name, values in (
        ("windows", [turn.window for turn in model.turns]),
        ("chunks", [turn.chunk for turn in model.turns]),
    ):
        if any(values):
            config[name] = _by_turn(values)
    if not model.causal:
        config["causal"] = _by_turn([turn.causal for turn in model.turns])
    return Stock(config, arrays)


def check_exportable(model: Decoder) -> None:
    """Raise UserError if the exported code cannot compute what the model computes."""
    for turn in model.turns:
        encoding = type(turn.encoding.causal_form)
        if encoding not in _SETTINGS:
            raise UserError(
                f"{encoding.__name__} cannot be exported: the exported code has only "
                f"{', '.join(sorted(known.__name__ for known in _SETTINGS))}"
            )
        if turn.mixer != Attention():
            options = f" ({turn.mixer})" if type(turn.mixer) is Attention else ""
            raise UserError(
                f"layers with {type(turn.mixer).__name__}{options} cannot be exported: the "
                "exported code has only Attention without options"
            )
        if turn.log_n is not None and turn.log_n.learned:
            raise UserError(
                "LogN.learned = True (SSMax) cannot be exported: the exported code has only log n "
                "without learned factors"
            )


def _by_turn(values: list[Any]) -> Any:
    """Return the value of all turns, or the list if they differ."""
    return values[0] if all(value == values[0] for value in values) else values


def _learned(encoding: PositionalEncoding, params: Any) -> Arrays:
    """Return the parameters of an encoding, named as in `hub/modeling_fire_lm.py`."""
    encoding = encoding.causal_form
    if isinstance(encoding, FIRE):
        arrays: Arrays = {}
        for index in range(len(params["mlp"])):
            arrays |= linear_arrays(f"dense.{index}", params["mlp"][f"dense_{index}"])
        if "L_multiplier" in params:
            arrays["L"] = np.asarray(params["L_multiplier"] * encoding.initial_L, np.float32)
        return arrays | {name: params[name] for name in ("c", "gamma") if name in params}
    if isinstance(encoding, Learned):
        return {"embedding": np.asarray(encoding.table(params))}
    return dict(params)


def _fire(encoding: PositionalEncoding, _: int) -> Settings:
    fire = cast(FIRE, encoding.causal_form)
    learned = [
        *(["c"] if fire.transform == "log" else []),
        *(["L"] if fire.threshold and fire.learn_L else []),
        *(["gamma"] if fire.init_gamma is not None else []),
    ]
    return {
        "type": "fire",
        "hidden_layers": fire.hidden_layers,
        "width": fire.width,
        "activation": fire.activation,
        "final_activation": fire.final_activation,
        "learned": learned,
        "L": fire.initial_L if fire.threshold else 0.0,
        "query_index_offset": fire.query_index_offset,
        "epsilon": fire.epsilon,
        "last_position": fire.last_position,
    }


def _rope(rope: RoPE, context_length: int) -> Settings:
    frequency_K, factor = rope.frequencies(context_length)
    return {
        "type": "rotary",
        "frequencies": frequency_K.tolist(),
        "factor": factor,
        "interleaved": rope.layout == "interleaved",
    }


def _xpos(xpos: XPos, context_length: int) -> Settings:
    return {
        "type": "xpos",
        "frequencies": pair_frequencies(xpos.head_dim, xpos.base).tolist(),
        "rates": decay_rates(xpos.head_dim, xpos.scale_base, context_length).tolist(),
        "centre": context_length // 2,
    }


def _alibi(alibi: ALiBi, context_length: int) -> Settings:
    slope_N = alibi.slopes()
    if alibi.interpolate:
        slope_N = slope_N * min(1.0, alibi.train_length / context_length)
    return {"type": "linear", "slopes": slope_N.tolist()}


def _t5(encoding: PositionalEncoding, _: int) -> Settings:
    t5 = cast(T5, encoding.causal_form)
    later = encoding is not t5  # later keys have half of the buckets
    starts = bucket_starts(t5.num_buckets // (2 if later else 1), t5.max_distance)
    return {"type": "buckets", "starts": starts.tolist()} | ({"later": True} if later else {})


def _sandwich(sandwich: Sandwich, _: int) -> Settings:
    return {
        "type": "sandwich",
        "frequencies": sandwich_frequencies(sandwich.num_terms).tolist(),
        "scales": sandwich_scales(sandwich.num_heads).tolist(),
    }


def _sinusoidal(waves: Sinusoidal, _: int) -> Settings:
    return {
        "type": "waves",
        "frequencies": pair_frequencies(waves.hidden_size, waves.base).tolist(),
    }


_SETTINGS: dict[type[PositionalEncoding], Callable[..., Settings]] = {
    NoPE: lambda _, __: {"type": "none"},
    Learned: lambda learned, _: {"type": "table", "rows": learned.rows},
    Sinusoidal: _sinusoidal,
    RoPE: _rope,
    XPos: _xpos,
    ALiBi: _alibi,
    KERPLELog: lambda _, __: {"type": "kerple_log", "p": [SMALLEST, None], "a": [SMALLEST, None]},
    KERPLEPower: lambda _, __: {
        "type": "kerple_power",
        "p": [SMALLEST, LARGEST_POWER],
        "a": [SMALLEST, None],
    },
    T5: _t5,
    Sandwich: _sandwich,
    FIRE: _fire,
}
