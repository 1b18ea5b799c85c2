"""NoPE: no positional encoding; order reaches the model through the causal mask alone.

Source: Kazemnejad et al., "The Impact of Positional Encoding on Length Generalization in
Transformers" (NeurIPS 2023).
"""

from __future__ import annotations

import dataclasses

from fire_lm.positions.base import PositionalEncoding


@dataclasses.dataclass(frozen=True)
class NoPE(PositionalEncoding):
    """The encoding whose hooks all have no effect. Parameters: none."""
