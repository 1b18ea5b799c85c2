"""The settings of `fire-lm evaluate` for the synthetic task that a run was trained on."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal, Self

from etils import epath

from fire_lm.data import Synthetic
from fire_lm.errors import UserError
from fire_lm.evaluation import lengths_refused
from fire_lm.evaluation.length_accuracy import at_test, positions_in
from fire_lm.evaluation.readable_lengths import listed
from fire_lm.models import Decoder
from fire_lm.processes import say_once
from fire_lm.runs.input_checks import check_texts_of
from fire_lm.runs.saved import saved_experiment
from fire_lm.sweeps.settings import Setting
from fire_lm.tasks.synthetic.layouts import row_length
from fire_lm.training import check_vocabulary


@dataclasses.dataclass(frozen=True)
class AccuracySetting(Setting):
    """A way of measuring a run's accuracy on its synthetic task.

    Attributes:
      positions: The kind of positions used in the test; None selects the configured kind.
      given: The exercise lengths that replace those of the configuration, if any.
    """

    positions: Literal["plain", "even", "random"] | None = None
    given: tuple[int, ...] = ()

    @functools.cached_property
    def data(self) -> Any:
        """The data that the run was trained on."""
        return self.config.train.data

    @functools.cached_property
    def model(self) -> Decoder:
        """The model, with the positions that the test uses."""
        model: Decoder = self.config.model
        return model.clone(resampling=at_test(model.resampling, self.positions))

    def lengths(self, workdir: epath.Path) -> tuple[int, ...]:
        """Return, in ascending order, the lengths that the task supports and the model can read."""
        return lengths_taken(self.model, self.data, self._asked, str(workdir))

    @functools.cached_property
    def _asked(self) -> tuple[int, ...]:
        return self.given or tuple(sorted(set(self.config.values("length_sweep")["lengths"])))

    @property
    def rows(self) -> dict[str, Any]:
        return {
            "variant": self.variant,
            "task": self.data.task.label,
            "layout": self.data.layout,
            "positions": positions_in(self.model),
            "lengths": self._asked,
        }

    def check(self, workdir: epath.Path) -> None:
        """Raise UserError if the run has no synthetic task, or if no length can be measured."""
        if not self.data.exercises:
            raise UserError(
                f"{workdir} was trained on text, not on a synthetic task: use `fire-lm sweep`"
            )
        try:
            self._check_task(workdir)
            self._check_positions(workdir)
            check_vocabulary(self.data, self.model.vocab_size)
        except UserError as error:
            raise UserError(f"{workdir}: {error}") from None
        check_texts_of(workdir, self.config)
        if not self._asked:
            raise UserError(
                "EVAL_LENGTHS is empty: pass exercise lengths, for example --lengths=1-40"
            )
        self.lengths(workdir)

    def _check_task(self, workdir: epath.Path) -> None:
        trained: Any = saved_experiment(workdir).train.data
        for name, before, now in (
            ("task", type(trained.task).__name__, type(self.data.task).__name__),
            ("layout", trained.layout, self.data.layout),
            ("max_length", trained.max_length, self.data.max_length),
        ):
            if now != before:
                raise UserError(
                    f"Synthetic.{name} was {before} in training, but is now {now}: remove the "
                    "--gin. binding or --gin_file that changes it"
                )

    def _check_positions(self, workdir: epath.Path) -> None:
        trained, asked = (
            config.model.resampling for config in (saved_experiment(workdir), self.config)
        )
        if self.positions and asked != trained:
            raise UserError(
                f"--positions={self.positions} and the changes to {type(trained).__name__} both "
                "select the positions of the test: omit one of them"
            )

    def check_apart(self, other: Self) -> None:
        """Do nothing, because the seed is fixed, so exercises with equal names are equal."""


def lengths_taken(
    model: Decoder, data: Synthetic, lengths: Sequence[int], run: str
) -> tuple[int, ...]:
    """Return the lengths that the task supports and the model can read.

    The other lengths are reported with the reasons why they are not measured.

    Raises:
      UserError: None of the lengths can be measured.
    """
    refused: dict[int, str] = {}
    tokens: dict[int, int] = {}
    for length in lengths:
        try:
            data.task.check_length(length)
            tokens[length] = _positions_needed(data, length)
        except UserError as error:
            refused[length] = str(error)
    unread = lengths_refused(model, sorted(set(tokens.values())))
    refused |= {length: unread[count] for length, count in tokens.items() if count in unread}
    if len(refused) == len(lengths):
        raise UserError(f"{run} at length {lengths[0]}: {refused[lengths[0]]}")
    for why in dict.fromkeys(refused.values()):
        of_these = listed(n for n in lengths if refused.get(n) == why)
        say_once(f"{run} is not measured at {of_these}: {why.partition(chr(10))[0]}")
    return tuple(length for length in lengths if length not in refused)


def _positions_needed(data: Synthetic, length: int) -> int:
    """Return the number of positions for an exercise; generation gives one to the last symbol."""
    return row_length(data.task, data.layout, length) + (data.layout == "autoregressive")
