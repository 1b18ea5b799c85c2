"""The conversion of our weights to the PyTorch peer's names and shapes; it needs no PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np

from fire_lm.interop.layer_forms import TORCH_PEER, layer_of, linear_arrays, norm_arrays


def torch_state(params: dict[str, Any]) -> dict[str, np.ndarray]:
    """Convert our decoder's parameter tree to a state dict of `torch_peer.TorchDecoder`.

    Unlike PyTorch's weights, our kernels have the input axis before the output axis, and separate
    axes for heads and layers.
    """
    layers = params["layers"]
    state = {
        "embedding.weight": params["embedding"],
        **norm_arrays("final_norm", params["final_norm"]),
    }
    for index in range(len(layers["attention_norm"]["scale"])):
        layer, attention = layer_of(layers, index), f"blocks.{index}.attention"
        state |= TORCH_PEER.arrays(index, layer)
        position = layer.get("position", {})
        for name, dense in position.get("mlp", {}).items():
            place = 2 * int(name.removeprefix("dense_"))  # PyTorch numbers the activations too.
            state |= linear_arrays(f"{attention}.mlp.{place}", dense)
        for name in ("c", "L_multiplier"):
            if name in position:
                state[f"{attention}.{name}"] = position[name]
    return state
