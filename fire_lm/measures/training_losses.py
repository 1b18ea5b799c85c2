"""Losses on held-out text while a run trains: by length, and by position at the longest length.

Shape suffixes: B = sequences, R = rows of text, P = bins of positions.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax.sharding import Mesh

from fire_lm import sharding
from fire_lm.data import ScoringText, TextSource, scoring_text
from fire_lm.errors import UserError
from fire_lm.hardware.memory import check_program
from fire_lm.measures.base import check_least
from fire_lm.measures.position_losses import number_of_bins, tokens_in_bins
from fire_lm.measures.protocols import windows
from fire_lm.measures.readable_lengths import check_positions, readable_lengths
from fire_lm.measures.scoring import abstract_params, placed_batches, scorer, sequences_at_a_time
from fire_lm.models import Decoder, check_token_ids, depends_on_length
from fire_lm.training import Pretraining


@dataclasses.dataclass(frozen=True)
class TrainingLosses:
    """A short length sweep inside the training job (`pretrain.evaluation`).

    Every `every` steps and after the last one, the same held-out tokens of the run's own data are
    scored at every length. The values are fields of the step's line in `metrics.jsonl` and scalars
    of TensorBoard: `validation/LENGTH` in nats per token, `validation_at/FIRST` for each bin of
    positions at the longest length, and `validation/effective_length`. They have too few tokens
    for a comparison of encodings, for which `fire-lm sweep` scores checkpoints.

    Attributes:
      lengths: The lengths in tokens.
      every: The number of steps between two evaluations.
      tokens: The number of tokens to score at each length, rounded up to rows of the longest one.
      tokens_per_batch: The maximum number of tokens in a forward pass.
      split: The name of the split.
      position_bins: The maximum number of bins of positions.
      margin: In nats: the effective length is the largest one up to which the loss has not risen
        by more than this above its minimum so far.
    """

    lengths: tuple[int, ...]
    every: int
    tokens: int = 2**15
    tokens_per_batch: int = 2**16
    split: str = "validation"
    position_bins: int = 10
    margin: float = 0.02

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 2:
            raise UserError(f"TrainingLosses.lengths is {self.lengths}: set 2 tokens or more")
        for name in ("every", "tokens", "tokens_per_batch", "position_bins"):
            check_least("TrainingLosses", 1, **{name: getattr(self, name)})

    def check(self, run: Pretraining) -> str:
        """Check the lengths and read the text; see `training.Evaluation`."""
        lengths, _ = self._read(run)
        return f"lengths up to {lengths[-1]} on the {self.split} split"

    def _read(self, run: Pretraining) -> tuple[tuple[int, ...], ScoringText]:
        """Return the lengths in increasing order, and the text in rows of the longest one.

        Raises:
          UserError: The run cannot be evaluated at these lengths, or its data cannot be scored.
          RunFailed: The data is damaged.
        """
        if not isinstance(run.data, TextSource) or run.data.not_text:
            raise UserError(
                f"{run.configurable}.evaluation scores text, which {run.data.title} is not: add "
                f"--gin.{run.configurable}.evaluation=None"
            )
        lengths = readable_lengths(
            run.model, {n: n for n in sorted(set(self.lengths))}, run.configurable
        )
        longest = lengths[-1]
        check_positions(run.model, run.data, longest, f"{run.configurable}.evaluation")
        for length in lengths:
            if longest % length and depends_on_length(run.model, length):
                raise UserError(
                    f"TrainingLosses.lengths is {self.lengths}: {length} must divide {longest}, "
                    "because the encoding depends on the length of the input"
                )
        rows = -(-self.tokens // longest)
        text = scoring_text(run.data, length=longest, num_sequences=rows, split=self.split)
        check_token_ids(text.targets, run.model.vocab_size, f"the {self.split} split")
        return lengths, text

    def open(self, run: Pretraining, mesh: Mesh) -> Callable[[Any], dict[str, float]]:
        """Read the text and compile all programs; see `training.Evaluation`."""
        lengths, text = self._read(run)
        longest = lengths[-1]
        bins = dict.fromkeys(lengths, 1) | {longest: number_of_bins(longest, self.position_bins)}
        evaluators = {
            length: self._evaluator(run.model, text, length, bins[length], mesh)
            for length in lengths
        }

        def losses(params: Any) -> dict[str, float]:
            values, by_length = {}, {}
            for length, evaluate in evaluators.items():
                loss_P, by_length[length] = evaluate(params)
                values[f"validation/{length}"] = by_length[length]
            width = longest // len(loss_P)
            for number, loss in enumerate(loss_P.tolist()):
                values[f"validation_at/{number * width}"] = loss
            values["validation/effective_length"] = effective_length(by_length, self.margin)
            return values

        return losses

    def _evaluator(
        self, model: Decoder, text: ScoringText, length: int, bins: int, mesh: Mesh
    ) -> Callable[[Any], tuple[np.ndarray, float]]:
        """Compile a program, and return a function of the parameters.

        The function returns the mean loss of each bin of positions, `[P]`, and of all tokens.
        """
        laid = windows("full", length, text.targets.shape[1], length)
        arrays = [laid.of(text.targets), laid.of(text.weights)]
        if text.segment_ids is not None:
            arrays.append(laid.of(text.segment_ids))
        tokens_P = tokens_in_bins(text, laid, bins).sum(axis=0)
        budget = min(self.tokens_per_batch, arrays[0].size)
        batch_size = sequences_at_a_time(length, budget, mesh)
        model = model.clone(activation_sharding=sharding.of_activations(mesh))
        placed = list(placed_batches(arrays, batch_size, mesh))
        lowered = scorer(model, length, mesh, bins).lower(abstract_params(model, mesh), *placed[0])
        program = lowered.compile()
        check_program(
            program,
            list(mesh.devices.flat),
            f"the evaluation of {batch_size} x {length} tokens",
            "lower TrainingLosses.tokens_per_batch",
        )

        def evaluate(params: Any) -> tuple[np.ndarray, float]:
            sums_BP = [np.asarray(program(params, *batch), np.float64) for batch in placed]
            nll_P = np.concatenate(sums_BP).sum(axis=0)
            return nll_P / np.maximum(tokens_P, 1), float(nll_P.sum() / tokens_P.sum())

        return evaluate


def effective_length(losses: Mapping[int, float], margin: float) -> int:
    """Return the largest length up to which the loss stays within `margin` of its minimum so far.

    `losses` is sorted by length. The result is 0 if the loss at the shortest length is NaN.
    """
    minima = itertools.accumulate(losses.values(), min)
    within = itertools.takewhile(
        lambda item: item[0][1] <= item[1] + margin, zip(losses.items(), minima, strict=True)
    )
    return max((length for (length, _), _ in within), default=0)
