"""Decoders and encoders; importing this package requires only JAX and Flax."""

from fire_lm.models.build import build_decoder, build_encoder
from fire_lm.models.comparison import (
    at_longest_length,
    changes,
    encoding_names,
    lengths,
    same_meaning,
    variant,
)
from fire_lm.models.decoder import Decoder, check_decoder
from fire_lm.models.layer_attention import layer_attention, query_logits
from fire_lm.models.layer_table import COLUMNS, layer_rows
from fire_lm.models.layouts import constrain_rows
from fire_lm.models.loss import diagnosed_losses, token_losses
from fire_lm.models.mixers import Attention, InfiniAttention, Mixer
from fire_lm.models.padding import (
    depends_on_length,
    keeps_positions,
    padded_length,
    padded_positions,
    readable_length,
)
from fire_lm.models.parameter_shapes import parameter_shapes
from fire_lm.models.positions_of_layers import (
    explain_nan,
    learned_scalars_by_layer,
    position_diagnostics,
    position_layers,
    reason_of_nan,
)
from fire_lm.models.segments import keys_seen, segment_positions
from fire_lm.models.sizes import ModelSize, size_125m, size_350m, size_tiny
from fire_lm.models.token_ids import check_token_ids
from fire_lm.models.turns import Layers, Turn

__all__ = [
    "Attention",
    "Decoder",
    "InfiniAttention",
    "COLUMNS",
    "Layers",
    "Mixer",
    "ModelSize",
    "Turn",
    "at_longest_length",
    "build_decoder",
    "build_encoder",
    "changes",
    "check_decoder",
    "check_token_ids",
    "constrain_rows",
    "depends_on_length",
    "diagnosed_losses",
    "encoding_names",
    "explain_nan",
    "keeps_positions",
    "keys_seen",
    "layer_attention",
    "layer_rows",
    "lengths",
    "padded_length",
    "padded_positions",
    "parameter_shapes",
    "position_layers",
    "position_diagnostics",
    "learned_scalars_by_layer",
    "query_logits",
    "readable_length",
    "reason_of_nan",
    "same_meaning",
    "segment_positions",
    "size_125m",
    "size_350m",
    "size_tiny",
    "token_losses",
    "variant",
]
