"""Loss as a function of sequence length, as in section 4.1 of the FIRE paper.

The same tokens are scored at every length. The text is read once, in rows whose length depends only
on the data and the token budget (text_choice.py), and protocols.py divides these rows into windows.
By default, the windows are equal parts of a row, and the model reads each window in one forward
pass. In packed rows, segments and positions start again in each window. The results at different
lengths therefore differ only in the context, not in the text or the budget, and a length that is
added later is scored on the same text. For each row of results, scored_text.csv records a hash of
the text, and a sweep raises an error if existing results were measured on another text. At every
length, the standard error treats the rows of text as independent samples.

A length that the model cannot read is skipped without affecting the text. A length that exceeds the
rows of text gets a row of results without numbers. If a length does not divide a row of text, the
last part of each row is shorter. Older versions did not score this part; for their results, a
message reports the number of tokens that were omitted.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.sharding import NamedSharding

from fire_lm import sharding
from fire_lm.data import ScoringText, TextSource
from fire_lm.errors import RunFailed, UserError
from fire_lm.measures.measurements import (
    Known,
    Measurement,
    measurements,
    missing,
    scored_tokens,
    unrecorded,
)
from fire_lm.measures.position_losses import position_losses, tokens_in_bins
from fire_lm.measures.protocols import check_names, windows
from fire_lm.measures.readable_lengths import lengths_taken
from fire_lm.measures.scoring import read_params, score
from fire_lm.measures.text_choice import check_reach, read_text
from fire_lm.models import Decoder, keeps_positions, reason_of_nan
from fire_lm.processes import failing_together, say, say_once
from fire_lm.results import (
    PositionLoss,
    ScoredText,
    SweepRow,
    scored_text,
)
from fire_lm.results.estimators import mean_and_error

# The values in a row of results at a length for which there is no text.
NO_NUMBERS = (math.nan, math.nan, math.nan, math.nan)


@dataclasses.dataclass(frozen=True)
class Scored:
    """A new row of results, with the record of its text and any losses by position.

    The fields are written to separate files in the order in which they are declared. A row of
    results therefore never lacks its text or its losses by position, even if the process is killed
    between two writes.
    """

    text: ScoredText | None
    positions: list[PositionLoss]
    row: SweepRow


@dataclasses.dataclass(frozen=True)
class LengthSweep:
    """The settings of a length sweep (`length_sweep` in gin), except for the runs to score.

    Attributes:
      model: The model as it was trained, with any changes that apply only at evaluation.
      encoding: The name of the encoding in the results.
      data: The data on which the run was trained, with any changes that apply only at evaluation.
      lengths: The sequence lengths to score, in tokens. The same tokens are scored at every length.
        The length of a row of text is a power of two; if an evaluation length does not divide it,
        the last part of each row is shorter.
      tokens: The number of tokens to score at each length. For given data, only this budget
        determines the text, which is read in at least 32 rows if rows are parts of a joined stream
        (`concat`, `packed`), and otherwise in at least 128 rows, unless the text is too short.
        Padding does not count: rows that contain padding are read until the budget is reached. No
        evaluation length may exceed the length of a row.
      tokens_per_batch: The maximum number of tokens in a forward pass, which limits its memory. A
        forward pass reads at least one sequence for each part into which the mesh splits a batch.
      split: The name of the split to score.
      protocols: The names of the protocols (`full`, `last256`, `sliding`), which determine the
        tokens to score and their contexts; see protocols.py.
      stride: The number of tokens between the starts of the windows of `sliding`.
      position_bins: The maximum number of bins of equal width into which the positions of the
        longest length are divided to report losses by position, with the protocol `full` only; 0
        disables these losses.
      mesh: The shape of the device mesh; by default, all devices are used.

    Raises:
      UserError: The settings are invalid for every model and text.
    """

    model: Decoder
    encoding: str
    data: TextSource
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
        """The distinct lengths in ascending order."""
        return tuple(sorted(set(self.lengths)))

    def lengths_taken(self, run: str) -> tuple[int, ...]:
        """Return the lengths that the model can read, and report the other lengths.

        This method does not read any text.

        Args:
          run: The name of the run in messages.

        Raises:
          UserError: A length exceeds a row of text or is incompatible with a protocol, or the model
            can read none of the lengths, or no packed rows.
        """
        check_reach(self.in_order, self.tokens, self.data)
        taken = lengths_taken(self.model, self.in_order, run)
        if self.data.packed and not keeps_positions(self.model, taken[-1]):
            raise UserError(
                f"{run}: in packed rows, documents cannot have positions that depend on the length "
                "of the input: add --gin_file=configs/resampling/plain.gin, or set another "
                "CONSTRUCTION"
            )
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
      sweep: The settings of the sweep.
      workdir: The run directory.
      step: The step of the checkpoint.
      run: The run's name in the results.
      variant: The name of the changes to the model since training, or "" if there are none.
      finished: The existing rows, which are not computed again.
      on_scored: A callback that receives each new row as soon as it has been computed, together
        with its losses by position if these are also new.

    Raises:
      UserError: The text is too short for all lengths, or differs from the text of existing rows.
      RunFailed: The checkpoint is damaged, or a loss is not finite.
    """
    data, lengths = sweep.data, sweep.in_order
    with failing_together():
        taken = sweep.lengths_taken(run)
    device_mesh = sharding.make_mesh(sweep.mesh)
    activations = NamedSharding(device_mesh, sharding.ACTIVATIONS)
    model = sweep.model.clone(activation_sharding=activations)
    params = functools.cache(lambda: read_params(workdir, step, model, device_mesh))
    due = []
    for part in data.parts:
        label = part.label()
        where = (run, sweep.encoding, variant, step, label, sweep.split, data.construction)
        if count := unrecorded(where, finished):
            say_once(
                f"{run}: length_sweep.csv has {count} row{'s' * (count > 1)} from an older version "
                "without a record of the scored text; tables show these results separately\n"
                "to compute them again, move length_sweep.csv and position_losses.csv away"
            )
        with failing_together():
            text = read_text(part, label, lengths, sweep.tokens, sweep.split)
        wanted = list(
            measurements(text, where, sweep.protocols, taken, sweep.stride, sweep.position_bins)
        )
        say_what_was_left_out(wanted, finished)
        due.append((text, where, list(missing(wanted, finished))))
    for text, where, of_text in due:  # all texts have been checked against existing rows by now
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
            with failing_together():
                found = scored(measurement, where, text, nll_RP, model, params())
            on_scored(found)


