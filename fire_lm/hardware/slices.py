"""TPU slices by name: how many chips, in which shape, and what a chip can do.

The number after v4- and v5p- counts TensorCores, two a chip; after v5e- and v6e- it counts chips.
Sources: Google Cloud's pages on each TPU version; usable memory is what libtpu 0.0.42.1 allows a
program.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import re
from typing import Any

from fire_lm.errors import UserError


@dataclasses.dataclass(frozen=True)
class Chip:
    """A kind of TPU chip.

    Attributes:
      flops: peak, bfloat16, per second.
      clock: cycles per second of the compiler's estimates.
      usable_bytes: of its memory, for a program.
      link_bytes: per second to all neighbours together: 90 % of the published rate.
      slice_bytes: per second to other slices: the host's network, shared by its chips.
      cores: TensorCores, which its names count if `counts_cores`.
      shapes: of the slices there are: by their number of chips, that which Google gives it.
      options: for the compiler's topology.
    """

    flops: float
    clock: float
    usable_bytes: float
    link_bytes: float
    counts_cores: bool
    cores: int
    shapes: tuple[tuple[int, ...], ...]
    topology: str
    options: dict[str, Any]
    slice_bytes: float = 3.1e9  # 100 Gbit/s a host of four chips

    @property
    def per_name(self) -> int:
        """The number that a chip counts in the name of a slice."""
        return self.cores if self.counts_cores else 1

    def has(self, shape: tuple[int, ...]) -> bool:
        """Return whether slices of that shape exist; whole cubes need not be in `shapes`."""
        whole = len(shape) == 3 and not any(side % 4 for side in shape) and min(shape) > 0
        chips = max(math.prod(known) for known in self.shapes)
        as_cubes = self.counts_cores and whole and math.prod(shape) <= chips
        return shape in self.shapes or (as_cubes and list(shape) == sorted(shape))


def _cubes(most: int) -> tuple[tuple[int, ...], ...]:
    """The shape nearest to a cube, for each number of 4 x 4 x 4 cubes up to `most`."""
    shapes = []
    for number in range(1, most + 1):
        of_cubes = [
            (a, b, number // (a * b))
            for a in range(1, number + 1)
            for b in range(a, number // a + 1)
            if number % (a * b) == 0 and b <= number // (a * b)
        ]
        shapes.append(tuple(4 * side for side in min(of_cubes, key=sum)))
    return ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), *shapes)


_SQUARES = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
# Without "megacore" there would be two devices a chip, each of half the speed.
_MEGACORE = {"chip_config_name": "megacore"}
_GIB = 2**30

CHIPS = {
    "v4": Chip(275e12, 1.05e9, 30.75 * _GIB, 270e9, True, 2, _cubes(64), "v4", _MEGACORE),
    "v5p": Chip(459e12, 1.75e9, 95.74 * _GIB, 540e9, True, 2, _cubes(96), "v5", _MEGACORE),
    "v5e": Chip(197e12, 1.5e9, 15.75 * _GIB, 180e9, False, 1, _SQUARES, "v5e", {}),
    "v6e": Chip(918e12, 1.75e9, 31.25 * _GIB, 403e9, False, 1, _SQUARES, "v6e", {}),
}


_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}


@dataclasses.dataclass(frozen=True)
class Slice:
    """A slice, or several equal ones.

    Attributes:
      kind: v4, v5e, ...
      shape: chips along each axis of one slice's network.
      count: of slices.
    """

    kind: str
    shape: tuple[int, ...]
    count: int = 1

    @property
    def chip(self) -> Chip:
        return CHIPS[self.kind]

    @property
    def chips(self) -> int:
        """The number of chips in all slices."""
        return self.count * math.prod(self.shape)

    @property
    def hosts(self) -> int:
        """The number of hosts in all slices: four chips each, but up to eight of v5e and v6e."""
        chips = math.prod(self.shape)
        return self.count * (1 if not self.chip.counts_cores and chips <= 8 else chips // 4)

    @property
    def name(self) -> str:
        """Google's name, after the number of slices; else the shape."""
        one = f"{self.kind}-{math.prod(self.shape) * self.chip.per_name}"
        if self.shape not in self.chip.shapes:
            one = f"{self.kind}:{'x'.join(map(str, self.shape))}"
        return f"{self.count}x{one}" if self.count > 1 else one

    def __str__(self) -> str:
        return f"{self.name} ({self.chips} chips)"

    def devices(self) -> list[Any]:
        """The devices to compile for; no TPU is needed.

        Raises:
          UserError: libtpu is not installed, or another process holds it.
        """
        if importlib.util.find_spec("libtpu") is None:
            raise UserError(
                "compiling for a TPU needs libtpu, also where there is no TPU: "
                "pip install 'fire-lm[tpu]'"
            )
        # libtpu looks for a TPU machine around it, and complains of what it does not find.
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from jax.experimental import topologies

        one_chip = math.prod(self.shape) == 1
        bounds = (1, 1, 1) if one_chip else (2, 2, 1)
        try:
            found = topologies.get_topology_desc(
                f"{self.chip.topology}:{'x'.join(map(str, self.shape))}",
                platform="tpu",
                chips_per_host_bounds=bounds,
                num_slices=self.count,
                **self.chip.options,
            )
        except RuntimeError as error:
            told = f"libtpu cannot be loaded ({str(error).partition(chr(10))[0]})"
            if (shared := os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"]) != "1":
                told += (
                    "\nif another program uses it, wait, or unset ALLOW_MULTIPLE_LIBTPU_LOAD, "
                    f"which is '{shared}' here"
                )
            raise UserError(told) from error
        return list(found.devices)


def parse_slice(text: str) -> Slice:
    """`v4-256` as Google names it, `v4:128` by chips, `v4:4x4x8` by its shape, `2xv4-128` for two.

    Raises:
      UserError: there is no such slice; says which are near.
    """
    # gcloud's own word for v5e.
    found = re.fullmatch(
        r"(?:(\d+)x)?(v\d+[a-z]*)(?:([-:])(\d+)|:(\d+(?:x\d+)+))",
        text.strip().lower().replace("v5litepod", "v5e"),
    )
    if not found or found[2] not in CHIPS or int(found[1] or 1) == 0:
        raise UserError(
            f"--slice={text}: name one as Google does (v4-256 is 128 chips of v4), or v4:128 by "
            f"its chips, v4:4x4x8 by its shape, 2xv4-128 for two\nthere are {', '.join(CHIPS)}"
        )
    count, kind = int(found[1] or 1), found[2]
    chip = CHIPS[kind]
    by_size = {math.prod(shape): shape for shape in chip.shapes}
    shape = tuple(map(int, found[5].split("x"))) if found[5] else None
    per = chip.per_name if found[3] == "-" else 1
    number = math.prod(shape) if shape else int(found[4])
    if shape and chip.has(shape):
        return Slice(kind, shape, count)
    if not shape and number % per == 0 and number // per in by_size:
        return Slice(kind, by_size[number // per], count)
    sizes = sorted(by_size)
    near = sorted(sizes, key=lambda size: abs(math.log(size * per / max(1, number))))[:3]
    slices = [Slice(kind, by_size[size], count) for size in sorted(near)]
    told = ", ".join(
        f"{one} {'x'.join(map(str, one.shape))}" if shape else f"{one}" for one in slices
    )
    raise UserError(f"--slice={text}: {kind} has no such slice; near it are {told}")
