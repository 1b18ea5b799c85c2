"""The assembly of our decoder's parameters from the matrices and norms of individual layers.

Shapes: D model, F mlp, N heads, H head dim, L layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fire_lm.interop.weights import Weights
from fire_lm.models.sizes import ModelSize


class Linear(NamedTuple):
    """The arrays of a linear layer `x @ weight_IO + bias_O`, with I inputs and O outputs."""

    weight_IO: np.ndarray
    bias_O: np.ndarray


class Norm(NamedTuple):
    scale_D: np.ndarray
    bias_D: np.ndarray


def take_linear(
    weights: Weights, name: str, inputs: int, outputs: int, transposed: bool = False
) -> Linear:
    """Read the weight and the bias of the linear layer `name`.

    Args:
      weights: The arrays of the folder.
      name: The name of the layer, which precedes `.weight` and `.bias`.
      inputs: The number of inputs.
      outputs: The number of outputs.
      transposed: Whether the weight is stored as `[outputs, inputs]`, as in torch's `nn.Linear`.

    Raises:
      UserError: An array is missing or has another shape.
    """
    shape = (outputs, inputs) if transposed else (inputs, outputs)
    weight = weights.take(f"{name}.weight", shape)
    return Linear(weight.T if transposed else weight, weights.take(f"{name}.bias", (outputs,)))


def take_norm(weights: Weights, name: str, width: int) -> Norm:
    return Norm(weights.take(f"{name}.weight", (width,)), weights.take(f"{name}.bias", (width,)))


def norm_params(norm: Norm) -> dict[str, np.ndarray]:
    return {"scale": norm.scale_D, "bias": norm.bias_D}


def layer_params(
    size: ModelSize, linears: Mapping[str, Linear], norms: Mapping[str, Norm]
) -> dict[str, Any]:
    """Return the parameters of a decoder layer.

    Args:
      size: The size of the decoder.
      linears: The linear layers `query`, `key`, `value`, `attention_out`, `mlp_in` and `mlp_out`.
      norms: The norms `attention_norm` and `mlp_norm`.
    """
    heads = (size.num_heads, size.head_dim)
    stacked: dict[str, Any] = {name: norm_params(norm) for name, norm in norms.items()}
    for name, (weight_IO, bias_O) in linears.items():
        inputs, outputs = weight_IO.shape[:1], bias_O.shape
        if name in ("query", "key", "value"):
            outputs = heads
        elif name == "attention_out":
            inputs = heads
        stacked[name] = {
            "kernel": np.ascontiguousarray(weight_IO).reshape(*inputs, *outputs),
            "bias": bias_O.reshape(outputs),
        }
    return stacked


def stacked(layers: Sequence[Any]) -> Any:
    """Stack the arrays of all layers, each `[...]`, into arrays `[L, ...]`."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *layers)
