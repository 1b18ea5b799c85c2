"""The estimate of a compiled program on a slice: memory, collectives and time.

The time is an estimate, not a measurement. It is the sum of the compiler's cycles at the chip's
clock rate, the cycles of our kernels according to their schedules, and the times of collectives at
the rate of the links along the network axes that they use. A collective overlaps other operations
only if the compiler has fused it with them, and then for at most the time of these operations.
Times that the compiler omits (waits for memory in kernels, the input, the host) are also omitted.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from fire_lm.errors import FireLMError
from fire_lm.hardware.slices import Chip, Slice
from fire_lm.preflight.hlo import Collective, Instruction, Program
from fire_lm.preflight.time_by_module import KERNELS, add, by_part


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """The seconds that a program, or one iteration of a loop in it, takes on one chip.

    Attributes:
      collectives: For each kind of collective, the number of operations and the total bytes of
        their full arrays (see `Collective`).
      links: The seconds of all collectives.
      overlapped: The part of `links` during which the chip also runs other operations.
      parts: For each part of the model, the forward and the backward seconds of all other
        instructions.
      untimed: The reason why the time is not estimated, or "" if it is estimated.
    """

    collectives: dict[str, tuple[int, int]]
    links: float
    overlapped: float
    parts: dict[str, tuple[float, float]]
    untimed: str = ""

    @property
    def kernels(self) -> float:
        """The seconds of our Pallas kernels."""
        return sum(self.parts.get(KERNELS, ()))

    @property
    def xla(self) -> float:
        """The seconds of the instructions that are neither collectives nor our Pallas kernels."""
        return sum(map(sum, self.parts.values())) - self.kernels

    @property
    def seconds(self) -> float:
        """The total seconds, or NaN if the time is not estimated."""
        if self.untimed:
            return math.nan
        return self.xla + self.kernels + self.links - self.overlapped


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate(Costs):
    """The bytes and seconds of a program on one chip.

    Attributes:
      arguments, temporary, peak: The bytes of the arguments, of temporary arrays, and of the peak
        that the compiler reports.
      code: The bytes of the program itself and of results that do not reuse an argument's memory.
      usable: The memory of a chip that a program can use.
      compile_seconds: The compile time on this machine.
    """

    arguments: int
    temporary: int
    code: int
    peak: int
    usable: float
    compile_seconds: float

    @property
    def memory(self) -> int:
        """The bytes of arguments, which are live throughout, plus the peak of all other memory."""
        return self.arguments + self.temporary + self.code


@dataclasses.dataclass(frozen=True)
class Generation:
    """The cost of generation on one chip.

    Attributes:
      prompts: A description of the prompts.
      program: The estimate for the prefill and all new tokens.
      cache: The bytes of keys and values on a chip.
      parameters: The bytes of parameters on a chip, in the compute dtype.
    """

    prompts: str
    program: Estimate
    token: Costs
    cache: int
    parameters: int


def estimate(
    compiled: Any,
    where: Slice,
    devices: Sequence[Any],
    compile_seconds: float,
    kernel_cycles: Callable[[str, Sequence[str]], float],
) -> Estimate:
    """Estimate the cost of a program from the compiler's reports and schedules.

    Args:
      compiled: A `jax.stages.Compiled` for devices of `where`.
      devices: The devices of the mesh, in the order of the mesh.
      kernel_cycles: A function that returns the cycles of one run of a kernel on one core. Its
        arguments are the name of the kernel and the names of all instructions that run the same
        code, because the compiler schedules identical code only once.
    """
    memory = compiled.memory_analysis()
    new_outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Estimate(
        **vars(costs(compiled.as_text(), where, devices, kernel_cycles)),
        arguments=memory.argument_size_in_bytes,
        temporary=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes + new_outputs,
        peak=memory.peak_memory_in_bytes,
        usable=where.chip.usable_bytes,
        compile_seconds=compile_seconds,
    )


def costs(
    text: str,
    where: Slice,
    devices: Sequence[Any],
    kernel_cycles: Callable[[str, Sequence[str]], float],
    loop: str = "",
) -> Costs:
    """Return the costs of a program or, given `loop`, of one iteration of that loop.

    `loop` is the `jax.named_scope` of the loop, or "".
    """
    collectives: dict[str, tuple[int, int]] = {}
    links, overlapped, parts, untimed = 0.0, 0.0, dict[str, tuple[float, float]](), ""
    try:
        program = Program(text)
        if loop:
            program.enter(loop)
        for found in program.collectives():
            number, size = collectives.get(found.kind, (0, 0))
            collectives[found.kind] = number + found.times, size + found.times * found.bytes
            seconds = seconds_of(found, where, devices)
            links += found.times * seconds
            overlapped += found.times * min(seconds, found.beside / where.chip.clock)
        parts = seconds_by_part(program, where.chip, kernel_cycles)
    except FireLMError as error:  # the program is valid, and its memory is known
        untimed = str(error)
    return Costs(
        collectives=dict(sorted(collectives.items())),
        links=links,
        overlapped=overlapped,
        parts=parts,
        untimed=untimed,
    )


def seconds_by_part(
    program: Program, chip: Chip, kernel_cycles: Callable[[str, Sequence[str]], float]
) -> dict[str, tuple[float, float]]:
    """Return the forward and the backward seconds of each part of the model.

    Collectives are excluded.
    """
    runs = program.runs()
    parts = by_part(runs)
    alike: dict[str, list[Instruction]] = collections.defaultdict(list)
    for run in runs:
        if run.instruction.kernel:
            alike[run.instruction.kernel_code].extend([run.instruction] * run.times)
    for same in alike.values():
        cycles = kernel_cycles(same[0].kernel, sorted({each.name for each in same}))
        add(parts, KERNELS, same[0].source, len(same) * cycles)
    return {
        name: (forward / chip.clock, backward / chip.clock)
        for name, (forward, backward) in parts.items()
    }


def seconds_of(collective: Collective, where: Slice, devices: Sequence[Any]) -> float:
    """Return the seconds that a collective takes.

    Within a slice, a gather or scatter sends the parts of all other chips once; a sum sends these
    parts twice. `devices` are those of the mesh, in its order.
    """
    chip = where.chip
    group = [devices[index] for index in collective.group]
    if collective.kind == "send" or len({getattr(d, "slice_index", 0) for d in group}) > 1:
        return collective.bytes / chip.slice_bytes
    one_link = chip.link_bytes / (2 * len(where.shape))
    if collective.kind == "collective-permute":
        return collective.bytes / one_link
    passes = 2 if collective.kind == "all-reduce" else 1
    others = 1 - 1 / max(1, len(group))
    links = links_of([device.coords for device in group], where.shape)
    return passes * others * collective.bytes / (one_link * links)


def links_of(places: Sequence[Sequence[int]], shape: Sequence[int]) -> int:
    """Return the number of links (at least 1) of a chip that a group at `places` can use.

    Along each axis of the network on which the group's places differ, the chip can use two links if
    the group fills the axis and the axis wraps around; otherwise, it can use one link. In a slice
    of v4 or v5p, all axes wrap around if the sizes of all axes are multiples of 4; in a slice of
    v5e or v6e, axes of size 16 do.
    """
    in_space = len(shape) == 3
    links = 0
    for axis, size in enumerate(shape):
        closed = all(each % 4 == 0 for each in shape) if in_space else size == 16
        extent = len({place[axis] for place in places})
        if extent > 1:
            links += 2 if extent == size and closed else 1
    return max(1, links)
