"""The cost of a Pallas kernel for TPUs, read from the compiler's final schedule.

The compiler can write its final instruction bundles to files. A bundle takes at least one cycle to
issue, so the number of bundles, each counted as often as it runs, is a lower bound on the cycles.
The bound excludes waits for memory, for the MXU and between grid steps. The number of times that a
bundle runs follows from its loop depth and from the scopes of the kernel (`jax.named_scope`), which
the compiler marks in the schedule on request.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fire_lm.errors import RunFailed

FLAGS = (
    "--xla_jf_dump_to={folder}",
    "--xla_jf_dump_llo_text=true",
    "--xla_jf_dump_llo_pass_label_regex=.*final_bundles.*",
    "--xla_enable_custom_call_region_trace=true",
    "--xla_xprof_register_llo_debug_info=true",
)
_BUNDLE = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s*(?:L[BHE]|P[BF]|CT)?\s*:\s*([> ]*)\{")
_MARK = re.compile(r"TraceMe(Start|End)\(([^)]*)\)")
_BRANCH = re.compile(r"\bsbr\.")


def dump_schedules_to(folder: str) -> None:
    """Make the compiler write its schedules to `folder`; call this before JAX loads libtpu."""
    flags = " ".join(FLAGS).format(folder=folder)
    os.environ["LIBTPU_INIT_ARGS"] = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {flags}".strip()


class Stretch(NamedTuple):
    """Consecutive bundles in the same scopes and at the same loop depth.

    Attributes:
      scopes: The scopes, from the outermost to the innermost.
      depth: The loop depth. Bundles at depth 0 run once per kernel, and bundles at depth 1 once per
        grid step.
      bundles: The number of bundles. A branch, a scope mark or a change of depth ends the stretch.
    """

    scopes: tuple[str, ...]
    depth: int
    bundles: int


def read(folder: Path, kernel: str) -> list[Stretch]:
    """Read the only schedule of `kernel` in `folder`.

    The name of the schedule contains that of the kernel, possibly followed by a number.

    Raises:
      RunFailed: The compiler wrote no such schedule, or more than one.
    """
    schedules = schedules_of(folder, [kernel])
    if len(schedules) != 1:
        raise RunFailed(
            f"expected exactly one schedule for {kernel}, but the compiler wrote {len(schedules)}"
        )
    return schedules[0]


def schedules_of(folder: Path, kernels: Sequence[str]) -> list[list[Stretch]]:
    """Read all schedules of `kernels`, which have the same code but different operand placements.

    Raises:
      RunFailed: The compiler wrote no such schedule.
    """
    files = [
        path
        for path in sorted(folder.glob("*-final_bundles.txt"))
        if "schedule-analysis" not in path.name
        and any(re.search(rf"-{re.escape(kernel)}(\.\d+)?-\d+-", path.name) for kernel in kernels)
    ]
    if not files:
        raise RunFailed(f"the compiler wrote no schedule for {kernels[0]}")
    return [parse(path.read_text()) for path in files]


def parse(text: str) -> list[Stretch]:
    """Return the stretches of a schedule in order.

    Raises:
      RunFailed: The schedule ends a scope that is not open.
    """
    stretches: list[Stretch] = []
    scopes: list[str] = []
    fresh = True
    for line in text.split("\n"):
        match = _BUNDLE.match(line)
        if not match:
            continue
        depth = match.group(1).count(">")
        last = stretches[-1] if stretches else None
        if not fresh and last and last.scopes == tuple(scopes) and last.depth == depth:
            stretches[-1] = last._replace(bundles=last.bundles + 1)
        else:
            stretches.append(Stretch(tuple(scopes), depth, 1))
        fresh = bool(_BRANCH.search(line))
        for kind, name in _MARK.findall(line):
            if kind == "Start":
                scopes.append(name)
            elif not scopes or scopes.pop() != name:
                raise RunFailed(f"the compiler's schedule ends a scope {name} that is not open")
            fresh = True
    return stretches


def longest(stretches: Sequence[Stretch]) -> int:
    """Return the number of bundles of the longest stretch.

    In a kernel without scopes, this stretch is the kernel's body.
    """
    return max(stretch.bundles for stretch in stretches)
