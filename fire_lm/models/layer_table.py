"""The kinds of layer of a model, one row each."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from fire_lm.attention import Mask
from fire_lm.models.decoder import Decoder
from fire_lm.models.positions_of_layers import layers_of_turn
from fire_lm.models.turns import LayerOptions, Turn
from fire_lm.positions import PositionalEncoding

COLUMNS = ("layers", "encoding", "options", "sees", "parameters each")


def layer_rows(model: Decoder, params: Any) -> list[list[str]]:
    """Return a row of `COLUMNS` for each kind of layer, or [] if all layers are plain.

    Layers of a kind differ only in their parameters. Layers are plain if they all have the same
    encoding and no options. What a kind "sees" is the receptive field of its last layer. `params`
    are the parameters of the model, or their shapes.
    """
    turns = list(model.turns) * (model.size.num_layers // len(model.turns))
    kinds = list(dict.fromkeys(model.turns))
    if len(kinds) == 1 and not described_options(kinds[0]):
        return []
    rows = []
    for kind in kinds:
        layers = [layer for layer, turn in enumerate(turns) if turn == kind]
        field = receptive_field([turn.mask for turn in turns[: layers[-1] + 1]])
        stacked = jax.tree.leaves(layers_of_turn(model, params, model.turns.index(kind)))
        rows.append(
            [
                _ranges(layers),
                described_encoding(kind.encoding),
                described_options(kind) or "-",
                "all tokens" if field is None else f"{field:,} tokens",
                f"{sum(math.prod(leaf.shape[1:]) for leaf in stacked):,}",
            ]
        )
    return rows


def described_encoding(encoding: PositionalEncoding) -> str:
    """Return the name of an encoding, with the fields that differ from their defaults."""
    changed = []
    for field in dataclasses.fields(encoding):
        value = getattr(encoding, field.name)
        is_encoding = isinstance(value, PositionalEncoding)
        if field.default is dataclasses.MISSING and not is_encoding:
            continue
        # Values may follow from the training length.
        if field.name not in encoding.length_fields and value != field.default:
            described = described_encoding(value) if is_encoding else str(value)
            changed.append(f"{field.name} {described}")
    return type(encoding).__name__.lstrip("_") + (f" ({', '.join(changed)})" if changed else "")


def described_options(turn: Turn) -> str:
    """Return the options of a turn that differ from their defaults, such as "window 64"."""
    changed = []
    for field in dataclasses.fields(LayerOptions):
        value = getattr(turn, field.name)
        if value != field.default:
            plain = isinstance(value, int | float)
            changed.append(f"{field.name} {value}" if plain else str(value))
    words = {"logit_scale": "logit scale", "log_decay": "forget gate", "mix": "mixed heads"}
    changed += [word for hook, word in words.items() if turn.encoding.acts_through(hook)]
    return ", ".join(changed)


# The largest number of tokens for which the receptive field of chunks is computed.
_MOST = 2**22


def receptive_field(masks: list[Mask]) -> int | None:
    """Return the largest number of tokens on which an output of the last layer can depend.

    The tokens are those up to and including the output's own or, in an encoder with windows, on
    both sides. The result is None if there is no limit. `masks` are those of the layers, from the
    first to the last.
    """
    if any(mask.reach is None for mask in masks):
        return None
    if not all(mask.causal for mask in masks):  # windows reach both ways, and chunks are not met
        both = [mask.window for mask in masks if mask.window is not None and mask.chunk is None]
        return 1 + 2 * sum(window - 1 for window in both) if len(both) == len(masks) else None
    chunks = [mask.chunk for mask in masks if mask.chunk is not None]
    period = math.lcm(*chunks)
    windows = sum(mask.window - 1 for mask in masks if mask.window is not None)
    least = math.ceil((windows + sum(chunks)) / period) * period  # no text begins this late
    token = least + np.arange(min(period, _MOST))
    first = token
    for mask in reversed(masks):
        seen_from = first - (mask.window - 1) if mask.window is not None else 0 * first
        if mask.chunk is not None:
            seen_from = np.maximum(seen_from, first // mask.chunk * mask.chunk)
        first = seen_from
    return int(np.max(token - first)) + 1


def _ranges(indices: list[int]) -> str:
    """Return increasing numbers as text, such as "0-2, 4"."""
    starts = [i for i in indices if i - 1 not in indices]
    ends = [i for i in indices if i + 1 not in indices]
    pairs = zip(starts, ends, strict=True)
    return ", ".join(str(start) if start == end else f"{start}-{end}" for start, end in pairs)
