"""Accuracy and loss of a masked language model on hidden tokens, by the length of its input.

The text is read in rows as long as the budget allows, and the rows are hidden once. An input of n
tokens is then an n-th part of a row, so the same tokens are hidden at every length, behind the same
masks.

Shapes: R rows of text, B inputs, T tokens of an input, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fire_lm.data import MaskedText
from fire_lm.data.kinds.masked_text import masked
from fire_lm.errors import UserError
from fire_lm.measures.base import Cell, Evaluated, Measure
from fire_lm.measures.scoring import run_fitting, sequences_at_a_time
from fire_lm.measures.text_choice import check_reach, read_text
from fire_lm.models import Decoder, check_token_ids, segment_positions
from fire_lm.results import Keyed


@dataclasses.dataclass(frozen=True)
class MaskedAccuracyRow(Keyed):
    """A row of measures/masked_accuracy.csv.

    Attributes:
      run, encoding, variant, step: See `fire_lm.results`.
      text: The split, its number of tokens, and the seed of the choice of hidden tokens.
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

    def __post_init__(self) -> None:
        for length in self.lengths:
            if length < 1 or length & (length - 1):
                raise UserError(
                    f"MaskedAccuracy.lengths has {length}: it must be a power of two, so that "
                    "inputs of all lengths divide the same rows"
                )

    def check(self, evaluated: Evaluated) -> None:
        data = evaluated.data
        if not isinstance(data, MaskedText):
            raise UserError(f"{evaluated.workdir} was not trained on masked text")
        if len(data.text.parts) > 1:
            raise UserError(f"{evaluated.workdir} was trained on several texts: score runs on one")
        check_reach(self.lengths, self.tokens, data.text, type(self).__name__)
        for length in self.lengths:
            for encoding in evaluated.model.encodings:
                encoding.check_length(evaluated.model.resampling.largest(length), length)

    def plan(self, evaluated: Evaluated, step: int) -> list[Cell]:
        text = f"{self.split}, {self.tokens} tokens, seed {self.seed}"
        return [self.cell(evaluated, step, text, length) for length in self.lengths]

    def run(self, cell: Cell, params: Callable[[], Any], mesh: Mesh) -> Iterator[MaskedAccuracyRow]:
        model, data, (_, length) = cell.evaluated.model, cell.evaluated.data, cell.key
        text = read_text(
            *(data.text, data.title, self.lengths, self.tokens, self.split, type(self).__name__)
        )
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
        arrays = [x.reshape(-1, length) for x in (text.targets, inputs, chosen)]
        documents = text.segment_ids
        if documents is None and not text.weights.all():
            documents = (text.weights != 0).astype(np.int32)  # no token sees padding
        if documents is not None:
            arrays.append(documents.reshape(-1, length))
        batch_size = sequences_at_a_time(length, self.tokens_per_batch, mesh)
        program = _scorer(model, mesh)
        sums_B2 = run_fitting(
            program, params(), arrays, batch_size, mesh, cell.evaluated.run, length
        )
        sums_R2 = sums_B2.reshape(rows, -1, 2).sum(axis=1)
        count_R = chosen.sum(axis=1)
        for quantity, sum_R in (("accuracy", 100 * sums_R2[:, 0]), ("loss", sums_R2[:, 1])):
            value, stderr = ratio(sum_R, count_R)
            fields: tuple[Any, ...] = (*cell.place, *cell.key, quantity, value, stderr)
            yield MaskedAccuracyRow(*fields)


def ratio(sum_R: np.ndarray, count_R: np.ndarray) -> tuple[float, float]:
    """Return the mean of summed values per counted token, and its standard error over rows.

    The error is that of a ratio estimator (Cochran, 1977, Eq. 2.46, without the correction for a
    finite population).
    """
    mean = sum_R.sum() / count_R.sum()
    rest_R = sum_R - mean * count_R
    error = np.std(rest_R, ddof=1) / np.mean(count_R) / len(sum_R) ** 0.5 if len(sum_R) > 1 else 0.0
    return float(mean), float(error)


@functools.lru_cache(maxsize=64)
def _scorer(model: Decoder, mesh: Mesh) -> jax.stages.Wrapped:
    """Return a jitted function of parameters, targets, inputs, chosen and, if packed, segments.

    It returns, for each input, the number of hidden tokens that the model finds and their summed
    loss in nats, `[B, 2]`.
    """
    model = model.clone(scan_layers=True)

    @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, PartitionSpec()))
    def sums(
        params: Any,
        target_BT: jax.Array,
        input_BT: jax.Array,
        chosen_BT: jax.Array,
        *segments: jax.Array,
    ) -> jax.Array:
        pos_BT = model.resampling.evaluation_positions(target_BT.shape[1])
        if segments:
            pos_BT = segment_positions(pos_BT, segments[0])
        logits_BTV = model.apply({"params": params}, input_BT, pos_BT, *segments)
        assert isinstance(logits_BTV, jax.Array)
        is_found_BT = jnp.argmax(logits_BTV, axis=-1) == target_BT
        target_BT1 = jnp.take_along_axis(logits_BTV, target_BT[..., None], axis=-1)
        nll_BT = jax.nn.logsumexp(logits_BTV, axis=-1) - target_BT1[..., 0]
        both_BT2 = jnp.stack([is_found_BT.astype(jnp.float32), nll_BT], axis=-1)
        return jnp.sum(both_BT2 * chosen_BT[..., None].astype(jnp.float32), axis=1)

    return sums