def scored(
    measurement: Measurement,
    where: tuple[str | int, ...],
    text: ScoringText,
    nll_RP: np.ndarray,
    model: Decoder,
    params: Any,
) -> Scored:
    """Return the results of a measurement from nats `[R, P]`, summed by row of text and bin.

    Raises:
      RunFailed: The loss is not finite.
    """
    assert measurement.laid is not None
    nll_R, tokens_R = nll_RP.sum(axis=1), scored_tokens(text, measurement.laid)
    row = measurement.row(summarize(nll_R, tokens_R, measurement.counts))
    if not math.isfinite(row.nll):
        raise RunFailed(
            f"{row.run}@{row.step}: the loss at length {measurement.length} is {row.nll}: "
            f"{reason_of_nan(model, params, measurement.length)}"
        )
    by_position: list[PositionLoss] = []
    if measurement.bins and not measurement.has_positions:
        tokens_RP = tokens_in_bins(text, measurement.laid, measurement.bins)
        by_position = position_losses((*where, measurement.length), nll_RP, tokens_RP)
    return Scored(scored_text(row, measurement.text, tokens_R, nll_R), by_position, row)


def say_what_was_left_out(wanted: Sequence[Measurement], finished: Known) -> None:
    """Report the tokens that are missing from rows that an older version wrote.

    Older versions did not score the last part of a row of text if it was shorter than the length.
    """
    for measurement in wanted:
        row = finished.rows.get(measurement.place)
        if row is None or not finished.texts.get(measurement.place):
            continue
        if left := measurement.counts[1] - row.tokens:
            say_once(
                f"{row.run}@{row.step}: the row for {row.protocol} at length {row.length} omits "
                f"{left:,} of {measurement.counts[1]:,} tokens, because an older version wrote it\n"
                "to score all tokens, delete this row from length_sweep.csv and rerun the command"
            )


def check_scoring(
    lengths: tuple[int, ...],
    tokens: int,
    tokens_per_batch: int,
    protocols: tuple[str, ...],
    stride: int,
    position_bins: int,
) -> None:
    """Raise UserError if a setting is invalid for every model and text."""
    if not lengths or min(lengths) < 2:
        raise UserError(f"EVAL_LENGTHS is {lengths}: set lengths of 2 tokens or more")
    for name, value, least in (
        ("tokens", tokens, 1),
        ("tokens_per_batch", tokens_per_batch, 1),
        ("stride", stride, 1),
        ("position_bins", position_bins, 0),
    ):
        if value < least:
            raise UserError(f"length_sweep.{name} is {value}: it must be {least} or more")
    check_names(protocols)


def summarize(
    nll_R: np.ndarray, tokens_R: np.ndarray, counts: tuple[int, int, int]
) -> tuple[float, float, float, float]:
    """Return the mean loss in nats, its standard error, the perplexity, and the bits per byte.

    Args:
      nll_R: The summed nats of each row of text.
      tokens_R: The number of scored tokens in each row of text.
      counts: The numbers of sequences, tokens and bytes.
    """
    mean, stderr = mean_and_error(nll_R, tokens_R)
    bits_per_byte = float(nll_R.sum() / math.log(2) / max(1, counts[2]))
    return mean, stderr, math.exp(min(mean, 700.0)), bits_per_byte
