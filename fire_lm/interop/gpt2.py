"""GPT-2 of any size as parameters of our decoder, which has its layers (Radford et al., 2019).

Token 0 is padding and the beginning of a text here, and never scored; in GPT-2 it is "!". So all
ids move up by one: row 0 becomes that of <|endoftext|>, which is what GPT-2 saw before a document.

Shapes: V vocabulary of GPT-2, D model, F mlp, P positions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fire_lm.errors import UserError
from fire_lm.interop.stacked_layers import (
    Linear,
    layer_params,
    norm_params,
    stacked,
    take_linear,
    take_norm,
)
from fire_lm.interop.weights import Weights, read_config
from fire_lm.models.sizes import ModelSize

# What our decoder computes, by field of transformers' GPT2Config, whose default comes first.
_ONLY: dict[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # two names of one function
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
    "quantization_config": (None,),
}
_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
# The causal mask that old versions of transformers have saved.
_MASKS = {".attn.bias": "a mask", ".attn.masked_bias": "a mask"}


class Gpt2(NamedTuple):
    """Attributes:
    size: of the decoder.
    vocab_size: rows of the embedding, one more than GPT-2 has.
    positions: rows of the table of positions.
    params: of the decoder with the encoding `Learned`, float32.
    dropped: a dropout that the model was trained with and our decoder has not, else 0.
    """

    size: ModelSize
    vocab_size: int
    positions: int
    params: dict[str, Any]
    dropped: float


def read_gpt2(folder: Path) -> Gpt2:
    """A folder of GPT-2, `config.json` and `model.safetensors`.

    Raises:
      UserError: it names the field of another function than our decoder's, or the tensor that does
        not fit the configuration.
    """
    config = read_config(folder)
    check_fields(config, folder)
    size, vocab, positions = gpt2_shape(config, folder)
    end = _whole(config, "eos_token_id", vocab - 1, folder)
    if not 0 <= end < vocab:
        raise UserError(f"{folder / 'config.json'}: eos_token_id is {end}, of {vocab} tokens")
    weights = Weights(folder)
    params = gpt2_params(weights, size, vocab, positions)
    embedding_VD = params["embedding"]
    params["embedding"] = np.concatenate([embedding_VD[end : end + 1], embedding_VD])
    weights.check_all_taken(_MASKS)
    dropped = max(float(config.get(name, 0.0) or 0.0) for name in _DROPOUTS)
    return Gpt2(size, vocab + 1, positions, params, dropped)


def check_fields(config: dict[str, Any], folder: Path) -> None:
    """Raises UserError for the first field whose value our decoder does not have."""
    path = folder / "config.json"
    if config.get("model_type") != "gpt2":
        raise UserError(
            f"{path}: model_type is {config.get('model_type')!r}: GPT-2 ('gpt2') and folders of "
            "`fire-lm export` can be imported"
        )
    for name, fitting in _ONLY.items():
        value = config.get(name, fitting[0])
        if value not in fitting:
            raise UserError(
                f"{path}: {name} is {value!r}, but our decoder computes {fitting[0]!r} alone: this "
                "model cannot be imported"
            )


def gpt2_shape(config: dict[str, Any], folder: Path) -> tuple[ModelSize, int, int]:
    """The size, tokens and positions that a configuration of GPT-2 names."""
    width, heads = (_whole(config, *named, folder) for named in (("n_embd", 768), ("n_head", 12)))
    if width % heads:
        raise UserError(f"{folder / 'config.json'}: n_embd {width} is not divisible by n_head")
    size = ModelSize(
        num_layers=_whole(config, "n_layer", 12, folder),
        hidden_size=width,
        num_heads=heads,
        head_dim=width // heads,
        mlp_size=_whole(config, "n_inner", 4 * width, folder),
        init_std=float(config.get("initializer_range", 0.02)),
    )
    vocab = _whole(config, "vocab_size", 50257, folder)
    return size, vocab, _whole(config, "n_positions", 1024, folder)


def gpt2_params(weights: Weights, size: ModelSize, vocab: int, positions: int) -> dict[str, Any]:
    """Parameters with GPT-2's own ids, and its table of positions under `position`."""
    top = "transformer." if "transformer.wte.weight" in weights else ""  # GPT2Model alone: none
    width, mlp = size.hidden_size, size.mlp_size
    layers = []
    for index in range(size.num_layers):
        name = f"{top}h.{index}"
        weight, bias = take_linear(weights, f"{name}.attn.c_attn", width, 3 * width)
        thirds = zip(np.split(weight, 3, axis=1), np.split(bias, 3), strict=True)
        query, key, value = (Linear(*third) for third in thirds)
        linears = {
            "query": query,
            "key": key,
            "value": value,
            "attention_out": take_linear(weights, f"{name}.attn.c_proj", width, width),
            "mlp_in": take_linear(weights, f"{name}.mlp.c_fc", width, mlp),
            "mlp_out": take_linear(weights, f"{name}.mlp.c_proj", mlp, width),
        }
        norms = {
            "attention_norm": take_norm(weights, f"{name}.ln_1", width),
            "mlp_norm": take_norm(weights, f"{name}.ln_2", width),
        }
        layers.append(layer_params(size, linears, norms))
    return {
        "embedding": weights.take(f"{top}wte.weight", (vocab, width)),
        "position": {"embedding": weights.take(f"{top}wpe.weight", (positions, width))},
        "layers": stacked(layers),
        "final_norm": norm_params(take_norm(weights, f"{top}ln_f", width)),
    }


def _whole(config: dict[str, Any], name: str, default: int, folder: Path) -> int:
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{folder / 'config.json'}: {name} is {value!r}, not a positive number")
    return value
