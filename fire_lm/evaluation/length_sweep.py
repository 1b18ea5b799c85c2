"""Loss against sequence length: the paper's evaluation of length generalisation (section 4.1).

Every length scores the same tokens: the text is read once in rows of the longest length, which
protocols.py lays windows over (by default equal parts, each seen in one forward pass; in packed
rows, segments and positions start anew in each window). So the numbers differ by context alone, not
by text or budget. The standard error is over those longest rows, which are the independent pieces
of text at every length.

Shapes: B batch, T tokens in a sequence, R rows of the longest length.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fire_lm import sharding
from fire_lm.checkpoints import checkpoint_damage, restore_params
from fire_lm.data import Data, ScoringText, dataset_label, scoring_text, unknown_warning
from fire_lm.errors import RunFailed, UserError
from fire_lm.evaluation.protocols import Windows, named, windows
from fire_lm.metrics import Progress
from fire_lm.models import Decoder, token_losses
from fire_lm.reporting import SweepRow

read_scoring_text = functools.lru_cache(maxsize=8)(scoring_text)


def length_sweep(
    *,
    workdir: str,
    run: str,
    step: int,
    finished: list[SweepRow],
    on_row: Callable[[SweepRow], None],
    model: Decoder,
    encoding: str,
    variant: str,
    data: Data,
    lengths: tuple[int, ...],
    tokens: int = 2**21,
    tokens_per_batch: int = 2**16,
    split: str = "validation",
    protocols: tuple[str, ...] = ("full",),
    stride: int = 256,
    mesh: sharding.MeshShape = sharding.MeshShape(),  # noqa: B008 (frozen)
) -> None:
    """Scores one checkpoint at each length.

    Args:
      workdir, run, step: the run directory, its name in the table, and the checkpoint.
      finished: rows that exist; their keys are not computed again.
      on_row: called with each new row as soon as it is known.
      model, data: as the run was trained.
      encoding: its name in the table.
      variant: what `model` does otherwise than in training, in a word; empty if nothing.
      lengths: tokens per sequence; each must divide the longest.
      tokens: budget at each length, rounded down to whole rows of the longest (one at least).
      tokens_per_batch: bounds the memory of a forward pass; at least one sequence per device.
      split: of the data set.
      protocols: which tokens are scored, and what they see: full, last256, sliding (protocols.py).
      stride: tokens between the windows of `sliding`.
      mesh: the devices to use, all by default.
    """
    lengths = tuple(sorted(set(lengths)))
    check_lengths(lengths)
    check_budget(tokens, tokens_per_batch)
    check_model_takes(model, lengths, run)
    laid = {
        (protocol, length): windows(protocol, length, lengths[-1], stride)
        for protocol in protocols
        for length in lengths
    }
    device_mesh = sharding.make_mesh(mesh)
    model = model.clone(activation_sharding=NamedSharding(device_mesh, sharding.ACTIVATIONS))
    known = {row.key: row for row in finished}
    params = None
    for part in data.parts:
        label = dataset_label(part)
        text = read_text(part, label, lengths[-1], tokens, split)
        for (protocol, length), laid_over in laid.items():
            empty = (0, 0, 0, 0.0, 0.0, 0.0, 0.0)
            name = named(protocol, stride)
            place = (run, encoding, variant, step, label, split, data.construction, name, length)
            key = SweepRow(*place, *empty).key
            counts = count(text, laid_over)
            if not counts[1]:
                raise UserError(
                    f"{name} scores no token of {label} at length {length}: there is only padding "
                    "there\nrows without it: --gin.CONSTRUCTION=concat, or other EVAL_LENGTHS"
                )
            if key in known:
                check_same_budget(known[key], counts)
                continue
            if params is None:
                params = read_params(workdir, step, model, device_mesh)
            nll_R = score(model, params, text, laid_over, tokens_per_batch, device_mesh, run)
            result = summarize(nll_R, scored_tokens(text, laid_over), counts)
            if not math.isfinite(result[0]):
                raise RunFailed(f"{run}@{step}: the loss at length {length} is {result[0]}")
            on_row(SweepRow(*place, *counts, *result))


def read_text(data: Data, label: str, longest: int, tokens: int, split: str) -> ScoringText:
    """About `tokens` tokens in rows of the longest length; says what is amiss with them."""
    text = read_scoring_text(
        data, length=longest, num_sequences=max(1, tokens // longest), split=split
    )
    if jax.process_index() == 0:
        scored = text.targets.size
        if scored < tokens // longest * longest:
            print(
                f"the {split} split of {label} has less text: {scored:,} tokens instead of "
                f"{tokens:,}"
            )
        if padding := scored - np.count_nonzero(text.targets):
            print(
                f"{padding:,} of the {scored:,} places in the rows of {label} are padding "
                f"({padding / scored:.1%}), which weighs nothing"
            )
        if text.skipped:
            print(f"{text.skipped:,} empty or undecodable documents of {label} were skipped")
        if warning := unknown_warning(text.unknown, split, data):
            print(warning)
    return text


def check_lengths(lengths: tuple[int, ...]) -> None:
    if not lengths or lengths[0] < 2:
        raise UserError(f"EVAL_LENGTHS = {lengths}: give lengths of 2 tokens or more")
    for length in lengths:
        if lengths[-1] % length:
            raise UserError(
                f"evaluation length {length} does not divide the longest, {lengths[-1]}: then "
                "the lengths could not score the same tokens. Change EVAL_LENGTHS"
            )


def check_budget(tokens: int, tokens_per_batch: int) -> None:
    for name, value in (("tokens", tokens), ("tokens_per_batch", tokens_per_batch)):
        if value < 1:
            raise UserError(f"length_sweep.{name} is {value}: it must be 1 or more")


def check_model_takes(model: Decoder, lengths: tuple[int, ...], run: str) -> None:
    """Before anything is computed: a table of positions has an end."""
    for length in lengths:
        try:
            for encoding in model.encodings:
                encoding.check_length(length, length)
            jax.eval_shape(lambda: model.resampling.evaluation_positions(length))  # noqa: B023
        except UserError as error:
            raise UserError(
                f"{run} at length {length}: {error}\n"
                "or lower EVAL_LENGTHS, or leave this run out of the sweep"
            ) from error


def count(text: ScoringText, laid: Windows) -> tuple[int, int, int]:
    """(sequences, tokens, bytes) scored; sequences of which nothing is scored do not count."""
    scored = laid.of(text.targets != 0) & laid.scored(len(text.targets))
    places_T = laid.scored_places(text.targets.shape[1])
    tokens = int(scored_tokens(text, laid).sum())
    text_bytes = int(text.byte_counts[:, places_T].sum(dtype=np.int64))
    return int(scored.any(axis=1).sum()), tokens, text_bytes


def scored_tokens(text: ScoringText, laid: Windows) -> np.ndarray:
    """How many tokens of each row are scored, `[R]`."""
    places_T = laid.scored_places(text.targets.shape[1])
    return (text.targets[:, places_T] != 0).sum(axis=1)


def check_same_budget(row: SweepRow, counts: tuple[int, int, int]) -> None:
    """A finished row is kept, but never beside rows of another text under the same name."""
    if (row.sequences, row.tokens, row.bytes) != counts:
        raise UserError(
            f"length_sweep.csv has {row.run}@{row.step} at length {row.length} over another text: "
            f"{row.tokens} tokens, {row.bytes} bytes, now {counts[1]} and {counts[2]}\n"
            "the longest of EVAL_LENGTHS and length_sweep.tokens choose it: keep both, "
            "or move that file away"
        )


def read_params(workdir: str, step: int, model: Decoder, mesh: jax.sharding.Mesh) -> Any:
    """The checkpoint's parameters on `mesh`; verified first. What fails on one process of a job
    (the checkpoint may be removed under its reader) fails on all."""
    params, problem = None, ""
    try:
        if jax.process_index() == 0 and (found := checkpoint_damage(workdir, step)):
            raise RunFailed(f"checkpoint {step} of {workdir} is damaged: {found}")
        params = restore_params(workdir, step, abstract_params(model, mesh))[0]
    except RunFailed as error:
        problem = str(error)
    if problems := [told for told in sharding.exchanged(problem) if told]:
        raise RunFailed(problems[0])
    return params


def abstract_params(model: Decoder, mesh: jax.sharding.Mesh) -> Any:
    """Shapes, dtypes and layout of the parameters."""
    tokens_BT = jax.ShapeDtypeStruct((1, 1), np.int32)
    abstract = jax.eval_shape(model.init, jax.random.key(0), tokens_BT, tokens_BT)["params"]
    return sharding.with_shardings(abstract, mesh)


def score(
    model: Decoder,
    params: Any,
    text: ScoringText,
    laid: Windows,
    tokens_per_batch: int,
    mesh: jax.sharding.Mesh,
    name: str,
) -> np.ndarray:
    """Summed nats `[R]` of the rows `[R, longest]`, seen through `laid`.

    Where a batch is too much for the memory there is, it is tried again with half of it (not in a
    job of several processes, which would have to agree in the middle of a program).
    """
    rows = len(text.targets)
    from_BT = np.tile(laid.scored_from.astype(np.int32), rows)[:, None]
    arrays = [laid.of(x) for x in (text.targets, text.segment_ids) if x is not None]
    arrays = [from_BT, *arrays] if laid.scored_from.any() else arrays
    largest = sequences_at_a_time(laid.length, tokens_per_batch, mesh)
    batch_size = min(largest, _fitting.get((laid.length, mesh), largest))
    while True:
        try:
            nll_B = run_batches(model, params, arrays, laid.length, batch_size, mesh, name)
            return nll_B.reshape(rows, -1).sum(axis=1)
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
) -> np.ndarray:
    """Summed nats of each sequence of `arrays` (see `scorer`)."""
    batch_sharding = NamedSharding(mesh, sharding.BATCH)
    sequences = len(arrays[0])
    summed_nll = scorer(model, length, mesh, masked=arrays[0].shape[1] != length)
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
    model: Decoder, length: int, mesh: jax.sharding.Mesh, masked: bool = False
) -> jax.stages.Wrapped:
    """Jitted: summed nats `[B]` of targets `[B, T]`, and of segments if there are any.

    `masked` takes before them the place from which on each is scored, int32 `[B, 1]`. One for all
    checkpoints of a run, so that it is compiled once.
    """
    # Nothing is kept for a backward pass, so a loop costs nothing, and is compiled for each length.
    model = model.clone(scan_layers=True)

    @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, PartitionSpec()))
    def summed_nll(params: Any, *arrays: jax.Array) -> jax.Array:
        targets_BT, *segments = arrays[masked:]
        pos_BT = model.resampling.evaluation_positions(length)
        nll_BT, _, weight_BT = token_losses(model, params, targets_BT, pos_BT, *segments)
        if masked:
            weight_BT = jnp.where(jnp.arange(length)[None, :] >= arrays[0], weight_BT, 0.0)
        return (nll_BT * weight_BT).sum(axis=1)

    return summed_nll


def compile_scoring(
    model: Decoder,
    mesh: jax.sharding.Mesh,
    *,
    features: Sequence[str],
    length: int,
    tokens_per_batch: int,
) -> jax.stages.Compiled:
    """What `score` runs, for the devices of `mesh`, which need not be of this job."""
    model = model.clone(activation_sharding=NamedSharding(mesh, sharding.ACTIVATIONS))
    batch_size = sequences_at_a_time(length, tokens_per_batch, mesh)
    rows = sharding.batch_like(features, (batch_size, length), mesh).values()
    return scorer(model, length, mesh).lower(abstract_params(model, mesh), *rows).compile()


def batches(sequences: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Batches of equal shape; the last is filled up with padding, which scores nothing.

    Every process goes through the same batches and places its part of each.
    """
    for start in range(0, len(sequences), batch_size):
        batch = sequences[start : start + batch_size]
        yield np.pad(batch, ((0, batch_size - len(batch)), (0, 0)))


def summarize(
    nll_R: np.ndarray, tokens_R: np.ndarray, counts: tuple[int, int, int]
) -> tuple[float, float, float, float]:
    """(nll, its standard error, perplexity, bits per byte) from summed nats and tokens of each row.

    The mean weights tokens equally, so it is a ratio of two sums over rows; the error is that of
    a ratio estimator (Cochran, Sampling Techniques, Eq. 2.46), and 0 for a single row.
    """
    _, tokens, text_bytes = counts
    mean = float(nll_R.sum() / tokens)
    rows = len(nll_R)
    residual = float(np.square(nll_R - mean * tokens_R).sum())
    stderr = math.sqrt(residual * rows / (rows - 1)) / tokens if rows > 1 else 0.0
    bits_per_byte = float(nll_R.sum() / math.log(2) / max(1, text_bytes))
    return mean, stderr, math.exp(min(mean, 700.0)), bits_per_byte
