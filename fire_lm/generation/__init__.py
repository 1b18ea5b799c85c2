"""Greedy generation, sampling and beam search, which require only JAX and Flax to import."""

from fire_lm.generation.generate import Generated, generate
from fire_lm.generation.methods import Beam, Greedy, Method, Sample

__all__ = ["Beam", "Generated", "Greedy", "Method", "Sample", "generate"]
