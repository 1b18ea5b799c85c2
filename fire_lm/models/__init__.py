"""Decoder models; load with jax and flax alone."""

from fire_lm.models.decoder import Decoder, build_decoder
from fire_lm.models.loss import token_losses
from fire_lm.models.sizes import ModelSize, size_125m, size_350m, size_tiny

__all__ = [
    "Decoder",
    "ModelSize",
    "build_decoder",
    "size_125m",
    "size_350m",
    "size_tiny",
    "token_losses",
]
