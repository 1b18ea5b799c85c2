"""Mixers: what stands between a layer's norm and its residual, and moves content between tokens."""

from fire_lm.models.mixers.attention import Attention
from fire_lm.models.mixers.base import DIAGNOSTICS, LayerSpec, Mixer, Prompts, Reading, State
from fire_lm.models.mixers.infini import InfiniAttention

__all__ = [
    "DIAGNOSTICS",
    "Attention",
    "InfiniAttention",
    "LayerSpec",
    "Mixer",
    "Prompts",
    "Reading",
    "State",
]
