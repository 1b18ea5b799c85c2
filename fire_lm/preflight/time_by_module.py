"""The cycles of a step by part of the model, forward and backward."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fire_lm.preflight.hlo import Run

# The first pattern found in JAX's name of an instruction decides its part; a name is, for example,
# jit(train_step)/transpose(jvp(Decoder))/layers/mlp_out/BTF,BTD->FD/dot_general.
_PARTS = {
    "MLP": r"/mlp_(in|out)/",
    "query, key, value": r"/(query|key|value)/",
    "attention's output": r"/attention_out/",
    "norms": r"_norm/",
    "tables and layout for kernels": r"/tpu_attention/",
    "encoding, residual stream": r"/layers\b",
    "head and loss": r"BTV|\(summed_nll\)/\w+$|/jvp\(\)/",
    "embedding": r"Decoder",
    "optimizer, norm of gradients": r"^jit\(train_step\)/",
}


KERNELS = "attention kernels"

Parts = dict[str, tuple[float, float]]


def by_part(runs: Iterable[Run]) -> Parts:
    """Return XLA's cycles by part of the model: (forward and neither pass, backward)."""
    parts: Parts = {}
    for run in runs:
        source = run.instruction.source
        name = next((n for n, pattern in _PARTS.items() if re.search(pattern, source)), "other")
        add(parts, name, source, run.times * run.instruction.cycles)
    return parts


def add(parts: Parts, name: str, source: str, cycles: float) -> None:
    """Add `cycles` to the pass that `source`, JAX's name of the instruction, indicates."""
    forward, backward = parts.get(name, (0, 0))
    if "transpose(" in source:  # including what the backward pass recomputes
        backward += cycles
    else:
        forward += cycles
    if cycles:
        parts[name] = forward, backward
