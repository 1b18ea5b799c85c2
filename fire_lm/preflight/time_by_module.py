"""The cycles of each part of the model in the forward and the backward pass of a step."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fire_lm.preflight.hlo import Run

# An instruction belongs to the part whose pattern is the first to match JAX's name for the
# instruction. An example of such a name is
# jit(train_step)/transpose(jvp(Decoder))/layers/mlp_out/BTF,BTD->FD/dot_general.
_PARTS = {
    "MLP": r"/mlp_(in|out)/",
    "query, key, value": r"/(query|key|value)/",
    "attention's output": r"/attention_out/",
    "norms": r"_norm/",
    "tables and layout for kernels": r"/tpu_attention/",
    "memory of a mixer": r"/memory/",
    "encoding, residual stream": r"/layers\b",
    # A loop over layers reads parameters from stacks, and saves activations in stacks.
    "stacks of layers in a loop": r"Decoder\)*(/Decoder\.read)?/while/",
    "head and loss": r"BTV|\(summed_nll\)/\w+$|/jvp\(\)/",
    "embedding": r"Decoder",
    "optimizer, norm of gradients": r"^jit\(train_step\)/",
}


KERNELS = "attention kernels"

Parts = dict[str, tuple[float, float]]


def by_part(runs: Iterable[Run]) -> Parts:
    """Return two counts of cycles, as estimated by XLA, for each part of the model.

    The second count is for the backward pass; the first covers all other instructions.
    """
    parts: Parts = {}
    for run in runs:
        source = run.instruction.source
        name = next((n for n, pattern in _PARTS.items() if re.search(pattern, source)), "other")
        add(parts, name, source, run.times * run.instruction.cycles)
    return parts


def add(parts: Parts, name: str, source: str, cycles: float) -> None:
    """Add `cycles` to the pass indicated by `source`, which is JAX's name for the instruction."""
    forward, backward = parts.get(name, (0, 0))
    if "transpose(" in source:  # including instructions that the backward pass recomputes
        backward += cycles
    else:
        forward += cycles
    if cycles:
        parts[name] = forward, backward
