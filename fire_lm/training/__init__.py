"""Pretraining: the loop, the step, the optimizer, and what a run says before it starts."""

from fire_lm.training.loop import pretrain
from fire_lm.training.optimizer import AdamW
from fire_lm.training.spikes import Spikes
from fire_lm.training.watchdog import Watchdog, telling_others

__all__ = ["AdamW", "Spikes", "Watchdog", "pretrain", "telling_others"]
