"""The settings of a finetuning run, which gin binds as `finetune`."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from fire_lm.data import TextToText
from fire_lm.training.pretraining import Pretraining


@dataclasses.dataclass(frozen=True)
class Finetuning(Pretraining):
    """The settings of a run that trains another run's parameters on a text-to-text task.

    The training loop, the training step and the other settings are those of `Pretraining`. The
    model is that of the other run, unless the configuration changes it; see
    `fire_lm.runs.inherited`.

    Attributes:
      data: The text-to-text task. Each example consists of an input and a target.
      encoding: The value of the macro ENCODING, which counts as used because it is bound here.
    """

    configurable: ClassVar[str] = "finetune"

    data: TextToText
    encoding: str = ""
