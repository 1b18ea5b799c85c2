"""The import of folders written by `fire-lm export`: the inverse of `stock.py` and `custom.py`.

Shapes: V vocabulary, D model, P positions.
"""

from __future__ import annotations

import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.errors import UserError
from fire_lm.interop.custom import custom
from fire_lm.interop.gpt2 import gpt2_params
from fire_lm.interop.layer_forms import (
    FIRE_LM,
    GPT_NEOX,
    reordered,
    stacked,
    take_linear,
    take_norm,
)
from fire_lm.interop.stock import halves, stock
from fire_lm.interop.weights import Weights
from fire_lm.models import Decoder
from fire_lm.models.layer_position import has_parameters, position_name
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.fire import FIRE
from fire_lm.positions.learned import Learned
from fire_lm.positions.rope import RoPE
from fire_lm.positions.sinusoidal import Sinusoidal, sinusoids


def read_own(model: Decoder, config: dict[str, Any], weights: Weights) -> dict[str, Any]:
    """Return the parameters of `model` from a folder, whose `config.json` has the fields `config`.

    Raises:
      UserError: The arrays do not belong to `model`, or an array that is not a parameter of `model`
        has changed since the export.
    """
    forms = {"gpt2": _gpt2, "gpt_neox": _neox, "fire_lm": _custom}
    kind = config.get("model_type")
    if kind not in forms:
        raise UserError(
            f"config.json: model_type is {kind!r}, but `fire-lm export` writes only "
            f"{', '.join(map(repr, forms))}: export the run again"
        )
    params = forms[kind](model, config, weights)
    weights.check_all_taken()
    return params


# The fields of config.json that do not change the function of a model, or only its lengths.
_FREE = {
    *("architectures", "auto_map", "n_positions", "max_position_embeddings", "context_length"),
    *("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout"),
    "tie_word_embeddings",
}
# Fields that exported folders may have, with their defaults, which transformers adds.
_OPTIONAL = {"windows": None, "chunks": None, "log_n": None, "causal": True}


def check_config(model: Decoder, config: dict[str, Any], weights: Weights) -> None:
    """Raise UserError for the first field that has changed since the export of `model`.

    An absent field has not changed, because transformers omits fields with default values, and
    earlier versions of fire_lm wrote fewer.
    """
    params = read_own(model, config, weights)
    lengths = map(config.get, ("context_length", "n_positions", "max_position_embeddings"))
    length = int(next(filter(None, lengths), model.encodings[0].train_length))
    exported = (stock(model, params, length) or custom(model, params, length)).config
    expected = _OPTIONAL | json.loads(json.dumps(exported))
    for name, ours in expected.items():
        theirs = config.get(name, ours)
        if isinstance(ours, dict) and isinstance(theirs, dict):  # others may have been added
            theirs = {key: theirs.get(key, value) for key, value in ours.items()}
        if name not in _FREE and not _same(theirs, ours):
            raise UserError(
                f"config.json: {name} has changed since the export, from {str(ours)[:100]} to "
                f"{str(theirs)[:100]}: undo this, because the imported run has the exported model"
            )


