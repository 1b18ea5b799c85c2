"""Text generation: greedy, by sampling or by beam search; importing it needs JAX and Flax alone."""

from fire_lm.generation.generate import Generated, generate
from fire_lm.generation.methods import Beam, Greedy, Method, Sample

__all__ = ["Beam", "Generated", "Greedy", "Method", "Sample", "generate"]
