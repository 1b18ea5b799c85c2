"""Summed losses of rows of text, batch by batch, on the devices of a mesh.

Shapes: B batch, T tokens in a sequence, R rows of text, P bins of positions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fire_lm import sharding
from fire_lm.checkpoints import checkpoint_damage, restore_params
from fire_lm.console import Progress
from fire_lm.data import ScoringText
from fire_lm.errors import RunFailed
from fire_lm.evaluation.protocols import Windows
from fire_lm.models import Decoder, segment_positions, token_losses
from fire_lm.processes import failing_together


def read_params(workdir: str, step: int, model: Decoder, mesh: jax.sharding.Mesh) -> Any:
    """Return a checkpoint's parameters on `mesh`, after verifying the checkpoint.

    If one process of a job fails (the checkpoint may be removed under its reader), all do.
    """
    with failing_together():
        if jax.process_index() == 0 and (found := checkpoint_damage(workdir, step)):
            raise RunFailed(f"checkpoint {step} of {workdir} is damaged: {found}")
        return restore_params(workdir, step, abstract_params(model, mesh))[0]


def parameter_shapes(model: Decoder) -> Any:
    """Shapes and dtypes of the parameters."""
    tokens_BT = jax.ShapeDtypeStruct((1, 1), np.int32)
    return jax.eval_shape(model.init, jax.random.key(0), tokens_BT, tokens_BT)["params"]


def abstract_params(model: Decoder, mesh: jax.sharding.Mesh) -> Any:
    """Shapes, dtypes and layout of the parameters."""
    return sharding.with_shardings(parameter_shapes(model), mesh)


def score(
    model: Decoder,
    params: Any,
    text: ScoringText,
    laid: Windows,
    tokens_per_batch: int,
    mesh: jax.sharding.Mesh,
    name: str,
    bins: int = 1,
) -> np.ndarray:
    """Summed nats `[R, P]` of the rows `[R, longest]`, seen through `laid`, in `bins` equal parts
    of a window's positions.

    Where a batch is too much for the memory there is, it is tried again with half of it (not in a
    job of several processes, which would have to agree in the middle of a program).
    """
    rows = len(text.targets)
    arrays = [laid.of(text.targets), laid.of(text.weights) * laid.scored(rows)]
    arrays += [] if text.segment_ids is None else [laid.of(text.segment_ids)]
    largest = sequences_at_a_time(laid.length, tokens_per_batch, mesh)
    batch_size = min(largest, _fitting.get((laid.length, mesh), largest))
    while True:
        try:
            nll_BP = run_batches(model, params, arrays, laid.length, batch_size, mesh, name, bins)
            return nll_BP.reshape(rows, -1, bins).sum(axis=1)
        except jax.errors.JaxRuntimeError as error:
            smaller = sequences_at_a_time(laid.length, batch_size * laid.length // 2, mesh)
            alone = jax.process_count() == 1
            if "RESOURCE_EXHAUSTED" not in str(error) or smaller == batch_size or not alone:
                raise
            print(
                f"{batch_size} sequences of {laid.length} tokens are too many for the memory "
                f"there is: {smaller} at a time (length_sweep.tokens_per_batch)"
            )
            batch_size = _fitting[laid.length, mesh] = smaller


# How many sequences of a length fitted into a mesh's memory, where fewer than asked for did.
_fitting: dict[tuple[int, jax.sharding.Mesh], int] = {}


def run_batches(
    model: Decoder,
    params: Any,
    arrays: Sequence[np.ndarray],
    length: int,
    batch_size: int,
    mesh: jax.sharding.Mesh,
    name: str,
    bins: int = 1,
) -> np.ndarray:
    """Summed nats `[B, P]` of all sequences of `arrays`, which are what `scorer` takes."""
    batch_sharding = NamedSharding(mesh, sharding.BATCH)
    sequences = len(arrays[0])
    summed_nll = scorer(model, length, mesh, bins)
    results = []
    progress = Progress(sequences, quiet=jax.process_index() != 0)
    for batch in zip(*(batches(x, batch_size) for x in arrays), strict=True):
        placed = [
            jax.make_array_from_callback(x.shape, batch_sharding, x.__getitem__) for x in batch
        ]
        results.append(np.asarray(summed_nll(params, *placed), np.float64))
        done = min(len(results) * batch_size, sequences)
        progress.show(done, f"{name} at length {length}, {batch_size} at a time")
    progress.close()
    return np.concatenate(results)[:sequences]


def sequences_at_a_time(length: int, tokens_per_batch: int, mesh: jax.sharding.Mesh) -> int:
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    return ways * max(1, tokens_per_batch // (length * ways))


@functools.lru_cache(maxsize=64)
def scorer(
    model: Decoder, length: int, mesh: jax.sharding.Mesh, bins: int = 1
) -> jax.stages.Wrapped:
    """Jitted: summed nats `[B, P]` of targets, weights and, where there are any, segments `[B, T]`.

    A token's bin is that of its place in the sequence, in packed rows in its own document. One for
    all checkpoints of a run, so that it is compiled once.
    """
    # Nothing is kept for a backward pass, so a loop costs nothing, and is compiled for each length.
    model = model.clone(scan_layers=True)

    @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, PartitionSpec()))
    def summed_nll(
        params: Any, targets_BT: jax.Array, weight_BT: jax.Array, *segments: jax.Array
    ) -> jax.Array:
        pos_BT = model.resampling.evaluation_positions(length)
        nll_BT, _ = token_losses(model, params, targets_BT, pos_BT, *segments)
        nll_BT = nll_BT * weight_BT.astype(jnp.float32)
        if not segments or bins == 1:
            return nll_BT.reshape(len(nll_BT), bins, -1).sum(axis=2)
        bin_BT = segment_positions(jnp.arange(length)[None], segments[0]) // (length // bins)
        in_bin_BPT = bin_BT[:, None, :] == jnp.arange(bins)[None, :, None]
        return jnp.where(in_bin_BPT, nll_BT[:, None, :], 0.0).sum(axis=2)

    return summed_nll


def compile_scoring(
    model: Decoder,
    mesh: jax.sharding.Mesh,
    *,
    packed: bool,
    length: int,
    tokens_per_batch: int,
) -> jax.stages.Compiled:
    """Compile the program of `score` for the devices of `mesh`, which may be of another job."""
    model = model.clone(activation_sharding=NamedSharding(mesh, sharding.ACTIVATIONS))
    batch_size = sequences_at_a_time(length, tokens_per_batch, mesh)
    rows = sharding.batch_like((batch_size, length), mesh, packed=packed).values()
    return scorer(model, length, mesh).lower(abstract_params(model, mesh), *rows).compile()


def batches(sequences: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Batches of equal shape; the last is filled up with padding, which scores nothing.

    Every process goes through the same batches and places its part of each.
    """
    for start in range(0, len(sequences), batch_size):
        batch = sequences[start : start + batch_size]
        yield np.pad(batch, ((0, batch_size - len(batch)), (0, 0)))