def _same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal up to the rounding of numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_same(one.get(key), other.get(key)) for key in {*one, *other})
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if type(one) in (int, float) and type(other) in (int, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def _gpt2(model: Decoder, config: dict[str, Any], weights: Weights) -> dict[str, Any]:
    encoding, size, vocab = model.encodings[0], model.size, model.vocab_size
    positions = encoding.rows if isinstance(encoding, Learned) else int(config["n_positions"])
    tied = not isinstance(encoding, Sinusoidal)  # whose input is scaled
    params = gpt2_params(weights, size, vocab, positions, tied)
    if isinstance(encoding, Learned):
        table_PD = params["position"]["embedding"]
        params["position"]["embedding"] = _learned_rows(
            encoding, table_PD, "transformer.wpe.weight"
        )
        return params
    table_PD = params.pop("position")["embedding"]
    expected_PD = np.zeros_like(table_PD)
    if isinstance(encoding, Sinusoidal):
        waves = sinusoids(jnp.arange(positions)[None], size.hidden_size, encoding.base)[0]
        expected_PD = np.asarray(waves)
        scaled_VD, scale = params["embedding"], np.float32(math.sqrt(size.hidden_size))
        params["embedding"] = weights.take("lm_head.weight", (vocab, size.hidden_size))
        expected_VD = params["embedding"] * scale
        _check_same("transformer.wte.weight", scaled_VD, expected_VD, "from the output's embedding")
    _check_same("transformer.wpe.weight", table_PD, expected_PD, "from fixed positions")
    return params


def _learned_rows(encoding: Learned, table_PD: np.ndarray, name: str) -> np.ndarray:
    """Return the rows of an exported table that are parameters; the others are interpolated."""
    factor = encoding.interpolation or 1.0
    if factor != int(factor):
        raise UserError(
            f"the folder was exported with Learned.interpolation = {factor}, but only whole "
            "factors can be imported: export the run without this binding"
        )
    rows_PD = table_PD[:: int(factor)]
    expected_PD = np.asarray(encoding.table({"embedding": jnp.asarray(rows_PD)}))
    computed = f"by Learned.interpolation from {len(rows_PD)} rows"
    _check_same(name, table_PD, expected_PD, computed)
    return rows_PD


def _check_same(name: str, found: np.ndarray, expected: np.ndarray, computed: str) -> None:
    """Raise UserError if an array that is not a parameter in fire_lm has changed."""
    if not np.allclose(found, expected, rtol=1e-6, atol=1e-6):
        raise UserError(
            f"the tensor {name} has changed since the export, or has been rounded, but fire_lm "
            f"computes it {computed}: it cannot be imported"
        )


def _neox(model: Decoder, _: dict[str, Any], weights: Weights) -> dict[str, Any]:
    size, rope, width = model.size, model.encodings[0], model.size.hidden_size
    if not isinstance(rope, RoPE):
        raise UserError(
            f"the folder was exported with RoPE, but the configuration has {type(rope).__name__}: "
            "remove the bindings that change the model"
        )
    layers = [GPT_NEOX.layer(index, weights, size) for index in range(size.num_layers)]
    return {
        "embedding": weights.take_tied(
            "gpt_neox.embed_in.weight", "embed_out.weight", (model.vocab_size, width)
        ),
        "layers": reordered(stacked(layers), np.argsort(halves(rope))),
        "final_norm": take_norm(weights, "gpt_neox.final_layer_norm", width),
    }


def _custom(model: Decoder, _: dict[str, Any], weights: Weights) -> dict[str, Any]:
    size, turns = model.size, len(model.encodings)
    layers = []
    for index in range(size.num_layers):
        encoding, layer = model.encodings[index % turns], FIRE_LM.layer(index, weights, size)
        if not model.share_position and has_parameters(encoding):
            layer["position"] = _learned(encoding, weights, f"model.layers.{index}.position")
        layers.append(layer)
    by_turn = [stacked(layers[turn::turns]) for turn in range(turns)]
    params = {
        "embedding": weights.take_tied(
            "model.embedding.weight", "lm_head.weight", (model.vocab_size, size.hidden_size)
        ),
        "layers": by_turn[0]
        if turns == 1
        else {f"block_{turn}": layers for turn, layers in enumerate(by_turn)},
        "final_norm": take_norm(weights, "model.final_norm", size.hidden_size),
    }
    if model.share_position:
        for turn, encoding in enumerate(model.encodings):
            own = _learned(encoding, weights, f"model.positions.{turn}")
            if own:
                params[position_name(model.encodings.index(encoding))] = own
    return params


def _learned(encoding: PositionalEncoding, weights: Weights, name: str) -> dict[str, Any]:
    """Return the parameters of an encoding, whose arrays have names that begin with `name`."""
    encoding = encoding.causal_form
    if isinstance(encoding, Learned):
        name = f"{name}.embedding"
        table_PD = weights.take(name, (encoding.rows, encoding.hidden_size))
        return {"embedding": _learned_rows(encoding, table_PD, name)}
    shapes = jax.eval_shape(encoding.init, jax.random.key(0))
    if not isinstance(encoding, FIRE):
        return {part: weights.take(f"{name}.{part}", like.shape) for part, like in shapes.items()}
    dense = {}
    for index in range(len(shapes["mlp"])):
        inputs, outputs = shapes["mlp"][f"dense_{index}"]["kernel"].shape
        dense[f"dense_{index}"] = take_linear(
            weights, f"{name}.dense.{index}", (inputs,), (outputs,)
        )
    params: dict[str, Any] = {"mlp": dense}
    if "L_multiplier" in shapes:
        params["L_multiplier"] = _multiplier(weights.take(f"{name}.L", ()), encoding.initial_L)
    for part in ("c", "gamma"):
        if part in shapes:
            params[part] = weights.take(f"{name}.{part}", ())
    return params


def _multiplier(L: np.ndarray, init_L: float) -> np.ndarray:
    """Return a float32 m such that `m * init_L` is bit-identical to L.

    If there is no such m, the result is the float32 quotient `L / init_L`.
    """
    near = np.float32(L / np.float32(init_L))
    either = [np.nextafter(near, np.float32(side)) for side in (-np.inf, np.inf)]
    exact = [m for m in (near, *either) if m * np.float32(init_L) == L]
    return np.asarray(exact[0] if exact else near, np.float32)
