"""The model sizes of the paper (Table 8) and a tiny size for CPUs, as plain Python.

Each size is a function whose default arguments are the preset. Gin can therefore select a size
(`@size_125m()`) and override a field (`size_125m.num_layers = 6`), and code without gin can call
the function.
"""

from __future__ import annotations

import dataclasses

from fire_lm.errors import UserError

_MOST = 2**24  # the limit of one dimension, so that a typo is reported immediately


@dataclasses.dataclass(frozen=True)
class ModelSize:
    """The shape of a decoder, and the standard deviation of its initial weights.

    Attributes:
      num_layers: L, the number of layers.
      hidden_size: D, the width of the embeddings and the residual stream.
      num_heads: N, the number of attention heads.
      head_dim: H, the width of one head.
      mlp_size: F, the width of the MLP's hidden layer.
      init_std: The standard deviation of the initial weights.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    head_dim: int
    mlp_size: int
    init_std: float

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            check_size(name, value)


def check_size(name: str, value: float) -> None:
    if value <= 0:
        raise UserError(f"the model's {name} is {value}: it must be positive")
    if value > _MOST:
        raise UserError(f"the model's {name} is {value}: it must be {_MOST} or less")


def size_tiny(
    num_layers: int = 3,
    hidden_size: int = 96,
    num_heads: int = 3,
    head_dim: int = 32,
    mlp_size: int = 384,
    init_std: float = 0.06,
) -> ModelSize:
    """Return the size of a model with 0.34M parameters without the embedding.

    Such a model can rank encodings on a CPU within minutes. The default `init_std` is approximately
    the 0.02 of GPT-3 small times sqrt(768 / 96), which gives the output of a layer the same scale
    as in GPT-3 small.
    """
    return ModelSize(num_layers, hidden_size, num_heads, head_dim, mlp_size, init_std)


def size_125m(
    num_layers: int = 12,
    hidden_size: int = 768,
    num_heads: int = 12,
    head_dim: int = 64,
    mlp_size: int = 3072,
    init_std: float = 0.02,
) -> ModelSize:
    """Return the size of GPT-3 small, which has 85.1M parameters without the embedding."""
    return ModelSize(num_layers, hidden_size, num_heads, head_dim, mlp_size, init_std)


def size_350m(
    num_layers: int = 24,
    hidden_size: int = 1024,
    num_heads: int = 16,
    head_dim: int = 64,
    mlp_size: int = 4096,
    init_std: float = 0.02,
) -> ModelSize:
    """Return the size of GPT-3 medium, which has 302.3M parameters without the embedding.

    Table 8 reports the hidden size 768, but only 1024 = 16 heads x 64 gives the 350M parameters
    that the name of the model states.
    """
    return ModelSize(num_layers, hidden_size, num_heads, head_dim, mlp_size, init_std)
