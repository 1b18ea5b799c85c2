"""The estimate of a compiled program on a slice: memory, collectives and time.

The time is the compiler's estimate, not a measurement: its cycles at the chip's clock, our kernels
by their schedules, and collectives at the rate of the links along the network axes that they use,
with nothing overlapped. What the compiler omits (waits for memory in kernels, the input, the host)
is omitted here too.
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
    """The seconds on one chip of a program, or of one iteration of a loop in it.

    Attributes:
      collectives: (number, bytes of the whole arrays), by kind.
      links: The seconds of collectives.
      parts: The (forward, backward) seconds of everything else, by part of the model.
      untimed: Why the time is not estimated; "" if it is.
    """

    collectives: dict[str, tuple[int, int]]
    links: float
    parts: dict[str, tuple[float, float]]
    untimed: str = ""

    @property
    def kernels(self) -> float:
        """The seconds of our Pallas kernels."""
        return sum(self.parts.get(KERNELS, ()))

    @property
    def xla(self) -> float:
        """The seconds of what XLA itself compiled."""
        return sum(map(sum, self.parts.values())) - self.kernels

    @property
    def seconds(self) -> float:
        """The seconds in total, or NaN if they are not estimated."""
        if self.untimed:
            return math.nan
        return self.xla + self.kernels + self.links


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate(Costs):
    """The bytes and seconds of a program on one chip.

    Attributes:
      arguments, temporary, peak: Bytes of memory.
      code: The bytes of the program itself, and of results that do not reuse arguments.
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
        """The bytes of the arguments, which live throughout, plus the peak of everything else."""
        return self.arguments + self.temporary + self.code


@dataclasses.dataclass(frozen=True)
class Generation:
    """The cost of generation on one chip.

    Attributes:
      prompts: A description of the prompts.
      program: The estimate of prefill and all new tokens.
      token: The costs of one new token.
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
    """Estimate a program from what the compiler reports and has written.

    Args:
      compiled: A `jax.stages.Compiled` for devices of `where`.
      devices: The devices of the mesh, in its order.
      kernel_cycles: Returns the cycles of one run on one core, from a kernel's name and the names
        of all instructions that run the same code, which the compiler schedules only once.
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
    """Return the costs of a program, or of one iteration of its `loop`, a `jax.named_scope`."""
    collectives: dict[str, tuple[int, int]] = {}
    links, parts, untimed = 0.0, dict[str, tuple[float, float]](), ""
    try:
        program = Program(text)
        if loop:
            program.enter(loop)
        for found in program.collectives():
            number, size = collectives.get(found.kind, (0, 0))
            collectives[found.kind] = number + found.times, size + found.times * found.bytes
            links += found.times * seconds_of(found, where, devices)
        parts = seconds_by_part(program, where.chip, kernel_cycles)
    except FireLMError as error:  # the program is valid, and its memory is known
        untimed = str(error)
    return Costs(
        collectives=dict(sorted(collectives.items())), links=links, parts=parts, untimed=untimed
    )


def seconds_by_part(
    program: Program, chip: Chip, kernel_cycles: Callable[[str, Sequence[str]], float]
) -> dict[str, tuple[float, float]]:
    """Return the (forward, backward) seconds of all instructions that are not collectives."""
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
    """Return the seconds of a collective.

    A gather or scatter sends all of an array except a chip's own part once, a sum sends it twice.

    Args:
      devices: The devices of the mesh, in its order.
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
    """Return the links of a chip that a group at `places` can use, at least one.

    There are two along an axis of the network that the group fills and that closes to a ring, and
    one along other axes. A slice of v4 or v5p closes if all its axes are multiples of 4, one of v5e
    or v6e along an axis of 16.
    """
    in_space = len(shape) == 3
    links = 0
    for axis, size in enumerate(shape):
        closed = all(each % 4 == 0 for each in shape) if in_space else size == 16
        extent = len({place[axis] for place in places})
        if extent > 1:
            links += 2 if extent == size and closed else 1
    return max(1, links)
