"""Ahead-of-time compilation of the training step, for the devices of this job or another job."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from fire_lm import sharding
from fire_lm.models import Decoder, parameter_shapes
from fire_lm.training.spikes import Spikes
from fire_lm.training.step import TrainState, fresh_state, train_step

# Options of XLA for TPUs with which gathers of parameters overlap products.
_OVERLAP_GATHERS: dict[str, str | bool] = dict.fromkeys(
    (
        "xla_enable_async_all_gather",
        "xla_tpu_enable_async_collective_fusion",
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather",
        "xla_tpu_enable_async_collective_fusion_multiple_steps",
        "xla_tpu_overlap_compute_collective_tc",
    ),
    True,
)

# A loop over layers copies all activations that it keeps for the backward pass, which takes a CPU a
# seventh of the time of a step of `size_tiny`. Each unrolled layer takes about a second to compile.
_UNROLLED_ON_CPU = 4


def abstract_state(model: Decoder, optimizer: optax.GradientTransformation) -> TrainState:
    """Return the shapes and dtypes of the training state, without allocating arrays."""
    return jax.eval_shape(
        functools.partial(fresh_state, optimizer=optimizer), parameter_shapes(model)
    )


def on_mesh(model: Decoder, mesh: Mesh) -> Decoder:
    """Return the model with its activations sharded over `mesh`."""
    return model.clone(activation_sharding=sharding.of_activations(mesh))


def loops_over_layers(model: Decoder, platform: str) -> bool:
    """Return whether the training step for devices of `platform` ("cpu", ...) loops over layers.

    The loop of a few layers is unrolled on CPUs; `model.scan_layers` decides in all other cases.
    """
    few = model.size.num_layers <= _UNROLLED_ON_CPU and model.remat == "none"
    return model.scan_layers and not (platform == "cpu" and few)


def compile_training(
    model: Decoder,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    packed: bool,
    batch_size: int,
    row_length: int,
    z_loss: float,
    microbatches: int,
    spikes: Spikes,
    unshifted: bool = False,
    overlap_gathers: bool = False,
) -> jax.stages.Compiled:
    """Compile the training step for the devices of `mesh`.

    The compiled step takes the state, a batch, the seed and, if `spikes` allows skipped updates, a
    limit for the loss. `sharding.batch_like` describes `packed` and `unshifted`, and `Pretraining`
    the other settings.
    """
    like = sharding.with_shardings(abstract_state(model, optimizer), mesh)
    platform = mesh.devices.flat[0].platform
    looped = loops_over_layers(model, platform)
    step = functools.partial(
        train_step,
        model=on_mesh(model, mesh).clone(scan_layers=looped),
        optimizer=optimizer,
        z_loss=z_loss,
        microbatches=microbatches,
    )
    scalar = functools.partial(jax.ShapeDtypeStruct, (), sharding=like.step.sharding)
    batch = sharding.batch_like((batch_size, row_length), mesh, packed=packed, unshifted=unshifted)
    options = _OVERLAP_GATHERS if overlap_gathers and platform == "tpu" else None
    guard = spikes.guard(scalar(dtype=jnp.float32))
    return compile_step(step, like, batch, scalar(dtype=jnp.uint32), *guard, options=options)


def compile_step(
    step: Callable[..., Any],
    like: TrainState,
    batch: dict[str, jax.ShapeDtypeStruct],
    *scalars: jax.ShapeDtypeStruct,
    options: dict[str, str | bool] | None = None,
) -> jax.stages.Compiled:
    """Compile `step` for the shapes and shardings of `like`, `batch` and `scalars`.

    `options` are options of XLA. The compiled step donates the buffers of the state that it
    receives.
    """
    state_shardings = jax.tree.map(lambda leaf: leaf.sharding, like)
    jitted = jax.jit(step, out_shardings=(state_shardings, None), donate_argnums=0)
    return jitted.lower(like, batch, *scalars).compile(compiler_options=options)
