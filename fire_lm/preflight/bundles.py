"""Cost of a Pallas kernel for TPUs, read from the compiler's final schedule.

The compiler can write down the instruction bundles that it ends with: each is issued in one cycle
at least, so their number, times how often each is run, is a lower bound on the cycles (waits for
memory, the MXU and between grid steps are not in it). How often is known from the scopes that a
kernel names (`jax.named_scope`), which the compiler marks in the schedule when asked to, and from
the depth of its loops.
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


def ask(folder: str) -> None:
    """Has the compiler write its schedules to `folder`; before libtpu is loaded."""
    flags = " ".join(FLAGS).format(folder=folder)
    os.environ["LIBTPU_INIT_ARGS"] = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {flags}".strip()


class Stretch(NamedTuple):
    """Bundles side by side of one scope and one depth.

    Attributes:
      scopes: from the outermost to the innermost.
      depth: of loops: 0 is run once a kernel, 1 once a step of the grid.
      bundles: how many.
      ended: by a branch, a mark, or a loop's end.
    """

    scopes: tuple[str, ...]
    depth: int
    bundles: int


def read(folder: Path, kernel: str) -> list[Stretch]:
    """The one schedule of `kernel` in `folder`, by its name with or without its number."""
    found = read_all(folder, [kernel])
    if len(found) != 1:
        raise RunFailed(f"the compiler wrote {len(found)} schedules of {kernel}, not one")
    return found[0]


def read_all(folder: Path, kernels: Sequence[str]) -> list[list[Stretch]]:
    """All schedules of `kernels`, which are the same code: several differ in where operands lie.

    Raises:
      RunFailed: there is none.
    """
    files = [
        path
        for path in sorted(folder.glob("*-final_bundles.txt"))
        if "schedule-analysis" not in path.name
        and any(re.search(rf"-{re.escape(kernel)}(\.\d+)?-\d+-", path.name) for kernel in kernels)
    ]
    if not files:
        raise RunFailed(f"the compiler wrote no schedule of {kernels[0]}")
    return [parse(path.read_text()) for path in files]


def parse(text: str) -> list[Stretch]:
    """The stretches of a schedule, in order; branches end one too."""
    stretches: list[Stretch] = []
    scopes: list[str] = []
    fresh = True
    for line in text.splitlines():
        found = _BUNDLE.match(line)
        if not found:
            continue
        depth = found.group(1).count(">")
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
    """Bundles of the longest stretch: the body of a kernel that names no scopes."""
    return max(stretch.bundles for stretch in stretches)
