"""What one run of a compiled program needs on a slice: memory, collectives and time.

The time is the compiler's, not measured: its cycles at the chip's clock, our kernels by their
schedules, and collectives at the rate of the links, none of it hidden behind the rest. What the
compiler leaves out (waits for memory in kernels, the input, the host) is left out here too.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from fire_lm.preflight.hlo import Collective, Instruction, Program
from fire_lm.preflight.parts import KERNELS, add, by_part
from fire_lm.tpu_topology import Chip, Slice


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Of one program on one chip; bytes and seconds.

    Attributes:
      arguments, temporary, peak: memory.
      usable: memory of a chip for a program.
      collectives: (number, bytes of the whole arrays) in one run, by kind.
      compile_seconds: on this machine.
      links: seconds of collectives.
      parts: (forward, backward) seconds of the rest, by part of the model.
    """

    arguments: int
    temporary: int
    peak: int
    usable: float
    collectives: dict[str, tuple[int, int]]
    compile_seconds: float
    links: float
    parts: dict[str, tuple[float, float]]

    @property
    def kernels(self) -> float:
        """Seconds of our Pallas kernels."""
        return sum(self.parts.get(KERNELS, ()))

    @property
    def xla(self) -> float:
        """Seconds of what XLA has made itself."""
        return sum(map(sum, self.parts.values())) - self.kernels

    @property
    def seconds(self) -> float:
        return self.xla + self.kernels + self.links

    @property
    def memory(self) -> int:
        """Arguments, which are there all the time, and what else is there at the worst."""
        return self.arguments + self.temporary


def estimate(
    compiled: Any,
    where: Slice,
    compile_seconds: float,
    kernel_cycles: Callable[[str, Sequence[str]], float],
) -> Estimate:
    """
    Args:
      compiled: `jax.stages.Compiled` for devices of `where`.
      kernel_cycles: of one run on one core, from a kernel's name and those of the instructions
        that run the very same, of which the compiler schedules one.
    """
    program = Program(compiled.as_text())
    memory = compiled.memory_analysis()
    chip = where.chip
    kinds: dict[str, tuple[int, int]] = collections.defaultdict(lambda: (0, 0))
    links = 0.0
    for found in program.collectives():
        number, size = kinds[found.kind]
        kinds[found.kind] = number + found.times, size + found.times * found.bytes
        links += found.times * seconds_of(found, chip)
    runs = program.runs()
    alike: dict[str, list[Instruction]] = collections.defaultdict(list)
    for run in runs:
        if run.instruction.kernel:
            alike[run.instruction.kernel_code].extend([run.instruction] * run.times)
    parts = by_part(runs)
    for same in alike.values():
        cycles = kernel_cycles(same[0].kernel, sorted({each.name for each in same}))
        add(parts, KERNELS, same[0].source, len(same) * cycles)
    return Estimate(
        arguments=memory.argument_size_in_bytes,
        temporary=memory.temp_size_in_bytes,
        peak=memory.peak_memory_in_bytes,
        usable=chip.usable_bytes,
        collectives=dict(sorted(kinds.items())),
        compile_seconds=compile_seconds,
        links=links,
        parts={
            name: (forward / chip.clock, backward / chip.clock)
            for name, (forward, backward) in parts.items()
        },
    )


def seconds_of(collective: Collective, chip: Chip) -> float:
    """On rings over all links of a chip: a gather or scatter sends all but the own part of an
    array once, a sum twice."""
    if collective.kind == "send":
        return collective.bytes / chip.slice_bytes
    passes = 2 if collective.kind == "all-reduce" else 1
    others = 1 - 1 / max(2, collective.devices)
    return passes * others * collective.bytes / chip.link_bytes
