"""The instructions of an optimised TPU program: cycles, kernels and collectives.

XLA's own analysis counts the body of a loop over layers only once, and omits Pallas kernels and
collectives. This module traverses the text of the program instead: a `while` runs its body as often
as its condition states, a `conditional` runs one branch, and each instruction states the cycles
that the compiler estimates.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fire_lm.errors import RunFailed

COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"),
    "send",  # a transfer between slices over the network of the hosts
)
_BITS = {"pred": 8}  # the names of other types end in their number of bits

_COMPUTATION = re.compile(r"^(ENTRY )?%([\w.\-<>]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.\-<>]+) = (.*)$")
_OPCODE = re.compile(r"^([\w\-]+)\(")
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction of the form `%name = shape opcode(operands), attributes`."""

    name: str
    shape: str
    opcode: str
    rest: str

    @property
    def cycles(self) -> int:
        """The compiler's estimate of the instruction's cycles, or 0 if there is no estimate."""
        return int(_group(r'"estimated_cycles":"(\d+)"', self.rest) or 0)

    @property
    def channel(self) -> int:
        """The number that all parts of a collective share, or -1 for any other instruction."""
        return int(_group(r"channel_id=(\d+)", self.rest) or -1)

    @property
    def source(self) -> str:
        """JAX's name for the operation from which the compiler derived the instruction."""
        return _group(r'op_name="([^"]*)"', self.rest)

    @property
    def called(self) -> str:
        """The computation that a call, a fusion or an asynchronous operation runs, or ""."""
        return _group(r"\b(?:calls|to_apply)=%([\w.\-<>]+)", self.rest)

    @property
    def kernel(self) -> str:
        """The name of a Pallas kernel without its number; "" for any other instruction."""
        is_kernel = 'custom_call_target="tpu_custom_call"' in self.rest
        return re.sub(r"\.\d+$", "", self.name) if is_kernel else ""

    @property
    def kernel_code(self) -> str:
        """The code of a Pallas kernel, by which kernels that share a schedule are recognised."""
        return self.rest.partition('"custom_call_config":{"body":"')[2].partition('"')[0]


