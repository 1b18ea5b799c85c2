"""How other libraries name and arrange the arrays of a decoder layer, to write and to read them.

Shapes: D model, F mlp, N heads, H head dim, I inputs, O outputs, L layers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fire_lm.interop.weights import Weights
from fire_lm.models.sizes import ModelSize

Arrays = dict[str, np.ndarray]
Params = Mapping[str, Any]

_QKV = ("query", "key", "value")


@dataclasses.dataclass(frozen=True)
class LayerForm:
    """The form in which a class stores the arrays of a decoder layer.

    Attributes:
      prefix: The beginning of the names of a layer's arrays, which its number follows.
      names: The class's names of our linear layers and norms. `query_key_value` is a single matrix
        in place of `query`, `key` and `value`.
      transposed: Whether weights are stored as `[O, I]`, as in torch's `nn.Linear`.
      qkv_axis: The axis of the queries, keys and values in the kernel of `query_key_value`:
        1 in `[D, 3, N, H]`, and 2 in `[D, N, 3, H]`.
    """

    prefix: str
    names: Mapping[str, str]
    transposed: bool = True
    qkv_axis: int = 1

    def arrays(self, index: int, layer: Params) -> Arrays:
        """Return the arrays of the layer `index`, counted from 0, under the class's names."""
        if "query_key_value" in self.names:
            parts = {
                "kernel": np.stack([layer[part]["kernel"] for part in _QKV], self.qkv_axis),
                "bias": np.stack([layer[part]["bias"] for part in _QKV], self.qkv_axis - 1),
            }
            layer = {**layer, "query_key_value": parts}
        found: Arrays = {}
        for part, name in self.names.items():
            place = f"{self.prefix}{index}.{name}"
            if part.endswith("norm"):
                found |= norm_arrays(place, layer[part])
            else:
                found |= linear_arrays(place, layer[part], self.transposed)
        return found

    def layer(self, index: int, weights: Weights, size: ModelSize) -> dict[str, Any]:
        """Return the parameters of one layer of our decoder, without those of its encoding.

        Raises:
          UserError: An array is missing or has another shape.
        """
        width, mlp, heads = (size.hidden_size,), (size.mlp_size,), (size.num_heads, size.head_dim)
        three = np.insert(heads, self.qkv_axis - 1, 3)
        shapes: dict[str, tuple[Sequence[int], Sequence[int]]] = {
            **dict.fromkeys(_QKV, (width, heads)),
            "query_key_value": (width, three.tolist()),
            "attention_out": (heads, width),
            "mlp_in": (width, mlp),
            "mlp_out": (mlp, width),
        }
        found: dict[str, Any] = {}
        for part, name in self.names.items():
            place = f"{self.prefix}{index}.{name}"
            if part.endswith("norm"):
                found[part] = take_norm(weights, place, size.hidden_size)
            else:
                found[part] = take_linear(weights, place, *shapes[part], self.transposed)
        if (joint := found.pop("query_key_value", None)) is not None:
            for third, part in enumerate(_QKV):
                found[part] = {
                    "kernel": joint["kernel"].take(third, self.qkv_axis),
                    "bias": joint["bias"].take(third, self.qkv_axis - 1),
                }
        return found


_PARTS = ("attention_out", "mlp_in", "mlp_out", "attention_norm", "mlp_norm")


def _joint(*names: str) -> Mapping[str, str]:
    return dict(zip(("query_key_value", *_PARTS), names, strict=True))


GPT2 = LayerForm(
    "transformer.h.",
    _joint("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "ln_1", "ln_2"),
    transposed=False,
)
GPT_NEOX = LayerForm(
    "gpt_neox.layers.",
    _joint(
        *("attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        *("input_layernorm", "post_attention_layernorm"),
    ),
    qkv_axis=2,
)
FIRE_LM = LayerForm("model.layers.", {part: part for part in (*_QKV, *_PARTS)})
TORCH_PEER = LayerForm(
    "blocks.",
    _joint("attention.to_qkv", "attention.out", "mlp.0", "mlp.2", "attention_norm", "mlp_norm"),
)


def linear_arrays(name: str, linear: Params, transposed: bool = True) -> Arrays:
    """Return the weight `[O, I]`, or `[I, O]` if it is not `transposed`, and the bias `[O]`."""
    kernel, bias = (np.asarray(linear[part]) for part in ("kernel", "bias"))
    weight_IO = kernel.reshape(-1, bias.size)
    # safetensors writes views in another order without a warning.
    weight = np.ascontiguousarray(weight_IO.T if transposed else weight_IO)
    return {f"{name}.weight": weight, f"{name}.bias": bias.reshape(-1)}


def norm_arrays(name: str, norm: Params) -> Arrays:
    return {f"{name}.weight": np.asarray(norm["scale"]), f"{name}.bias": np.asarray(norm["bias"])}


def take_linear(
    weights: Weights,
    name: str,
    inputs: Sequence[int],
    outputs: Sequence[int],
    transposed: bool = True,
) -> dict[str, np.ndarray]:
    """Read the kernel `[*inputs, *outputs]` and the bias `[*outputs]` of a linear layer.

    Raises:
      UserError: An array is missing or has another shape.
    """
    shape = (math.prod(inputs), math.prod(outputs))
    weight = weights.take(f"{name}.weight", shape[::-1] if transposed else shape)
    kernel_IO = np.ascontiguousarray(weight.T if transposed else weight)
    return {
        "kernel": kernel_IO.reshape(*inputs, *outputs),
        "bias": weights.take(f"{name}.bias", shape[1:]).reshape(outputs),
    }


def take_norm(weights: Weights, name: str, width: int) -> dict[str, np.ndarray]:
    return {
        part: weights.take(f"{name}.{theirs}", (width,))
        for part, theirs in (("scale", "weight"), ("bias", "bias"))
    }


def layer_of(layers: Any, index: int) -> Any:
    """Return the parameters of one layer from arrays `[L, ...]`."""
    return jax.tree.map(lambda leaf: np.asarray(leaf[index]), layers)


def stacked(layers: Sequence[Any]) -> Any:
    """Stack the arrays of all layers, each `[...]`, into arrays `[L, ...]`."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *layers)


def reordered(layers: Params, order_H: np.ndarray) -> dict[str, Any]:
    """Return layers whose queries and keys have the dims of each head in another order."""
    both = {part: layers[part] for part in ("query", "key")}
    return {**layers, **jax.tree.map(lambda leaf: np.asarray(leaf)[..., order_H], both)}
