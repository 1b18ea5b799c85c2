"""Summed losses of rows of text, computed batch by batch on the devices of a mesh.

Shape suffixes: B = batch, T = tokens in a sequence, R = rows of text, P = bins of positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
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
from fire_lm.hardware.memory import TooLarge, check_program
from fire_lm.measures.padded_rows import padded_logits
from fire_lm.measures.protocols import Windows
from fire_lm.models import (
    Decoder,
    check_token_ids,
    depends_on_length,
    padded_length,
    parameter_shapes,
    segment_positions,
    token_losses,
)
from fire_lm.models.loss import target_losses
from fire_lm.processes import by_first, failing_together


def read_params(
    workdir: str,
    step: int,
    model: Decoder,
    mesh: jax.sharding.Mesh,
    layout: Callable[[Any, jax.sharding.Mesh], Any] = sharding.with_shardings,
) -> Any:
    """Verify a checkpoint and return its parameters, sharded over `mesh` as `layout` specifies.

    If one process of a job fails, for example because the checkpoint is removed during the restore,
    all processes raise an error.

    Raises:
      RunFailed: The checkpoint is damaged or cannot be read.
    """

    def verify() -> None:
        if damage := checkpoint_damage(workdir, step):
            raise RunFailed(
                f"checkpoint {step} of {workdir} is damaged: {damage}\nuse another checkpoint"
            )

    by_first(verify)  # before the restore, in which the processes wait for each other
    with failing_together():
        return restore_params(workdir, step, layout(parameter_shapes(model), mesh))[0]


def abstract_params(model: Decoder, mesh: jax.sharding.Mesh) -> Any:
    """Return the shapes, data types and shardings of a model's parameters."""
    return sharding.with_shardings(parameter_shapes(model), mesh)


