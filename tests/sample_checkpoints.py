"""Small training states, saved and restored."""

import contextlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fire_lm.checkpoints import Checkpointing, Checkpoints
from fire_lm.training.step import TrainState

POSITION = b"\x00where\xff" * 100
INFO = {"tokens": 12_345, "documents_skipped": 2}


def state(devices: int = 1, scale: float = 1.0) -> TrainState:
    """Return a small state of `scale`, split over the devices along dimensions of size 4."""
    mesh = jax.make_mesh((devices,), ("fsdp",), (AxisType.Auto,), devices=jax.devices()[:devices])

    def array(*shape: int) -> jax.Array:
        values = scale * np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
        spec = PartitionSpec(*("fsdp" if size == 4 else None for size in shape))
        return jax.device_put(values, NamedSharding(mesh, spec))

    params = {
        "embedding": array(4, 3),
        "layers": {"query": {"kernel": array(2, 4)}, "position": {"c": array(2), "L": array(2)}},
    }
    moments = jax.tree.map(lambda x: x / 8, params)
    return TrainState(jax.device_put(jnp.int32(7), array().sharding), params, (moments, ()))


def saved(folder: Path, *steps: int, make: Any = state, **policy: int) -> Path:
    """Save `make(scale=step)` from four devices at each step; return the run directory."""
    with contextlib.closing(Checkpoints(folder, Checkpointing(**policy))) as writer:
        for step in steps:
            writer.save(step, make(4, scale=step), POSITION, INFO)
    return folder


def restored(folder: Path, step: int, like: Any) -> tuple[Any, bytes, dict[str, Any]]:
    with contextlib.closing(Checkpoints(folder, Checkpointing())) as reader:
        found = reader.restore(step, like)
        assert found is not None
        return found


def recovered(folder: Path) -> int:
    with contextlib.closing(Checkpoints(folder, Checkpointing())) as writer:
        return writer.recover()


def assert_equal(found: Any, expected: Any) -> None:
    def compare(x: jax.Array, y: jax.Array) -> None:
        assert (x.dtype, x.sharding) == (y.dtype, y.sharding)
        np.testing.assert_array_equal(x, y)

    jax.tree.map(compare, found, expected)


def one_array(devices: int = 1, scale: float = 1.0) -> dict[str, Any]:
    """Return a state with one array.

    With several, Orbax's abandoned reads of a damaged checkpoint would complain during later tests.
    """
    return {"params": {"embedding": state(devices, scale).params["embedding"]}}
