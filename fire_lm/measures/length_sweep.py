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
last part of each row is shorter.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from etils import epath
from jax.sharding import Mesh

from fire_lm import sharding
from fire_lm.data import ScoringText, TextSource
from fire_lm.errors import RunFailed, UserError
from fire_lm.measures.base import Cell, Measure, RunModel, StillOurs, check_least
from fire_lm.measures.measurements import Known, Measurement, missing, scored_tokens
from fire_lm.measures.position_losses import position_losses, tokens_in_bins
from fire_lm.measures.protocols import check_names, windows
from fire_lm.measures.readable_lengths import check_rows, readable_lengths
from fire_lm.measures.scoring import row_losses
from fire_lm.measures.text_choice import check_reach, read_text
from fire_lm.models import Decoder, reason_of_nan
from fire_lm.processes import agreed, failing_together, say, say_once
from fire_lm.results import PositionLoss, ScoredText, SweepRow, merge_table, read_own, scored_text
from fire_lm.results.estimators import mean_and_error
from fire_lm.results.scored_text import FILE as TEXTS_FILE
from fire_lm.results.scored_text import UNKNOWN

FILE, POSITIONS_FILE = "length_sweep.csv", "position_losses.csv"

# The values in a row of results at a length for which there is no text.
NO_NUMBERS = (math.nan, math.nan, math.nan, math.nan)


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """A new row of results, with the record of its text and any losses by position.

    The fields are written to separate files in the order in which they are declared. A row of
    results therefore never lacks its text or its losses by position, even if the process is killed
    between two writes.
    """

    text: ScoredText | None
    positions: list[PositionLoss]
    row: SweepRow