def row_losses(
    model: Decoder,
    params: Any,
    text: ScoringText,
    laid: Windows,
    tokens_per_batch: int,
    mesh: jax.sharding.Mesh,
    name: str,
    bins: int = 1,
) -> np.ndarray:
    """Return the loss of each row of text in nats, summed by position bin, `[R, P]`.

    Each row is scored in the windows `laid`; windows without a scored token are not computed. The
    positions of a window are divided into P = `bins` equal bins, and each bin is summed over all
    windows of the row.

    Raises:
      UserError: A token has no row in the model's embedding.
    """
    check_token_ids(text.targets, model.vocab_size, "the text to score")
    rows, longest = text.targets.shape
    arrays = [laid.of(text.targets), laid.of(text.weights) * laid.scored(rows)]
    arrays += [] if text.segment_ids is None else [laid.of(text.segment_ids)]
    scored_B = arrays[1].any(axis=1)
    if depends_on_length(model, laid.length):
        tokens_B = np.tile(laid.tokens(longest), rows)
    else:  # what follows the last scored token has no effect
        last_B = laid.length - np.argmax(arrays[1][:, ::-1] != 0, axis=1)
        padded = [padded_length(last, _SHORTEST) for last in last_B.tolist()]
        slices = sharding.slices_of_rows(mesh)
        tokens_B = np.minimum([-(-tokens // slices) * slices for tokens in padded], laid.length)
    nll_BP = np.zeros((len(scored_B), bins))
    for tokens in np.unique(tokens_B[scored_B]).tolist():
        chosen_B = scored_B & (tokens_B == tokens)
        chosen = [x_BT[chosen_B] for x_BT in arrays]
        # The arrays have `length` columns, so batches of very short windows would be too large.
        wide = max(tokens, min(laid.length, _SHORTEST))
        batch_size = sequences_at_a_time(wide, tokens_per_batch, mesh)
        program = scorer(model, laid.length, mesh, bins, tokens)
        nll_BP[chosen_B] = run_fitting(program, params, chosen, batch_size, mesh, name, tokens)
    return nll_BP.reshape(rows, -1, bins).sum(axis=1)


# The minimum number of tokens of a window that are read.
_SHORTEST = 512


def run_fitting(
    program: jax.stages.Wrapped,
    params: Any,
    arrays: Sequence[np.ndarray],
    largest: int,
    mesh: jax.sharding.Mesh,
    name: str,
    tokens: int,
) -> np.ndarray:
    """Return the results of `batch_results` for all sequences, `[B, ...]`, and show the progress.

    If a batch does not fit in memory, a batch of half the size is tried. In a job of several
    processes, the error is raised instead, because the processes would have to agree on a new size
    in the middle of a program.

    Args:
      program, params, arrays, mesh: See `batch_results`.
      largest: The maximum number of sequences in a batch.
      name: The name of the run in messages.
      tokens: The number of tokens of each sequence that the model reads.

    Raises:
      TooLarge: A batch does not fit in memory.
    """
    batch_size = min(largest, _fitting.get((tokens, mesh), largest))
    sequences, length = arrays[0].shape
    remedy = f"omit the length {length}, or set --gin.build_decoder.attention=blockwise"
    while True:
        work = f"the loss of {batch_size} x {tokens} tokens at a time"
        results: list[np.ndarray] = []
        progress = Progress(sequences, quiet=jax.process_index() != 0)
        try:
            for result in batch_results(program, params, arrays, batch_size, mesh, work, remedy):
                results.append(result)
                done = min(len(results) * batch_size, sequences)
                progress.show(done, f"{name} at length {length}, {batch_size} at a time")
        except (TooLarge, jax.errors.JaxRuntimeError) as error:
            smaller = sequences_at_a_time(tokens, batch_size * tokens // 2, mesh)
            exhausted = isinstance(error, TooLarge) or "RESOURCE_EXHAUSTED" in str(error)
            if not exhausted or smaller == batch_size or jax.process_count() > 1:
                raise
            print(
                f"{batch_size} sequences of {tokens} tokens do not fit into memory: trying "
                f"{smaller} at a time (to avoid this, lower length_sweep.tokens_per_batch)"
            )
            batch_size = _fitting[tokens, mesh] = smaller
            continue
        progress.close()
        return np.concatenate(results)[:sequences]


# The number of sequences of a given length that fit in the memory of a mesh, for lengths at which
# the requested number did not fit.
_fitting: dict[tuple[int, jax.sharding.Mesh], int] = {}


def batch_results(
    program: jax.stages.Wrapped,
    params: Any,
    arrays: Sequence[np.ndarray],
    batch_size: int,
    mesh: jax.sharding.Mesh,
    work: str,
    remedy: str,
) -> Iterator[np.ndarray]:
    """Yield the results of `program` for one batch of `arrays` after the other, as float64.

    The last batch ends with rows of zeros. Every process iterates over the same batches and places
    its own part of each batch on its devices.

    Args:
      program: A jitted function of the parameters and of arrays.
      params: The parameters of the model.
      arrays: The other arguments of the function, each `[B, T]`.
      batch_size: The number of rows in a batch.
      mesh: The mesh over which batches are split.
      work: A description of a batch, for the error.
      remedy: What to change if a batch does not fit in memory.

    Raises:
      TooLarge: A batch does not fit in memory.
    """
    for placed in placed_batches(arrays, batch_size, mesh):
        if work:  # `program` keeps the executable
            executable = program.lower(params, *placed).compile()
            check_program(executable, list(mesh.devices.flat), work, remedy)
            work = ""
        yield np.asarray(program(params, *placed), np.float64)


def sequences_at_a_time(length: int, tokens_per_batch: int, mesh: jax.sharding.Mesh) -> int:
    """Return the batch size, a multiple of the number of parts into which `mesh` splits a batch."""
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    return ways * max(1, tokens_per_batch // (length * ways))


@functools.lru_cache(maxsize=64)
def scorer(
    model: Decoder, length: int, mesh: jax.sharding.Mesh, bins: int = 1, tokens: int | None = None
) -> jax.stages.Wrapped:
    """Return a jitted function that computes summed nats `[B, P]`.

    The arguments of the function are the parameters and arrays `[B, T]`: the targets, the weights
    and, for packed rows, the segments. T and `tokens` must be multiples of the number of slices
    into which the mesh splits a row. The nats are summed in bins according to the position of a
    token in its sequence or, in packed rows, in its document. All checkpoints of a run share the
    function, so that it is compiled only once. With `tokens`, the model reads only that many tokens
    of each sequence, and the others count as 0 nats.
    """
    sharding.of_rows(mesh, tokens or length)  # refuses rows that cannot be split evenly
    # Without a backward pass, no activations are stored, so a loop over layers costs nothing at run
    # time. The loop shortens the compilation, which happens for each length.
    model = model.clone(scan_layers=True)

    @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, PartitionSpec()))
    def summed_nll(
        params: Any, targets_BT: jax.Array, weight_BT: jax.Array, *segments: jax.Array
    ) -> jax.Array:
        rows = [x_BT[:, :tokens] for x_BT in (targets_BT, *segments)]
        pos_BT = model.resampling.evaluation_positions(rows[0].shape[1])
        pos_BT = segment_positions(pos_BT, *rows[1:]) if segments else pos_BT
        nll_BT, _ = token_losses(model, params, rows[0], pos_BT, *rows[1:])
        nll_BT = jnp.pad(nll_BT, ((0, 0), (0, length - nll_BT.shape[1])))
        nll_BT = nll_BT * weight_BT.astype(jnp.float32)
        if not segments or bins == 1:
            return nll_BT.reshape(len(nll_BT), bins, -1).sum(axis=2)
        bin_BT = segment_positions(jnp.arange(length)[None], segments[0]) // (length // bins)
        in_bin_BPT = bin_BT[:, None, :] == jnp.arange(bins)[None, :, None]
        return jnp.where(in_bin_BPT, nll_BT[:, None, :], 0.0).sum(axis=2)

    return summed_nll


def compile_scoring(
    model: Decoder, mesh: jax.sharding.Mesh, *, packed: bool, length: int, tokens_per_batch: int
) -> jax.stages.Compiled:
    """Compile `row_losses` for `mesh`, whose devices need not be attached to this job."""
    model = model.clone(activation_sharding=sharding.of_activations(mesh))
    batch_size = sequences_at_a_time(length, tokens_per_batch, mesh)
    rows = sharding.batch_like((batch_size, length), mesh, packed=packed).values()
    return scorer(model, length, mesh).lower(abstract_params(model, mesh), *rows).compile()


def placed_batches(
    arrays: Sequence[np.ndarray], batch_size: int, mesh: jax.sharding.Mesh
) -> Iterator[list[jax.Array]]:
    """Yield batches of rows of `arrays` `[B, T]` on the devices, the last one padded with zeros."""
    layout = sharding.of_rows(mesh, arrays[0].shape[1])
    for start in range(0, len(arrays[0]), batch_size):
        batch = [x[start : start + batch_size] for x in arrays]
        batch = [np.pad(x, ((0, batch_size - len(x)), (0, 0))) for x in batch]
        yield [jax.make_array_from_callback(x.shape, layout, x.__getitem__) for x in batch]


@functools.lru_cache(maxsize=64)
def target_scorer(
    model: Decoder, mesh: jax.sharding.Mesh, documents: bool = False
) -> jax.stages.Wrapped:
    """Return a jitted function that scores targets, which are not shifted, and returns `[B, 2]`.

    The arguments of the function are the parameters and arrays `[B, T]`: the inputs, the targets,
    their weights, 0 or 1, and segments, which may be omitted. The segments separate a row from its
    padding or, with `documents`, are documents, in which positions start again. The results are the
    number of targets with a weight that are the most likely token, and the sum of the
    log-probabilities of the targets with a weight.
    """
    activations = sharding.of_activations(mesh)
    model = model.clone(scan_layers=True, remat="none", activation_sharding=activations)

    @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, PartitionSpec()))
    def scores(params: Any, inputs_BT: Any, targets_BT: Any, weight_BT: Any, *segments: Any) -> Any:
        pos_1T = model.resampling.evaluation_positions(inputs_BT.shape[1])
        if documents or not segments:
            pos_BT = segment_positions(pos_1T, *segments) if segments else pos_1T
            logits_BTV: Any = model.apply({"params": params}, inputs_BT, pos_BT, *segments)
        else:
            logits_BTV = padded_logits(model, params, inputs_BT, pos_1T, *segments)
        logprob_BT = -target_losses(logits_BTV, targets_BT)[0]
        hit_BT = (jnp.argmax(logits_BTV, axis=-1) == targets_BT).astype(jnp.float32)
        both_BT2 = jnp.stack([hit_BT, logprob_BT], axis=-1)
        return jnp.sum(jnp.where(weight_BT[..., None] > 0, both_BT2, 0.0), axis=1)

    return scores
