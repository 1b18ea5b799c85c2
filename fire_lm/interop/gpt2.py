"""The conversion of GPT-2 models of any size (Radford et al., 2019) to our decoder.

The two models have the same layers but different tokens. In fire_lm, token 0 is padding, begins
every text and is never scored; in GPT-2, token 0 is "!". All token ids of GPT-2 are therefore
increased by one, and row 0 of the embedding becomes a copy of the row of <|endoftext|>, the token
that precedes each document in the training of GPT-2.

Shapes: V vocabulary of GPT-2, D model, P positions.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fire_lm.errors import UserError
from fire_lm.interop.layer_forms import GPT2, stacked, take_norm
from fire_lm.interop.weights import Weights, read_config
from fire_lm.models.sizes import ModelSize

# The values that our decoder supports for fields of transformers' GPT2Config. For each field, the
# first value is the default in GPT2Config.
_ONLY: dict[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # two names of the same function
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
    "quantization_config": (None,),
}
_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
# Old versions of transformers saved the causal mask with the weights.
_MASKS = (".attn.bias", ".attn.masked_bias")


class Gpt2(NamedTuple):
    """A GPT-2 model in the form of our decoder.

    Attributes:
      vocab_size: The number of rows of the embedding, which is one more than in GPT-2.
      positions: The number of rows of the position table.
      params: The float32 parameters of the decoder with the encoding `Learned`.
      dropped: The largest dropout rate in the folder's configuration, or 0 if there is no dropout.
        Dropout is not imported.
    """

    size: ModelSize
    vocab_size: int
    positions: int
    params: dict[str, Any]
    dropped: float


def read_gpt2(folder: Path) -> Gpt2:
    """Read a GPT-2 model from a folder with `config.json` and safetensors files.

    Raises:
      UserError: A field requests a function that our decoder does not compute, or a tensor does not
        match the configuration.
    """
    config = read_config(folder)
    check_fields(config, folder)
    size, vocab, positions = gpt2_shape(config, folder)
    end = _whole(config, "eos_token_id", vocab - 1, folder, least=0)
    if end >= vocab:
        raise UserError(
            f"{folder / 'config.json'}: eos_token_id is {end}, but the largest id is {vocab - 1}"
        )
    weights = Weights(folder)
    params = gpt2_params(weights, size, vocab, positions)
    embedding_VD = params["embedding"]
    params["embedding"] = np.concatenate([embedding_VD[end : end + 1], embedding_VD])
    weights.check_all_taken(_MASKS)
    dropped = max(float(config.get(name, 0.0) or 0.0) for name in _DROPOUTS)
    return Gpt2(size, vocab + 1, positions, params, dropped)


def check_fields(config: dict[str, Any], folder: Path) -> None:
    """Raise UserError for the first field whose value our decoder does not support."""
    path = folder / "config.json"
    if config.get("model_type") != "gpt2":
        raise UserError(
            f"{path}: model_type is {config.get('model_type')!r}, but only GPT-2 ('gpt2') and "
            "folders written by `fire-lm export` can be imported"
        )
    for name, fitting in _ONLY.items():
        value = config.get(name, fitting[0])
        if value not in fitting:
            raise UserError(
                f"{path}: this model cannot be imported, because {name} is {value!r} and fire_lm "
                f"supports only {fitting[0]!r}"
            )


def gpt2_shape(config: dict[str, Any], folder: Path) -> tuple[ModelSize, int, int]:
    """Return the size, the vocabulary size and the number of positions of a GPT-2 configuration."""
    width, heads = (_whole(config, *named, folder) for named in (("n_embd", 768), ("n_head", 12)))
    if width % heads:
        raise UserError(
            f"{folder / 'config.json'}: n_embd = {width} is not divisible by n_head = {heads}"
        )
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


def gpt2_params(
    weights: Weights, size: ModelSize, vocab: int, positions: int, tied: bool = True
) -> dict[str, Any]:
    """Return our decoder's parameters, with GPT-2's token ids and its position table.

    If the model is not `tied`, its output matrix is not read.
    """
    # The prefix is absent from a bare GPT2Model.
    top = "" if "wpe.weight" in weights else "transformer."
    wte, table = f"{top}wte.weight", (vocab, size.hidden_size)
    form = dataclasses.replace(GPT2, prefix=f"{top}h.")
    layers = [form.layer(index, weights, size) for index in range(size.num_layers)]
    return {
        "embedding": (
            weights.take_tied(wte, "lm_head.weight", table) if tied else weights.take(wte, table)
        ),
        "position": {"embedding": weights.take(f"{top}wpe.weight", (positions, size.hidden_size))},
        "layers": stacked(layers),
        "final_norm": take_norm(weights, f"{top}ln_f", size.hidden_size),
    }


def _whole(config: dict[str, Any], name: str, default: int, folder: Path, least: int = 1) -> int:
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UserError(
            f"{folder / 'config.json'}: {name} is {value!r}, but it must be an integer of at least "
            f"{least}"
        )
    return value
