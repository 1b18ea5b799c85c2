"""TPU slices by name, with their shapes and the properties of their chips.

In names such as v4-256, the number counts TensorCores for v4 and v5p, which have two TensorCores
per chip, and counts chips for v5e and v6e. The sources are Google Cloud's pages on each TPU
version. The usable memory is the amount that libtpu 0.0.42.1 grants a program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import re
from typing import Any

from fire_lm.errors import UserError


@dataclasses.dataclass(frozen=True)
class Chip:
    """The properties of a kind of TPU chip.

    Attributes:
      flops: The peak bfloat16 FLOP/s.
      clock: The number of cycles per second in the compiler's estimates.
      usable_bytes: The memory that a program can use.
      link_bytes: The total number of bytes per second to all neighbouring chips, assumed to be 90 %
        of the published rate.
      counts_cores: Whether the names of slices count TensorCores instead of chips.
      cores: The number of TensorCores.
      shapes: The shapes that Google assigns to slices, one for each number of chips.
      topology: The name of the chip in the compiler's topology descriptions.
      options: Options for the compiler's topology descriptions.
      slice_bytes: The number of bytes per second to other slices over a host's network, which the
        chips of the host share.
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
    slice_bytes: float = 3.1e9  # 100 Gbit/s per host of four chips

    @property
    def per_name(self) -> int:
        """The amount that one chip adds to the number in the name of a slice."""
        return self.cores if self.counts_cores else 1

    def has(self, shape: tuple[int, ...]) -> bool:
        """Return whether slices of the given shape exist.

        In addition to the listed shapes, a v4 or v5p slice may have any shape that consists of
        cubes of 4 x 4 x 4 chips, with its sides in ascending order, up to the largest listed number
        of chips.
        """
        whole = len(shape) == 3 and not any(side % 4 for side in shape) and min(shape) > 0
        chips = max(math.prod(known) for known in self.shapes)
        as_cubes = self.counts_cores and whole and math.prod(shape) <= chips
        return shape in self.shapes or (as_cubes and list(shape) == sorted(shape))


def _cubes(most: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes that are smaller than a cube, and those made of up to `most` cubes.

    A cube has 4 x 4 x 4 chips. For each number of cubes, the most compact shape is returned.
    """
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
# Without "megacore", each chip would be two devices of half the speed.
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
    """A TPU slice, or several identical slices.

    Attributes:
      kind: The kind of chip, such as v4 or v5e.
      shape: The number of chips along each axis of one slice's network.
      count: The number of slices.
    """

    kind: str
    shape: tuple[int, ...]
    count: int = 1

    @property
    def chip(self) -> Chip:
        """The properties of the slice's kind of chip."""
        return CHIPS[self.kind]

    @property
    def chips(self) -> int:
        """The number of chips in all slices."""
        return self.count * math.prod(self.shape)

    @property
    def peak_flops(self) -> float:
        """The peak bfloat16 FLOP/s of all chips."""
        return self.chips * self.chip.flops

    @property
    def hosts(self) -> int:
        """The number of hosts in all slices.

        A host has four chips or, in a small v5e or v6e slice, up to eight.
        """
        chips = math.prod(self.shape)
        return self.count * (1 if not self.chip.counts_cores and chips <= 8 else chips // 4)

    @property
    def name(self) -> str:
        """The name of the slice or slices, such as `v4-256`, `v4:4x4x16` or `2xv4-128`.

        Google's name is used if there is one; otherwise, the shape is used.
        """
        one = f"{self.kind}-{math.prod(self.shape) * self.chip.per_name}"
        if self.shape not in self.chip.shapes:
            one = f"{self.kind}:{'x'.join(map(str, self.shape))}"
        return f"{self.count}x{one}" if self.count > 1 else one

    def __str__(self) -> str:
        return f"{self.name} ({self.chips} chips)"

    def devices(self) -> list[Any]:
        """Return abstract devices to compile for; no TPU is needed.

        Raises:
          UserError: libtpu is not installed or cannot be loaded.
        """
        if importlib.util.find_spec("libtpu") is None:
            raise UserError(
                "compiling for a TPU needs libtpu, even on a machine without a TPU: "
                "run `pip install -e '.[tpu]'` in the checkout"
            )
        # libtpu expects to run on a TPU machine. Without these variables, it reports missing
        # settings.
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from jax.experimental import topologies

        alone = self.hosts == self.count  # a host of v5e and v6e may have eight chips
        bounds = (*self.shape, 1)[:3] if alone else (2, 2, 1)
        try:
            topology = topologies.get_topology_desc(
                f"{self.chip.topology}:{'x'.join(map(str, self.shape))}",
                platform="tpu",
                chips_per_host_bounds=bounds,
                num_slices=self.count,
                **self.chip.options,
            )
        except RuntimeError as error:
            message = f"libtpu cannot be loaded ({str(error).partition(chr(10))[0]})"
            if (shared := os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"]) != "1":
                message += (
                    "\nif another program is using libtpu, wait until it ends, or unset "
                    f"ALLOW_MULTIPLE_LIBTPU_LOAD, which is '{shared}' here"
                )
            raise UserError(message) from error
        return list(topology.devices)


def parse_slice(text: str) -> Slice:
    """Parse the name of a slice.

    The name is either Google's, such as `v4-256`, or the kind of chip followed by the number of
    chips (`v4:128`) or the shape (`v4:4x4x8`). A prefix gives the number of slices, as in
    `2xv4-128`.

    Raises:
      UserError: The name is malformed, or there is no such slice; the message suggests valid names.
    """
    # gcloud uses the name "v5litepod" for v5e.
    match = re.fullmatch(
        r"(?:(\d+)x)?(v\d+[a-z]*)(?:([-:])(\d+)|:(\d+(?:x\d+)+))",
        text.strip().lower().replace("v5litepod", "v5e"),
    )
    if not match or match[2] not in CHIPS or int(match[1] or 1) == 0:
        raise UserError(
            f"--slice={text}: use Google's name (v4-256 is 128 chips of v4), the number of chips "
            f"(v4:128), the shape (v4:4x4x8), or 2xv4-128 for two slices\nknown chips: "
            f"{', '.join(CHIPS)}"
        )
    count, kind = int(match[1] or 1), match[2]
    chip = CHIPS[kind]
    by_size = {math.prod(shape): shape for shape in chip.shapes}
    shape = tuple(map(int, match[5].split("x"))) if match[5] else None
    per = chip.per_name if match[3] == "-" else 1
    number = math.prod(shape) if shape else int(match[4])
    if shape and chip.has(shape):
        return Slice(kind, shape, count)
    if not shape and number % per == 0 and number // per in by_size:
        return Slice(kind, by_size[number // per], count)
    sizes = sorted(by_size)
    near = sorted(sizes, key=lambda size: abs(math.log(size * per / max(1, number))))[:3]
    slices = [Slice(kind, by_size[size], count) for size in sorted(near)]
    similar = ", ".join(
        f"{one} {'x'.join(map(str, one.shape))}" if shape else f"{one}" for one in slices
    )
    raise UserError(f"--slice={text}: {kind} has no such slice; the nearest are {similar}")


def compiler_name() -> str:
    """Return the compiler's name and, if known, its version."""
    for name in ("libtpu", "libtpu-nightly"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name} {importlib.metadata.version(name)}"
    return "libtpu, unknown version"
