"""Parameter counts by module, FLOPs per token, and memory per device."""

from __future__ import annotations

import math
from typing import Any

import jax

from fire_lm.hardware.flops import flops_per_token
from fire_lm.models import Decoder
from fire_lm.sharding import POSITION, leaves_by_path


def count_parameters(params: Any) -> dict[str, int]:
    """Return the number of parameters in each row of the parameter table."""
    counts: dict[str, int] = {}
    for path, leaf in leaves_by_path(params).items():
        parts = path.split("/")
        group = "/".join(parts[:2]) if parts[0] == "layers" else parts[0]
        if POSITION.search(path):
            group = "encoding"
        counts[group] = counts.get(group, 0) + math.prod(leaf.shape)
    return counts


def model_flops_per_token(model: Decoder, params: Any, length: int) -> float:
    """Return the FLOPs per token of training this model on rows of `length` tokens.

    The count includes the tied head, but neither the encoding nor the lookup of embeddings.
    """
    counts = count_parameters(params)
    counted = sum(counts.values()) - counts.get("encoding", 0)  # the head is the embedding
    head_dim = model.size.head_dim
    width = model.size.num_heads * head_dim
    keys = [turn.mixer.keys_per_token(turn.mask, length, head_dim) for turn in model.turns]
    return flops_per_token(counted, model.size.num_layers, width, sum(keys) / len(keys))


def bytes_per_device(state: Any) -> int:
    """Return the memory of the sharded arrays on one device, in bytes."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(state)
    )
