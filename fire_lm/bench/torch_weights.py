"""The conversion of our weights to the PyTorch peer's names and shapes; it needs no PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np


def torch_state(params: dict[str, Any]) -> dict[str, np.ndarray]:
    """Convert our decoder's parameter tree to a state dict of `torch_peer.TorchDecoder`.

    Unlike PyTorch's weights, our kernels have the input axis before the output axis, and separate
    axes for heads and layers.
    """
    layers = params["layers"]
    state = {
        "embedding.weight": params["embedding"],
        "final_norm.weight": params["final_norm"]["scale"],
        "final_norm.bias": params["final_norm"]["bias"],
    }
    for index in range(len(layers["attention_norm"]["scale"])):
        block = f"blocks.{index}"
        for norm in ("attention_norm", "mlp_norm"):
            state[f"{block}.{norm}.weight"] = layers[norm]["scale"][index]
            state[f"{block}.{norm}.bias"] = layers[norm]["bias"][index]
        qkv = [_linear(layers[name], index) for name in ("query", "key", "value")]
        linears = {
            "attention.to_qkv": tuple(map(np.concatenate, zip(*qkv, strict=True))),
            "attention.out": _linear(layers["attention_out"], index),
            "mlp.0": _linear(layers["mlp_in"], index),
            "mlp.2": _linear(layers["mlp_out"], index),
        }
        position = layers.get("position", {})
        for name, dense in position.get("mlp", {}).items():
            place = 2 * int(name.removeprefix("dense_"))  # PyTorch numbers the activations too.
            linears[f"attention.mlp.{place}"] = _linear(dense, index)
        for name, (weight, bias) in linears.items():
            state |= {f"{block}.{name}.weight": weight, f"{block}.{name}.bias": bias}
        for name in ("c", "L_multiplier"):
            if name in position:
                state[f"{block}.attention.{name}"] = position[name][index]
    return state


def _linear(layer: dict[str, Any], index: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight `[outputs, inputs]` and the bias `[outputs]` of layer `index`."""
    kernel, bias = np.asarray(layer["kernel"][index]), np.asarray(layer["bias"][index])
    return kernel.reshape(-1, bias.size).T, bias.reshape(-1)