@dataclasses.dataclass(frozen=True)
class LengthSweep(Measure):
    """The losses of a model by length (`length_sweep` in gin).

    Attributes:
      model: The model as it was trained, with any changes that apply only at evaluation.
      encoding: The value of the macro ENCODING, which counts as used because it is bound here.
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

    name = "length_sweep"
    table = FILE
    Row = SweepRow
    resumes = True

    def __post_init__(self) -> None:
        check_scoring(**{name: getattr(self, name) for name in CHECKED})

    @property
    def in_order(self) -> tuple[int, ...]:
        """The distinct lengths in ascending order."""
        return tuple(sorted(set(self.lengths)))

    def readable_lengths(self, run: str) -> tuple[int, ...]:
        """Return the lengths that the model can read, and report the other lengths.

        This method does not read any text.

        Args:
          run: The name of the run in messages.

        Raises:
          UserError: A length exceeds a row of text or is incompatible with a protocol, or the model
            can read none of the lengths, or no packed rows.
        """
        check_reach(self.in_order, self.tokens, self.data)
        readable = readable_lengths(self.model, {n: n for n in self.in_order}, run)
        check_rows(self.model, self.data, readable[-1], run)
        if self.mesh.sequence > 1:
            self.model.check_slices(self.mesh.sequence)
        for length in readable:
            sharding.check_slices(length, max(1, self.mesh.sequence))
            for protocol in self.protocols:
                windows(protocol, length, length, self.stride)
        return readable

    def identity(self, run_model: RunModel) -> Any:
        return {name: getattr(self, name) for name in _SCORING}

    def check(self, run_model: RunModel) -> None:
        """Check the lengths, and the split if splits can be read quickly; see `Measure.check`."""
        for part in self.data.parts:
            if (splits := part.quick_splits()) is not None and self.split not in splits:
                raise UserError(
                    f"{part.title} has no split {self.split!r}, only {', '.join(splits)}: set "
                    "length_sweep.split to one of them"
                )
        check_reach(self.in_order, self.tokens, self.data)

    def recorded(self) -> dict[str, str]:
        return {}  # the keys of the rows contain all settings

    def clash(self, run_model: RunModel, other: Self) -> str:
        """Say whether the two settings score different tokens under the same name."""
        names = [
            {(part.label(), part.construction) for part in one.data.parts} for one in (self, other)
        ]
        if self.split != other.split or not (both := names[0] & names[1]):
            return ""
        if self.data != other.data:
            return (
                f"scores another text that is also called {min(both)[0]}: the rows of the two "
                "texts could not be distinguished\n"
                "give the data sets different names (fire-lm corpus --name=NAME)"
            )
        if self.tokens != other.tokens:
            return (
                f"scores a different number of tokens of {min(both)[0]}: the rows could not be "
                "compared\nuse the same length_sweep.tokens in all settings"
            )
        return ""

    def plan(self, run_model: RunModel, step: int) -> list[Cell]:
        """Return one cell for all lengths, because they share their text.

        Its claim contains a hash of the data.
        """
        digest = hashlib.sha256(repr([self.data, self.split]).encode()).hexdigest()[:8]
        claim = f"{step}-{run_model.variant or 'plain'}-{digest}"
        return [Cell(run_model, step, (digest,), claim)]

    def run(self, cell: Cell, params: Callable[[], Any], mesh: Mesh) -> Iterator[SweepResult]:
        """Yield each missing row, with its text and its losses by position if these are missing."""
        return self.missing_results(cell, known_in(cell.run_model), params, mesh)

    def missing_results(
        self, cell: Cell, known: Known, params: Callable[[], Any], mesh: Mesh
    ) -> Iterator[SweepResult]:
        """Yield the results that `known` lacks.

        Raises:
          UserError: The text is too short for all lengths, or differs from the text of existing
            rows.
          RunFailed: The checkpoint is damaged, or a loss is not finite.
        """
        run, lengths = cell.run_model.run, self.in_order
        with failing_together():
            readable = self.readable_lengths(run)
        model = self.model.clone(activation_sharding=sharding.of_activations(mesh))
        due = []
        for part in self.data.parts:
            label = part.label()
            first_columns = (*cell.columns, label, self.split, self.data.construction)
            with failing_together():
                text = read_text(part, label, lengths, self.tokens, self.split)
            how = (self.protocols, readable, self.stride, self.position_bins)
            due.append((text, missing(text, first_columns, *how, known)))
        for text, of_text in due:  # all texts have been checked against existing rows by now
            for measurement in of_text:
                if measurement.laid is None:
                    yield SweepResult(None, [], measurement.row(NO_NUMBERS))
                    continue
                if measurement.key in known.rows:
                    say(
                        f"{run}@{cell.step} at length {measurement.length} is scored again to "
                        "write position_losses.csv"
                    )
                bins, batch = measurement.bins or 1, self.tokens_per_batch
                nll_RP = row_losses(model, params(), text, measurement.laid, batch, mesh, run, bins)
                with failing_together():
                    result = sweep_result(measurement, text, nll_RP, model, params())
                yield result

    def write(self, cell: Cell, results: Sequence[SweepResult], still_ours: StillOurs) -> None:
        for result in results:
            write_result(cell.workdir, result, still_ours)

    def plan_text(self, run_model: RunModel, step: int, also: str) -> str:
        self.readable_lengths(run_model.run)
        place = f"{run_model.workdir}@{step} at {self.in_order}"
        return place + f" also {also}" * bool(also)


# The settings that, together with the model, determine the rows.
_SCORING = ("data", "split", "lengths", "protocols", "stride", "tokens")
# The settings that `check_scoring` checks.
CHECKED = ("lengths", "tokens", "tokens_per_batch", "protocols", "stride", "position_bins")


def sweep_result(
    measurement: Measurement, text: ScoringText, nll_RP: np.ndarray, model: Decoder, params: Any
) -> SweepResult:
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
        by_position = position_losses(measurement.positions_key, nll_RP, tokens_RP)
    return SweepResult(scored_text(row, measurement.text, tokens_R, nll_R), by_position, row)


def known_in(run_model: RunModel) -> Known:
    """Return the existing rows of a run, with the texts on which they were measured.

    In a job of several processes, every process returns the rows that process 0 has read.
    """
    with failing_together():
        own = read_own(run_model.workdir, run_model.encoding)
    if own.problem:
        say_once(own.problem)
    of_positions = own.texts.of_all_positions(own.positions)
    rows = [SweepRow(*row) for row in agreed([dataclasses.astuple(row) for row in own.losses])]
    of_rows = agreed(list(own.texts.of_rows(rows).items()))
    return Known(
        rows={row.key: row for row in rows},
        texts={tuple(key): text for key, text in of_rows},
        positions={tuple(key): text for key, text in agreed(list(of_positions.items()))},
    )


def write_result(workdir: epath.Path, result: SweepResult, still_ours: StillOurs) -> None:
    """Write the record of a row's text, then the row's losses by position, and then the row.

    A record applies to the row with the same key and loss. If a sweep is killed before it writes
    the row, its record therefore applies to no row. The record of an existing row is kept.

    Raises:
      RunFailed: Meanwhile, another sweep has scored a different text with the same name.
    """
    if (line := result.text) is not None:
        own = read_own(workdir, line.encoding)
        for row in own.losses:
            same_name = row.key[4:8] == line.key[4:8]
            if same_name and own.texts.of(row) not in (UNKNOWN, line.text):
                raise RunFailed(
                    f"another sweep of {workdir} has scored another text of the same name\n"
                    "run both sweeps with the same length_sweep.tokens and data"
                )
        if not any(row.key == line.key and own.texts.of(row) for row in own.losses):
            merge_table(workdir / TEXTS_FILE, ScoredText, [line], replace=True)
    still_ours()
    merge_table(workdir / POSITIONS_FILE, PositionLoss, result.positions)
    merge_table(workdir / FILE, SweepRow, [result.row])


def check_scoring(
    lengths: tuple[int, ...], protocols: tuple[str, ...], position_bins: int, **counts: int
) -> None:
    """Raise UserError if a setting is invalid for every model and text."""
    if not lengths or min(lengths) < 2:
        raise UserError(f"EVAL_LENGTHS is {lengths}: set lengths of 2 tokens or more")
    check_least("length_sweep", 1, **counts)
    check_least("length_sweep", 0, position_bins=position_bins)
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
