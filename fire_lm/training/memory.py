"""The memory of a training step, checked before the step is compiled and before it runs."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fire_lm import sharding
from fire_lm.attention import choose_implementation
from fire_lm.hardware.memory import check_fits, free_memory, new_bytes
from fire_lm.training.compile import on_mesh
from fire_lm.training.pretraining import Pretraining
from fire_lm.training.step import summed_loss
from fire_lm.training.summary import bytes_per_device

# The compiler needs at least this share of the arrays that the backward pass reads, because it
# computes some of them again, and usually at most the second one. (Programs compiled for a CPU
# needed 1.2 to 2.4 times these arrays without remat, and many times with it.)
_LEAST_SHARE, _MOST_SHARE = 0.5, 2.0
# The largest share of the free memory that a suggested setting may need.
_SURE_SHARE = 0.8


def check_before_compiling(run: Pretraining, mesh: Mesh, row_length: int) -> None:
    """Refuse a step that certainly does not fit, without a compilation, which takes minutes.

    Only a CPU is checked: compilers for accelerators fit a step into the memory where they can.

    The estimate is that of the state and its gradients, and of half of the arrays that the backward
    pass reads. If it fits, the step may still be too large.

    Raises:
      UserError: There is not enough memory.
    """
    free = free_memory(list(mesh.devices.flat))
    if mesh.devices.flat[0].platform != "cpu" or free is None:
        return
    if generous_bytes(run, mesh, row_length) < free.bytes:
        return  # without the seconds that `kept_bytes` takes
    state = bytes_per_device(sharding.with_shardings(run.abstract_state(), mesh))
    fixed, kept = state + gradient_bytes(run, mesh), kept_bytes(run, mesh, row_length)
    _check(run, mesh, fixed, (_LEAST_SHARE * kept, _MOST_SHARE * kept), row_length)


def check_compiled(program: Any, run: Pretraining, mesh: Mesh, row_length: int) -> None:
    """Refuse a compiled step that does not fit; its state must exist already.

    Raises:
      UserError: There is not enough memory.
    """
    fixed = min(new_bytes(program), gradient_bytes(run, mesh))
    of_rows = new_bytes(program) - fixed
    _check(run, mesh, fixed, (of_rows, of_rows), row_length)


def generous_bytes(run: Pretraining, mesh: Mesh, row_length: int) -> int:
    """Return more bytes than a step needs on a device, from the sizes of the model alone."""
    size, ways = run.model.size, mesh.shape["data"] * mesh.shape["fsdp"]
    ways *= sharding.slices_of_rows(mesh)
    heads = size.num_heads * (size.head_dim + row_length)
    numbers = 4 * size.hidden_size + 4 * heads + 4 * size.mlp_size
    of_token = 4 * 4 * (size.num_layers * numbers + run.model.vocab_size)
    tokens = row_length * run.rows_per_step(row_length) // (run.microbatches * ways)
    state = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(run.abstract_state()))
    return of_token * tokens + 4 * state


def kept_bytes(run: Pretraining, mesh: Mesh, row_length: int) -> int:
    """Return the bytes on a device of what the forward pass of a microbatch keeps for the backward.

    The arrays are those that JAX keeps; the compiler may change this.
    """
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    rows = run.rows_per_step(row_length) // (run.microbatches * ways)
    model = on_mesh(run.model, mesh).clone(activation_sharding=None)
    row_BT = jax.ShapeDtypeStruct((rows, row_length), jnp.int32)
    rng = (
        jax.eval_shape(lambda: jax.random.key(0))
        if model.dropout or model.attention_dropout
        else None
    )

    def kept(params: Any, row_BT: Any, rng: Any) -> Any:
        pos_BT = model.resampling.evaluation_positions(row_length)
        loss = functools.partial(
            summed_loss, model=model, targets_BT=row_BT, weight_BT=row_BT, pos_BT=pos_BT,
            z_loss=run.z_loss, dropout_rng=rng,
        )  # fmt: skip
        return jax.vjp(loss, params)[1]

    params = run.abstract_state().params
    arrays = jax.tree.leaves(jax.eval_shape(kept, params, row_BT, rng))
    total = sum(x.size * x.dtype.itemsize for x in arrays)
    return total // (mesh.shape["tensor"] * sharding.slices_of_rows(mesh))


def gradient_bytes(run: Pretraining, mesh: Mesh) -> int:
    """Return the bytes of the gradients on a device, and of their sum over microbatches."""
    size = bytes_per_device(sharding.with_shardings(run.abstract_state().params, mesh))
    return size if run.microbatches == 1 else 2 * size


def _check(
    run: Pretraining, mesh: Mesh, fixed: float, of_rows: tuple[float, float], row_length: int
) -> None:
    """Raise UserError if a step needs more bytes on a device than there are.

    Args:
      fixed: The bytes of arrays whose size does not depend on the rows of a microbatch.
      of_rows: The fewest and the most bytes of all other arrays that do not exist yet.
      row_length: The number of tokens in a row.
    """
    if (free := free_memory(list(mesh.devices.flat))) is not None:
        rows_at_once = run.rows_per_step(row_length) // run.microbatches
        what = f"a training step of {rows_at_once} x {row_length} tokens at a time"
        least, most = of_rows
        remedy = _remedy(run, mesh, fixed, most, free.bytes)
        check_fits(fixed + least, free, what, remedy, at_least=least < most)


def _remedy(run: Pretraining, mesh: Mesh, fixed: float, of_rows: float, free: int) -> str:
    """Return the smallest number of microbatches that should fit, or what else to change."""
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    fewest_rows = run.rows_per_step(run.lengths.longest)
    for parts in range(run.microbatches + 1, fewest_rows // ways + 1):
        fits = 2 * fixed + of_rows * run.microbatches / parts <= _SURE_SHARE * free
        if fewest_rows % (parts * ways) == 0 and fits:
            return (
                f"it should fit with --gin.{run.configurable}.microbatches={parts}; or lower "
                "BATCH_SIZE or TRAIN_LENGTH"
            )
    more = ["lower TRAIN_LENGTH or BATCH_SIZE"]
    if run.model.remat != "full":
        more.append("set --gin.build_decoder.remat=full")
    if choose_implementation(run.model.attention, run.lengths.longest) == "dense":
        more.append("set --gin.build_decoder.attention=blockwise")
    return f"one row at a time does not fit either: {', or '.join(more)}"
