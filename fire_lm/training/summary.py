"""What a run is, before it runs: parameters by module, memory, tokens and FLOPs per step."""

from __future__ import annotations

import math
from typing import Any

import jax

from fire_lm.attention import choose_implementation
from fire_lm.metrics import FLOPS_CONVENTION, flops_per_token
from fire_lm.models import Decoder, encoding_names
from fire_lm.sharding import path_name
from fire_lm.training.optimizer import POSITION
from fire_lm.training.step import TrainState


def group_of(path: str) -> str:
    """The row of the parameter table that a parameter belongs to."""
    if POSITION.search(path):
        return "encoding"
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == "layers" else parts[0]


def count_parameters(params: Any) -> dict[str, int]:
    """Parameters by row of the table."""
    counts: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        group = group_of(path_name(path))
        counts[group] = counts.get(group, 0) + math.prod(leaf.shape)
    return counts


def model_flops_per_token(model: Decoder, params: Any, length: int) -> float:
    """`flops_per_token` of this model; the tied head counts, encoding and lookup do not."""
    counts = count_parameters(params)
    counted = sum(counts.values()) - counts.get("encoding", 0)  # the head is the embedding
    width = model.size.num_heads * model.size.head_dim
    return flops_per_token(counted, model.size.num_layers, width, length)


def bytes_per_device(state: Any) -> int:
    """Memory of the sharded arrays on one device, in bytes."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(state)
    )


def describe(
    model: Decoder,
    state: TrainState,
    mesh: Any,
    *,
    batch_size: int,
    train_length: int,
    train_steps: int,
    microbatches: int,
) -> str:
    """The table printed at the start of a run; `state` is ShapeDtypeStructs with shardings."""
    counts = count_parameters(state.params)
    encoding = counts.pop("encoding", 0)
    non_embedding = sum(counts.values()) - counts["embedding"]
    matrices = sum(
        math.prod(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.params["layers"])
        if path_name(path).endswith("kernel") and not POSITION.search(path_name(path))
    )
    width = max(len(name) for name in counts) + 2
    rows = [f"  {name:<{width}}{count:>13,}" for name, count in sorted(counts.items())]
    flops = model_flops_per_token(model, state.params, train_length)
    attention = choose_implementation(model.attention, train_length)
    devices = math.prod(mesh.shape.values())
    shared = ", shared by all layers" if model.share_position and encoding else ""
    return "\n".join(
        [
            "parameters",
            *rows,
            f"  non-embedding {non_embedding / 1e6:.1f}M ({matrices / 1e6:.1f}M in matrices)",
            f"  encoding {encoding_names(model)} {encoding:,}, listed apart{shared}",
            f"mesh {' x '.join(f'{axis}={size}' for axis, size in mesh.shape.items())}"
            f" = {devices} devices; state "
            f"{bytes_per_device(state) / 2**20:.1f} MiB a device",
            f"attention {attention} at length {train_length}; compute in {model.dtype.name}; "
            f"remat {model.remat}; layers {'in a loop' if model.scan_layers else 'written out'}",
            f"batch {batch_size} x {train_length} = {batch_size * train_length:,} tokens a step"
            + (f" in {microbatches} microbatches" if microbatches > 1 else "")
            + f", {train_steps:,} steps, {batch_size * train_length * train_steps:.4g} tokens",
            f"FLOPs per token {flops:.4g} ({FLOPS_CONVENTION})",
        ]
    )
