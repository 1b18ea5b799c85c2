"""Greedy decoding, sampling and beam search; this package depends only on JAX and Flax."""

from fire_lm.generation.generate import Generated, generate
from fire_lm.generation.methods import Beam, Greedy, Method, Sample

__all__ = ["Beam", "Generated", "Greedy", "Method", "Sample", "generate"]