@dataclasses.dataclass(frozen=True)
class Run:
    """An instruction, and the number of times that one run of the program executes it."""

    instruction: Instruction
    times: int


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation.

    Attributes:
      kind: One of COLLECTIVES.
      bytes: The bytes of the full array on one device, after a gather or before a scatter.
      group: The mesh indices of the devices in the collective's first group.
      times: The number of times that one run of the program executes the collective.
      beside: The cycles of the other operations that the compiler runs during each execution.
    """

    kind: str
    bytes: int
    group: tuple[int, ...]
    times: int
    beside: int = 0


class Program:
    """A compiled program, parsed from its text (`compiled.as_text()`)."""

    def __init__(self, text: str):
        self.computations, self.entry = parse(text)
        self.partitions = int(_group(r"num_partitions=(\d+)", text.partition("\n")[0]) or 1)

    def runs(self) -> list[Run]:
        """Return the instructions outside fusions, each with the number of times that it runs.

        Of the branches of a conditional, only `likely_branch` is included.
        """
        return list(self._walk(self.entry, 1))

    def enter(self, scope: str) -> None:
        """Reduce the program to one iteration (condition and body) of a loop.

        `scope` is the `jax.named_scope` of the loop.

        Raises:
          RunFailed: There is no such loop, or more than one.
        """
        loops = [
            each.instruction.rest
            for each in self.runs()
            if each.instruction.opcode == "while"
            and re.search(rf"(?:^|/){scope}/while$", each.instruction.source)
        ]
        if len(loops) != 1:
            raise RunFailed(
                f"expected one loop named {scope} in the program, but found {len(loops)}"
            )
        called = re.findall(r"\b(?:condition|body)=%([\w.\-<>]+)", loops[0])
        self.entry = f"one round of {scope}"
        self.computations[self.entry] = [
            instruction for name in called for instruction in self.computations[name]
        ]

    def collectives(self) -> list[Collective]:
        """Return the collectives, including fused ones.

        An asynchronous collective is counted only where it starts.
        """
        runs = self.runs()
        beside = collections.Counter[int]()
        for instruction in (run.instruction for run in runs):
            if _overlaps(instruction):
                channels = {inner.channel for inner in self._computation(instruction)} - {-1}
                for channel in channels:  # Several collectives share the time.
                    beside[channel] += instruction.cycles // len(channels)
        return [
            found for run in runs for found in self._collectives(run.instruction, run.times, beside)
        ]

    def _computation(self, fusion: Instruction) -> Sequence[Instruction]:
        return self.computations.get(fusion.called, ())

    def _collectives(
        self, instruction: Instruction, times: int, beside: Mapping[int, int]
    ) -> Iterator[Collective]:
        kind = instruction.opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            arrays = array_bytes(instruction.shape)
            if instruction.opcode == "all-gather-start":  # operands, then results
                arrays = arrays[len(arrays) // 2 :]
            elif kind in ("collective-permute", "send"):  # operand, result, flags
                arrays = [max(arrays, default=0)]
            group = first_group(instruction.rest, self.partitions)
            size = sum(arrays) * (len(group) if kind == "reduce-scatter" else 1)
            yield Collective(kind, size, group, times, beside.get(instruction.channel, 0))
        elif instruction.opcode == "fusion":
            # A collective that overlaps other fusions appears in each of these fusions and where it
            # starts; only the start counts.
            if _overlaps(instruction) or "collective-done" in instruction.name:
                return
            for inner in self._computation(instruction):
                for found in self._collectives(inner, times, beside):
                    if instruction.called.startswith("all-reduce-scatter"):
                        found = dataclasses.replace(found, kind="reduce-scatter")
                    yield found

    def _walk(self, name: str, times: int) -> Iterator[Run]:
        for instruction in self.computations[name]:
            yield Run(instruction, times)
            if instruction.opcode == "while":
                body, condition = (
                    _group(rf"\b{part}=%([\w.\-<>]+)", instruction.rest)
                    for part in ("body", "condition")
                )
                rounds = times * self.trips(condition)
                yield from self._walk(body, rounds)
                yield from self._walk(condition, rounds)
            elif instruction.opcode == "conditional":
                yield from self._walk(self.likely_branch(instruction), times)
            elif instruction.opcode in ("call", "async-start"):
                if instruction.called in self.computations:
                    yield from self._walk(instruction.called, times)

    def trips(self, condition: str) -> int:
        """Return the number of iterations of a loop from 0 to a constant.

        `lax.scan` and `lax.map` compile to such loops.

        Raises:
          RunFailed: The loop has another form.
        """
        lines = self.computations[condition]
        limits = [
            int(found.group(1))
            for line in lines
            if line.opcode == "constant" and (found := re.match(r"constant\((\d+)\)", line.rest))
        ]
        less = any("direction=LT" in line.rest for line in lines)
        if len(limits) != 1 or not less:
            raise RunFailed(
                f"the number of iterations of a loop is unknown (condition: {condition})"
            )
        return limits[0]

    def likely_branch(self, conditional: Instruction) -> str:
        """Return the branch with our kernels, because the other branches are fallbacks.

        If several branches have kernels, or none has any, the most expensive of them is returned.
        """
        listed = re.search(r"branch_computations=\{([^}]*)\}", conditional.rest)
        names = (
            re.findall(r"%([\w.\-<>]+)", listed.group(1))
            if listed
            else re.findall(r"(?:true|false)_computation=%([\w.\-<>]+)", conditional.rest)
        )
        return max(names, key=self._weight)

    @functools.cache  # noqa: B019  (a program lives as long as its report)
    def _weight(self, name: str) -> tuple[bool, int]:
        runs = list(self._walk(name, 1))
        return any(r.instruction.kernel for r in runs), sum(
            r.times * r.instruction.cycles for r in runs
        )


def _group(pattern: str, text: str) -> str:
    """Return what the group of a pattern matches first in a text, or "" if nothing does."""
    found = re.search(pattern, text)
    return found.group(1) if found else ""


def _overlaps(fusion: Instruction) -> bool:
    """Return whether the instruction does other work while a collective is in progress."""
    return fusion.opcode == "fusion" and fusion.called.startswith("async_collective_fusion")


def parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """Return the computations by name, and the name of the entry computation.

    Raises:
      RunFailed: The text has no entry computation, or a shape is incomplete.
    """
    computations: dict[str, list[Instruction]] = {}
    entry, lines = "", None
    for line in text.split("\n"):
        if found := _COMPUTATION.match(line):
            lines = computations.setdefault(found.group(2), [])
            entry = found.group(2) if found.group(1) else entry
        elif line.startswith("}"):
            lines = None
        elif lines is not None and (found := _INSTRUCTION.match(line)):
            shape, rest = split_shape(found.group(2))
            opcode = _OPCODE.match(rest)
            if opcode:
                lines.append(Instruction(found.group(1), shape, opcode.group(1), rest))
    if not entry:
        raise RunFailed(
            "no entry computation was found in the compiled program: the format of its HLO text "
            "may have changed"
        )
    return computations, entry


def split_shape(text: str) -> tuple[str, str]:
    """Split the text `(f32[2], s32[]) while(...)` of an instruction into its shape and the rest.

    Raises:
      RunFailed: The shape is incomplete.
    """
    if not text.startswith("("):
        shape, _, rest = text.partition(" ")
        return shape, rest
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[: place + 1], text[place + 2 :]
    raise RunFailed(f"the compiled program has a line with an incomplete shape: {text[:60]}")


def array_bytes(shape: str) -> list[int]:
    """Return the bytes of each array in a shape, which may be a tuple."""
    sizes = []
    for dtype, dimensions in _ARRAY.findall(shape):
        bits = _BITS.get(dtype) or int(re.sub(r"\D", "", dtype) or 0)
        sizes.append(math.prod(int(d) for d in dimensions.split(",") if d) * bits // 8)
    return sizes


def first_group(attributes: str, partitions: int) -> tuple[int, ...]:
    """Return the devices of a collective's first group, parsed from any of XLA's notations.

    Without a list of groups, all partitions belong to one group.
    """
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\]([^{]*)\{([^}]*)\}", attributes):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", found.group(1))}
        ids = _iota(found.group(2), math.prod(sizes.values())).reshape(tuple(sizes.values()))
        inside = set(re.findall(r"'(\w+)'", found.group(3)))
        return tuple(ids[tuple(slice(None) if a in inside else 0 for a in sizes)].ravel().tolist())
    if found := re.search(r"replica_groups=\[(\d+),(\d+)\]<=(\[[\d,]*\]\S*)", attributes):
        groups, size = int(found.group(1)), int(found.group(2))
        return tuple(_iota(found.group(3), groups * size).reshape(groups, size)[0].tolist())
    if found := re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]*)\}", attributes):
        return tuple(int(device) for device in found.group(1).split(","))
    return tuple(range(partitions))


def _iota(text: str, size: int) -> np.ndarray:
    """Return 0 .. size - 1, reshaped and transposed as `text` specifies, such as `[8,16]T(1,0)`."""
    found = re.search(r"\[([\d,]*)\](?:T\(([\d,]*)\))?", text)
    if not found:
        return np.arange(size)
    ids = np.arange(size).reshape([int(n) for n in found.group(1).split(",")])
    order = found.group(2)
    return ids.transpose([int(axis) for axis in order.split(",")]) if order else ids
