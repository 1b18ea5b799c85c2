"""The settings of a finetuning run as a value: gin's `finetune`."""

from __future__ import annotations

import dataclasses

from fire_lm.data import TextToText
from fire_lm.training.pretraining import Pretraining


@dataclasses.dataclass(frozen=True)
class Finetuning(Pretraining):
    """A run that trains on examples of an input and its target, from the parameters of another.

    The loop, the step and the settings are those of `Pretraining`; its model is the other run's,
    unless the configuration changes it (`fire_lm.runs.inherited`).

    Attributes:
      encoding: the name of the positional encoding in tables.
    """

    data: TextToText
    encoding: str = ""
