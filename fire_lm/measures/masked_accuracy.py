"""Accuracy and loss of a masked language model on hidden tokens, by the length of its input.

The text is read in rows as long as the budget allows, and the rows are hidden once. An input of n
tokens is then an n-th part of a row, so the same tokens are hidden at every length, behind the same
masks.

Shapes: R rows of text, B inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jax.sharding import Mesh

from fire_lm.data import MaskedText
from fire_lm.data.kinds.masked_text import USUAL_RATE, masked
from fire_lm.errors import RunFailed, UserError
from fire_lm.measures.base import Cell, Measure, RunModel, check_least
from fire_lm.measures.readable_lengths import check_rows
from fire_lm.measures.scoring import run_fitting, sequences_at_a_time, target_scorer
from fire_lm.measures.text_choice import Settings, check_reach, choose_text, read_text, text_hash
from fire_lm.models import check_token_ids, reason_of_nan
from fire_lm.results import Keyed
from fire_lm.results.estimators import mean_and_error

SETTINGS = Settings("MaskedAccuracy.tokens", "--lengths")


@dataclasses.dataclass(frozen=True)
class MaskedAccuracyRow(Keyed):
    """A row of measures/masked_accuracy.csv.

    Attributes:
      run, encoding, variant, step: See `fire_lm.results`.
      text: The text with a hash of its tokens, its split and construction, its number of tokens,
        the seed of the choice of hidden tokens, and their share unless it is 15 %.
      length: The number of tokens that the model reads at a time.
      quantity: "accuracy", the percentage of hidden tokens that the model finds, or "loss", their
        mean loss in nats.
      value, stderr: The value and its standard error over the rows of text.
    """

    last_of_key = "quantity"

    run: str
    encoding: str
    variant: str
    step: int
    text: str
    length: int
    quantity: str
    value: float
    stderr: float


@dataclasses.dataclass(frozen=True)
class MaskedAccuracy(Measure):
    """The accuracy and the loss on hidden tokens of the text that a run was trained on.

    Attributes:
      lengths: The numbers of tokens that the model reads at a time, powers of two.
      tokens: The number of tokens of text, hidden or not.
      split: The split of the text.
      seed: The seed of the choice of hidden tokens.
      tokens_per_batch: The number of tokens in a batch.
    """

    lengths: tuple[int, ...] = (64, 128, 256, 512, 1024)
    tokens: int = 131_072
    split: str = "validation"
    seed: int = 0
    tokens_per_batch: int = 8192

    name = "masked_accuracy"
    Row = MaskedAccuracyRow
    unrecorded = ("tokens", "split", "seed", "tokens_per_batch")

    def __post_init__(self) -> None:
        if not self.lengths:
            raise UserError("MaskedAccuracy.lengths is empty: set powers of two")
        check_least("MaskedAccuracy", 1, tokens=self.tokens, tokens_per_batch=self.tokens_per_batch)
        check_least("MaskedAccuracy", 0, seed=self.seed)
        for length in self.lengths:
            if length < 1 or length & (length - 1):
                raise UserError(
                    f"MaskedAccuracy.lengths has {length}: it must be a power of two, so that "
                    "inputs of all lengths divide the same rows"
                )

    def check(self, run_model: RunModel) -> None:
        data = run_model.data
        if not isinstance(data, MaskedText):
            raise UserError(f"{run_model.workdir} was not trained on masked text")
        if len(data.text.parts) > 1:
            raise UserError(f"{run_model.workdir} was trained on several texts: score runs on one")
        check_reach(self.lengths, self.tokens, data.text, SETTINGS)
        check_rows(run_model.model, data.text, max(self.lengths), str(run_model.workdir))
        for length in self.lengths:
            for encoding in run_model.model.encodings:
                encoding.check_length(run_model.model.resampling.largest(length), length)

    def plan(self, run_model: RunModel, step: int) -> list[Cell]:
        data = run_model.data
        read = text_hash(choose_text(data.text, self.tokens, self.split))
        where = f"{data.text.label()} ({read[:8]}) {self.split}, {data.text.construction}"
        text = f"{where}, {self.tokens} tokens, seed {self.seed}"
        if data.rate != USUAL_RATE:
            text += f", rate {data.rate:g}"
        return [self.cell(run_model, step, text, length) for length in self.lengths]

    def run(self, cell: Cell, params: Callable[[], Any], mesh: Mesh) -> Iterator[MaskedAccuracyRow]:
        model, data, (_, length) = cell.run_model.model, cell.run_model.data, cell.key
        text = read_text(data.text, data.title, self.lengths, self.tokens, self.split, SETTINGS)
        rows, longest = text.targets.shape
        if length > longest:
            raise UserError(
                f"the {self.split} split of {data.title} yields rows of {longest:,} tokens only: "
                f"pass --lengths up to {longest}"
            )
        hidden = [
            masked(
                targets, weights, np.random.default_rng((self.seed, row)), data.rate, data.mask_id
            )
            for row, (targets, weights) in enumerate(zip(text.targets, text.weights, strict=True))
        ]
        inputs, chosen = (np.stack(arrays) for arrays in zip(*hidden, strict=True))
        check_token_ids(inputs, model.vocab_size, "the text to score")
        arrays = [x.reshape(-1, length) for x in (inputs, text.targets, chosen)]
        documents = text.segment_ids
        if documents is None and not text.weights.all():
            documents = (text.weights != 0).astype(np.int32)  # no token sees padding
        if documents is not None:
            arrays.append(documents.reshape(-1, length))
        batch_size = sequences_at_a_time(length, self.tokens_per_batch, mesh)
        program = target_scorer(model, mesh, documents=True)
        sums_B2 = run_fitting(
            program, params(), arrays, batch_size, mesh, cell.run_model.run, length
        )
        if np.isnan(sums_B2).any():  # the most likely token would be an arbitrary one
            raise RunFailed(
                f"{cell.run_model.run}@{cell.step} at length {length}: the model returns NaN: "
                f"{reason_of_nan(model, params(), length)}",
                everywhere=True,  # all processes have the same arrays
            )
        sums_R2 = sums_B2.reshape(rows, -1, 2).sum(axis=1)
        count_R = chosen.sum(axis=1)
        for quantity, sum_R in (("accuracy", 100 * sums_R2[:, 0]), ("loss", -sums_R2[:, 1])):
            yield self.row(cell, quantity, *mean_and_error(sum_R, count_R))
