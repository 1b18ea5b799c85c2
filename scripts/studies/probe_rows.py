"""The tables in docs/evidence/drift_probes."""

from __future__ import annotations

import dataclasses

from command import EVIDENCE

FOLDER = EVIDENCE / "drift_probes"
HEADS, PARTS, CURVES = "heads.csv", "parts.csv", "curves.csv"


@dataclasses.dataclass(frozen=True)
class HeadRow:
    """A head of a model, at a length.

    Attributes:
      variant: "frozen" for FIRE with the frozen normaliser at evaluation, or "".
      tokens: The number of tokens seen in training.
      c: |c| of psi; NaN for other encodings than FIRE.
      L: |L|; NaN likewise.
      range: The largest minus the smallest bias of the query `length - 1`.
      peak: The distance, a real number, at which the bias is largest.
      lead: The bias at the whole distance that leads at the training length, minus the largest bias
        at any other whole distance.
      stretch: psi(length - 1) / psi(T - 1), with FIRE's threshold; 1 without FIRE's normaliser.
      entropy: The entropy of the attention in nats.
      at_peak: The attention to the whole distance that leads at the training length.
      beyond: The attention to distances of the training length or more.
    """

    run: str
    encoding: str
    variant: str
    tokens: int
    layer: int
    head: int
    length: int
    c: float
    L: float
    range: float
    peak: float
    lead: float
    stretch: float
    entropy: float
    at_peak: float
    beyond: float


@dataclasses.dataclass(frozen=True)
class PartRow:
    """The loss of FIRE with its bias exchanged in parts, in nats per token.

    Attributes:
      near: The bias of keys at distances below the training length: "fire" or "frozen".
      far: The bias of all other keys, likewise.
    """

    run: str
    tokens: int
    near: str
    far: str
    length: int
    loss: float


@dataclasses.dataclass(frozen=True)
class CurveRow:
    """The bias of one head of FIRE for the query `length - 1`, at a distance near to it."""

    run: str
    tokens: int
    layer: int
    head: int
    length: int
    distance: float
    bias: float
