"""Pretraining and finetuning: the settings, the optimizer, the training step and the loop."""

from fire_lm.training.compile import compile_training
from fire_lm.training.description import describe
from fire_lm.training.finetuning import Finetuning
from fire_lm.training.length_schedule import in_words, trained_length
from fire_lm.training.loop import pretrain
from fire_lm.training.optax_by_name import muon_dimensions, optax_configurables
from fire_lm.training.optimizer import AdamW, decay_mask
from fire_lm.training.pretraining import Pretraining
from fire_lm.training.spikes import Spikes, stopped_at
from fire_lm.training.start import check_start, check_vocabulary, ensure_writable
from fire_lm.training.summary import model_flops_per_token
from fire_lm.training.watchdog import Watchdog, telling_others

__all__ = [
    "AdamW",
    "Finetuning",
    "Pretraining",
    "Spikes",
    "Watchdog",
    "check_start",
    "check_vocabulary",
    "compile_training",
    "decay_mask",
    "describe",
    "ensure_writable",
    "in_words",
    "model_flops_per_token",
    "muon_dimensions",
    "optax_configurables",
    "pretrain",
    "stopped_at",
    "telling_others",
    "trained_length",
]
