"""Loss as a function of sequence length, the paper's evaluation of length generalisation (4.1).

Every length scores the same tokens: the text is read once, in rows whose length depends only on the
budget (text_choice.py), and protocols.py divides these rows into windows (by default equal parts,
each read in one forward pass; in packed rows, segments and positions start again in each window).
So the results differ only in the context, not in the text or the budget, and a length that is
scored later uses the same text as the lengths before it. The text's identity is recorded with each
row, and rows of another text are refused. The standard error is over the rows of text, which are
the independent units at every length.

A length that the model cannot read is skipped, and the text stays the same. A length for which the
text has no row gets a row without numbers. If a length does not divide a row of text, the last part
of each row is shorter. For results of older versions, which did not score that part, a message
reports how many tokens it had.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import NamedSharding

from fire_lm import sharding
from fire_lm.data import Data, ScoringText, dataset_label, unknown_warning
from fire_lm.errors import RunFailed, UserError
from fire_lm.evaluation.measurements import (
    Known,
    Measurement,
    measurements,
    missing,
    scored_tokens,
    unrecorded,
)
from fire_lm.evaluation.position_losses import position_losses, tokens_in_bins
from fire_lm.evaluation.protocols import check_names, windows
from fire_lm.evaluation.scoring import read_params, score
from fire_lm.evaluation.text_choice import check_reach, choose_text
from fire_lm.models import Decoder
from fire_lm.results import (
    PositionLoss,
    ScoredText,
    SweepRow,
    scored_text,
)
from fire_lm.results.estimators import mean_and_error

# The results in a row without text.
NO_NUMBERS = (math.nan, math.nan, math.nan, math.nan)


@dataclasses.dataclass(frozen=True)
class Scored:
    """A new row with its text and its losses by position, if any.

    They are written in the order of the fields, so that a kill between two files leaves no row that
    lacks the other two.
    """

    text: ScoredText | None
    positions: list[PositionLoss]
    row: SweepRow


@dataclasses.dataclass(frozen=True)
class LengthSweep:
    """The settings of a length sweep, without the runs that it scores: gin's `length_sweep`.

    Attributes:
      model: The model as it was trained, except for the changes of a variant.
      encoding: The name of the encoding in the table.
      data: The data that the run was trained on, except for the changes of a variant.
      lengths: The numbers of tokens per sequence. All lengths score the same tokens; if a length
        does not divide a row of text, a power of two, the last part of each row is shorter.
      tokens: The budget at each length. It alone determines the text, which is read in 32 rows (if
        rows are parts of a joined stream) or 128 rows; a length is at most as long as a row.
      tokens_per_batch: Limits the memory of a forward pass, which reads at least one sequence per
        device.
      split: The split of the data set.
      protocols: Which tokens are scored with which context: full, last256, sliding (protocols.py).
      stride: The number of tokens between the windows of `sliding`.
      position_bins: The maximum number of equal parts of the longest length into which `full`
        divides the losses by position; 0 for none.
      mesh: The devices to use, by default all.

    Raises:
      UserError: The settings are invalid for every model and text.
    """

    model: Decoder
    encoding: str
    data: Data
    lengths: tuple[int, ...]
    tokens: int = 2**21
    tokens_per_batch: int = 2**16
    split: str = "validation"
    protocols: tuple[str, ...] = ("full",)
    stride: int = 256
    position_bins: int = 128
    mesh: sharding.MeshShape = sharding.MeshShape()

    def __post_init__(self) -> None:
        check_scoring(**{name: getattr(self, name) for name in CHECKED})

    @property
    def in_order(self) -> tuple[int, ...]:
        """Each length once, shortest first."""
        return tuple(sorted(set(self.lengths)))

    def lengths_taken(self, run: str) -> tuple[int, ...]:
        """Return the lengths that this model can read; refuse invalid ones before reading text."""
        check_reach(self.in_order, self.tokens, self.data)
        taken = lengths_taken(self.model, self.in_order, run)
        for protocol in self.protocols:
            for length in taken:
                windows(protocol, length, length, self.stride)
        return taken


# The settings that `check_scoring` checks.
CHECKED = ("lengths", "tokens", "tokens_per_batch", "protocols", "stride", "position_bins")


def score_checkpoint(
    sweep: LengthSweep,
    workdir: str,
    step: int,
    *,
    run: str,
    variant: str,
    finished: Known,
    on_scored: Callable[[Scored], None],
) -> None:
    """Score one checkpoint at each length.

    Args:
      sweep: The settings.
      workdir: The run directory.
      step: The step of the checkpoint.
      run: The run's name in the table.
      variant: The name of the model's changes from training; empty if there are none.
      finished: The existing rows, which are not computed again.
      on_scored: Called with each new row as soon as it is known, with its losses by position if
        these are also new.
    """
    data, lengths = sweep.data, sweep.in_order
    taken = sweep.lengths_taken(run)
    device_mesh = sharding.make_mesh(sweep.mesh)
    activations = NamedSharding(device_mesh, sharding.ACTIVATIONS)
    model = sweep.model.clone(activation_sharding=activations)
    params = functools.cache(lambda: read_params(workdir, step, model, device_mesh))
    due = []
    for part in data.parts:
        label = dataset_label(part)
        where = (run, sweep.encoding, variant, step, label, sweep.split, data.construction)
        if count := unrecorded(where, finished):
            say_once(
                f"{count} rows in length_sweep.csv of {run} do not record which text was scored "
                "(an older version wrote them): they are kept, and shown separately in tables\n"
                "to score them again, move that file and position_losses.csv away"
            )
        text = read_text(part, label, lengths, sweep.tokens, sweep.split)
        wanted = list(
            measurements(text, where, sweep.protocols, taken, sweep.stride, sweep.position_bins)
        )
        say_what_was_left_out(wanted, finished)
        due.append((text, where, list(missing(wanted, finished))))
    for text, where, of_text in due:  # only after all of it has been checked against existing rows
        for measurement in of_text:
            if measurement.laid is None:
                on_scored(Scored(None, [], measurement.row(NO_NUMBERS)))
                continue
            if measurement.place in finished.rows:
                say(
                    f"{run}@{step} at length {measurement.length} is scored again to write "
                    "position_losses.csv"
                )
            bins, batch = measurement.bins or 1, sweep.tokens_per_batch
            nll_RP = score(model, params(), text, measurement.laid, batch, device_mesh, run, bins)
            on_scored(scored(measurement, where, text, nll_RP))


def scored(
    measurement: Measurement, where: tuple[str | int, ...], text: ScoringText, nll_RP: np.ndarray
) -> Scored:
    """Build a row from the summed nats of each row of text in bins of positions.

    Raises:
      RunFailed: The loss is not finite.
    """
    assert measurement.laid is not None
    nll_R, tokens_R = nll_RP.sum(axis=1), scored_tokens(text, measurement.laid)
    row = measurement.row(summarize(nll_R, tokens_R, measurement.counts))
    if not math.isfinite(row.nll):
        raise RunFailed(
            f"{row.run}@{row.step}: the loss at length {measurement.length} is {row.nll}"
        )
    by_position: list[PositionLoss] = []
    if measurement.bins and not measurement.has_positions:
        tokens_RP = tokens_in_bins(text, measurement.laid, measurement.bins)
        by_position = position_losses((*where, measurement.length), nll_RP, tokens_RP)
    return Scored(scored_text(row, measurement.text, tokens_R, nll_R), by_position, row)


def say_what_was_left_out(wanted: Sequence[Measurement], finished: Known) -> None:
    """Report tokens that older versions did not score, in parts shorter than the length."""
    for measurement in wanted:
        row = finished.rows.get(measurement.place)
        if row is None or not finished.texts.get(measurement.place):
            continue
        if left := measurement.counts[1] - row.tokens:
            say_once(
                f"{row.run}@{row.step}: {row.protocol} at length {row.length} omits {left:,} of "
                f"{measurement.counts[1]:,} tokens, because an older version scored it\n"
                "to score all of them, delete its line in length_sweep.csv"
            )


def say(words: str) -> None:
    """Print a message once for all processes of a job."""
    if jax.process_index() == 0:
        print(words, flush=True)


say_once = functools.cache(say)


def read_text(
    data: Data, label: str, lengths: Sequence[int], tokens: int, split: str
) -> ScoringText:
    """Return the text of a budget; report lengths without a row, and other problems.

    Raises:
      UserError: There is no text for the shortest length.
    """
    text = choose_text(data, tokens, split)
    there = text.targets.shape[1]
    if longer := [length for length in lengths if length > there]:
        listed = ", ".join(map(str, longer))
        if len(longer) == len(lengths):
            raise UserError(
                f"the {split} split of {label} has too little text for length {listed}: it yields "
                f"rows of {there:,} tokens ({data.construction})\nlower EVAL_LENGTHS"
            )
        say(f"the {split} split of {label} has too little text for length {listed}: left blank")
    scored = text.targets.size
    if scored < tokens // there * there:
        say(f"the {split} split of {label} has only {scored:,} tokens instead of {tokens:,}")
    if padding := scored - np.count_nonzero(text.weights):
        say(
            f"{padding:,} of the {scored:,} positions in the rows of {label} are padding "
            f"({padding / scored:.1%}), which is not scored"
        )
    if text.skipped:
        say(f"{text.skipped:,} empty or undecodable documents of {label} were skipped")
    if warning := unknown_warning(text.unknown, split, data):
        say(warning)
    return text


def check_scoring(
    lengths: tuple[int, ...],
    tokens: int,
    tokens_per_batch: int,
    protocols: tuple[str, ...],
    stride: int,
    position_bins: int,
) -> None:
    """Refuse settings that are invalid for every model and text."""
    if not lengths or min(lengths) < 2:
        raise UserError(f"EVAL_LENGTHS = {lengths}: set lengths of 2 tokens or more")
    for name, value, least in (
        ("tokens", tokens, 1),
        ("tokens_per_batch", tokens_per_batch, 1),
        ("stride", stride, 1),
        ("position_bins", position_bins, 0),
    ):
        if value < least:
            raise UserError(f"length_sweep.{name} is {value}: it must be {least} or more")
    check_names(protocols)


def lengths_taken(model: Decoder, lengths: Sequence[int], run: str) -> tuple[int, ...]:
    """Return the lengths that the model can read, and report the others.

    The choice of the text does not depend on them.

    Raises:
      UserError: The model can read none of the lengths.
    """
    refused = lengths_refused(model, lengths)
    if len(refused) == len(lengths):
        raise UserError(
            f"{run} at length {lengths[0]}: {refused[lengths[0]]}\n"
            "or lower EVAL_LENGTHS, or exclude this run from the sweep"
        )
    if refused:
        why = next(iter(refused.values())).partition("\n")[0]
        say(f"{run} is not scored at length {', '.join(map(str, refused))}: {why}")
    return tuple(length for length in lengths if length not in refused)


def lengths_refused(model: Decoder, lengths: Sequence[int]) -> dict[int, str]:
    """Return the lengths that the model cannot read, with the reasons, before any computation.

    A table of positions, for example, has a last position.
    """
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
    """Return (nll, its standard error, perplexity, bits per byte).

    They are computed from the summed nats and the tokens of each row.
    """
    mean, stderr = mean_and_error(nll_R, tokens_R)
    bits_per_byte = float(nll_R.sum() / math.log(2) / max(1, counts[2]))
    return mean, stderr, math.exp(min(mean, 700.0)), bits_per_byte
