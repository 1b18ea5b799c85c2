"""Text from a model: greedy, sampled, or by beam search; loads with jax and flax alone."""

from fire_lm.generation.generate import Generated, generate
from fire_lm.generation.methods import Beam, Greedy, Method, Sample

__all__ = ["Beam", "Generated", "Greedy", "Method", "Sample", "generate"]
