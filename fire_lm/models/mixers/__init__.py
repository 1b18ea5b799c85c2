"""Mixers: what stands between a layer's norm and its residual, and moves content between tokens."""

from fire_lm.models.mixers.attention import Attention
from fire_lm.models.mixers.base import LayerSpec, Mixer, Prompts, Reading, State

__all__ = ["Attention", "LayerSpec", "Mixer", "Prompts", "Reading", "State"]
