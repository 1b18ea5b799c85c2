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
from collections.abc import Callable, Collection

import jax
import numpy as np
from jax.sharding import NamedSharding

from fire_lm import sharding
from fire_lm.data import Data, ScoringText, dataset_label, scoring_text, unknown_warning
from fire_lm.errors import RunFailed, UserError
from fire_lm.evaluation.estimators import mean_and_error
from fire_lm.evaluation.position_losses import number_of_bins, position_losses, tokens_in_bins
from fire_lm.evaluation.protocols import Windows, named, windows
from fire_lm.evaluation.scoring import read_params, score
from fire_lm.models import Decoder
from fire_lm.reporting import PositionLoss, SweepRow

read_scoring_text = functools.lru_cache(maxsize=8)(scoring_text)


def length_sweep(
    *,
    workdir: str,
    run: str,
    step: int,
    finished: list[SweepRow],
    on_row: Callable[[SweepRow], None],
    finished_positions: Collection[tuple[str | int, ...]],
    on_positions: Callable[[list[PositionLoss]], None],
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
    position_bins: int = 128,
    mesh: sharding.MeshShape = sharding.MeshShape(),  # noqa: B008 (frozen)
) -> None:
    """Scores one checkpoint at each length.

    Args:
      workdir, run, step: the run directory, its name in the table, and the checkpoint.
      finished: rows that exist; their keys are not computed again.
      on_row: called with each new row as soon as it is known.
      finished_positions: keys of the losses by position that exist; they stay, in whatever bins.
      on_positions: called with those of the longest length, before its row.
      model, data: as the run was trained.
      encoding: its name in the table.
      variant: what `model` does otherwise than in training, in a word; empty if nothing.
      lengths: tokens per sequence; each must divide the longest.
      tokens: budget at each length, rounded down to whole rows of the longest (one at least).
      tokens_per_batch: bounds the memory of a forward pass; at least one sequence per device.
      split: of the data set.
      protocols: which tokens are scored, and what they see: full, last256, sliding (protocols.py).
      stride: tokens between the windows of `sliding`.
      position_bins: into how many equal parts of the longest length `full` divides the losses by
        position, at most; 0 for none.
      mesh: the devices to use, all by default.
    """
    lengths = tuple(sorted(set(lengths)))
    check_lengths(lengths)
    check_budget(tokens, tokens_per_batch, position_bins)
    check_model_takes(model, lengths, run)
    laid = {
        (protocol, length): windows(protocol, length, lengths[-1], stride)
        for protocol in protocols
        for length in lengths
    }
    device_mesh = sharding.make_mesh(mesh)
    model = model.clone(activation_sharding=NamedSharding(device_mesh, sharding.ACTIVATIONS))
    params = functools.cache(lambda: read_params(workdir, step, model, device_mesh))
    known = {row.key: row for row in finished}
    for part in data.parts:
        label = dataset_label(part)
        text = read_text(part, label, lengths[-1], tokens, split)
        where = (run, encoding, variant, step, label, split, data.construction)
        for (protocol, length), laid_over in laid.items():
            place = (*where, named(protocol, stride), length)
            counts = count(text, laid_over)
            if not counts[1]:
                raise UserError(
                    f"{place[-2]} scores no token of {label} at length {length}: there is only "
                    "padding there\n"
                    "rows without it: --gin.CONSTRUCTION=concat, or other EVAL_LENGTHS"
                )
            row = known.get(place)
            if row:
                check_same_budget(row, counts)
            by_position = (protocol, length) == ("full", lengths[-1]) and position_bins
            bins = number_of_bins(length, position_bins) if by_position else 1
            positions = (*where, length) if by_position else ()
            if row and (not positions or positions in finished_positions):
                continue
            if row and jax.process_index() == 0:
                print(f"{run}@{step} at length {length} is scored again, for position_losses.csv")
            nll_RP = score(
                model, params(), text, laid_over, tokens_per_batch, device_mesh, run, bins
            )
            result = summarize(nll_RP.sum(axis=1), scored_tokens(text, laid_over), counts)
            if not math.isfinite(result[0]):
                raise RunFailed(f"{run}@{step}: the loss at length {length} is {result[0]}")
            if positions:  # first: where the other row is, these are
                on_positions(
                    position_losses(positions, nll_RP, tokens_in_bins(text, laid_over, bins))
                )
            if not row:
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


def check_budget(tokens: int, tokens_per_batch: int, position_bins: int) -> None:
    for name, value, least in (
        ("tokens", tokens, 1),
        ("tokens_per_batch", tokens_per_batch, 1),
        ("position_bins", position_bins, 0),
    ):
        if value < least:
            raise UserError(f"length_sweep.{name} is {value}: it must be {least} or more")


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


def summarize(
    nll_R: np.ndarray, tokens_R: np.ndarray, counts: tuple[int, int, int]
) -> tuple[float, float, float, float]:
    """(nll, its standard error, perplexity, bits per byte) from summed nats and tokens of each
    row."""
    mean, stderr = mean_and_error(nll_R, tokens_R)
    bits_per_byte = float(nll_R.sum() / math.log(2) / max(1, counts[2]))
    return mean, stderr, math.exp(min(mean, 700.0)), bits_per_byte
