"""NoPE: no positional encoding. The model learns about order only through the causal mask.

Source: Kazemnejad et al., "The Impact of Positional Encoding on Length Generalization in
Transformers" (NeurIPS 2023).
"""

from __future__ import annotations

import dataclasses

from fire_lm.positions.base import PositionalEncoding


@dataclasses.dataclass(frozen=True)
class NoPE(PositionalEncoding):
    """An encoding whose hooks have no effect. Parameters: none."""
