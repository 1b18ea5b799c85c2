"""Loss against sequence length: the paper's evaluation of length generalisation (section 4.1).

Every length scores the same tokens: the text is read once in rows of the longest length, which
protocols.py lays windows over (by default equal parts, each seen in one forward pass; in packed
rows, segments and positions start anew in each window). So the numbers differ by context alone, not
by text or budget. The standard error is over those longest rows, which are the independent pieces
of text at every length.

A length that the model cannot read is left out, and the text stays. One that the text has no row of
gets a row without numbers, and rows of the longest that it has are read.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from jax.sharding import NamedSharding

from fire_lm import sharding
from fire_lm.data import Data, NoText, ScoringText, dataset_label, scoring_text, unknown_warning
from fire_lm.errors import RunFailed, UserError
from fire_lm.evaluation.estimators import mean_and_error
from fire_lm.evaluation.pieces import missing, pieces, scored_tokens
from fire_lm.evaluation.position_losses import position_losses, tokens_in_bins
from fire_lm.evaluation.protocols import windows
from fire_lm.evaluation.scoring import read_params, score
from fire_lm.models import Decoder
from fire_lm.reporting import PositionLoss, SweepRow

# What a row has where there is no text.
NO_NUMBERS = (math.nan, math.nan, math.nan, math.nan)


def length_sweep(
    *,
    workdir: str,
    run: str,
    step: int,
    finished: list[SweepRow],
    on_row: Callable[[SweepRow], None],
    finished_positions: Mapping[tuple[str | int, ...], int],
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
      finished_positions: keys of the losses by position that exist, with their tokens; they stay,
        in whatever bins.
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
    taken = lengths_taken(model, lengths, run)
    for protocol, length in itertools.product(protocols, taken):
        windows(protocol, length, lengths[-1], stride)  # what cannot be is told first
    device_mesh = sharding.make_mesh(mesh)
    model = model.clone(activation_sharding=NamedSharding(device_mesh, sharding.ACTIVATIONS))
    params = functools.cache(lambda: read_params(workdir, step, model, device_mesh))
    known = {row.key: row for row in finished}
    due = []
    for part in data.parts:
        label = dataset_label(part)
        where = (run, encoding, variant, step, label, split, data.construction)
        text = read_text(part, label, lengths, tokens, split)
        wanted = pieces(text, where, protocols, taken, stride, position_bins)
        due.append((text, where, list(missing(wanted, known, finished_positions))))
    for text, where, of_text in due:  # after all of it is known to fit what there is
        for piece in of_text:
            if piece.laid is None:
                on_row(piece.row(NO_NUMBERS))
                continue
            if piece.place in known:
                say(
                    f"{run}@{step} at length {piece.length} is scored again, for "
                    "position_losses.csv"
                )
            bins = piece.bins or 1
            nll_RP = score(
                model, params(), text, piece.laid, tokens_per_batch, device_mesh, run, bins
            )
            tokens_RP = tokens_in_bins(text, piece.laid, bins)
            result = summarize(nll_RP.sum(axis=1), scored_tokens(text, piece.laid), piece.counts)
            if not math.isfinite(result[0]):
                raise RunFailed(f"{run}@{step}: the loss at length {piece.length} is {result[0]}")
            if (
                piece.bins and not piece.has_positions
            ):  # first: where the row of a sweep is, these are
                on_positions(position_losses((*where, piece.length), nll_RP, tokens_RP))
            if piece.place not in known:
                on_row(piece.row(result))


def say(words: str) -> None:
    """Once for all processes of a job."""
    if jax.process_index() == 0:
        print(words, flush=True)


def read_text(
    data: Data, label: str, lengths: Sequence[int], tokens: int, split: str
) -> ScoringText:
    """About `tokens` tokens in rows of the longest length that there is text for; says which have
    none, and what is amiss.

    Raises:
      UserError: there is no text for the shortest, or the next does not divide the others.
    """
    for longest in reversed(lengths):
        text = read_scoring_text(
            data, length=longest, num_sequences=max(1, tokens // longest), split=split
        )
        if isinstance(text, ScoringText):
            break
    if not isinstance(text, ScoringText):
        raise text
    if longest < lengths[-1]:
        longer = ", ".join(str(length) for length in lengths if length > longest)
        say(f"the {split} split of {label} has no text for length {longer}: no number there")
        check_lengths(tuple(length for length in lengths if length <= longest))
    scored = text.targets.size
    if scored < tokens // longest * longest:
        say(f"the {split} split of {label} has less text: {scored:,} tokens instead of {tokens:,}")
    if padding := scored - np.count_nonzero(text.targets):
        say(
            f"{padding:,} of the {scored:,} places in the rows of {label} are padding "
            f"({padding / scored:.1%}), which weighs nothing"
        )
    if text.skipped:
        say(f"{text.skipped:,} empty or undecodable documents of {label} were skipped")
    if warning := unknown_warning(text.unknown, split, data):
        say(warning)
    return text


@functools.lru_cache(maxsize=8)
def read_scoring_text(
    data: Data, *, length: int, num_sequences: int, split: str
) -> ScoringText | NoText:
    """Once for all checkpoints, also that there is none."""
    try:
        return scoring_text(data, length=length, num_sequences=num_sequences, split=split)
    except NoText as error:
        return error


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


def lengths_taken(model: Decoder, lengths: Sequence[int], run: str) -> tuple[int, ...]:
    """Those that the model can read; says which are left out. The text is the same all the same.

    Raises:
      UserError: it can read none of them.
    """
    refused = lengths_refused(model, lengths)
    if len(refused) == len(lengths):
        raise UserError(
            f"{run} at length {lengths[0]}: {refused[lengths[0]]}\n"
            "or lower EVAL_LENGTHS, or leave this run out of the sweep"
        )
    if refused:
        why = next(iter(refused.values())).partition("\n")[0]
        say(f"{run} is not scored at length {', '.join(map(str, refused))}: {why}")
    return tuple(length for length in lengths if length not in refused)


def lengths_refused(model: Decoder, lengths: Sequence[int]) -> dict[int, str]:
    """Why, by length: a table of positions has an end. Before anything is computed."""
    refused = {}
    for length in lengths:
        try:
            for encoding in model.encodings:
                encoding.check_length(length, length)
            jax.eval_shape(lambda: model.resampling.evaluation_positions(length))  # noqa: B023
        except UserError as error:
            refused[length] = str(error)
    return refused


def summarize(
    nll_R: np.ndarray, tokens_R: np.ndarray, counts: tuple[int, int, int]
) -> tuple[float, float, float, float]:
    """(nll, its standard error, perplexity, bits per byte) from summed nats and tokens of each
    row."""
    mean, stderr = mean_and_error(nll_R, tokens_R)
    bits_per_byte = float(nll_R.sum() / math.log(2) / max(1, counts[2]))
    return mean, stderr, math.exp(min(mean, 700.0)), bits_per_byte
