"""The results of preflight, as a table for readers and as JSON for programs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fire_lm.console import columns
from fire_lm.hardware.slices import Slice
from fire_lm.preflight.estimate import Estimate, Generation

STEP = "training step"
OK, FAILED, SKIPPED = "ok", "FAILED", "-"


@dataclasses.dataclass(frozen=True)
class Check:
    """The outcome of checking a requirement of the run or a property of a program."""

    name: str
    outcome: str
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """The results of preflight.

    Attributes:
      where, mesh: The slice, and the number of devices along each axis of the mesh.
      programs: The estimates, keyed by program name; a training step comes first.
      flops, tokens: The FLOPs and tokens of a training step on all chips, the FLOPs as a mean over
        the steps; 0 for an evaluation.
      failures: The error messages of the programs that do not compile, keyed by program name.
      compiler: The name and version of the compiler.
      generation: The details of the last program for generation, or None if there is none.
      steps: The share of the run's steps that each program of a training step computes, by name.
    """

    where: Slice
    mesh: Mapping[str, int]
    programs: Mapping[str, Estimate]
    flops: float
    tokens: int
    failures: Mapping[str, str]
    checks: Sequence[Check]
    compiler: str
    generation: Generation | None = None
    steps: Mapping[str, float] = dataclasses.field(default_factory=lambda: {STEP: 1.0})
    train_steps: int = 0

    @property
    def passed(self) -> bool:
        return not self.failures and all(check.outcome != FAILED for check in self.checks)

    @property
    def mfu(self) -> float | None:
        """The estimated MFU of the training step, or None without an estimate of its time."""
        seconds = self.step_seconds
        return None if seconds is None else self.flops / (seconds * self.where.peak_flops)

    @property
    def step_seconds(self) -> float | None:
        """The mean time of the run's training steps, or None without an estimate of it."""
        found = [self.programs.get(name) for name in self.steps]
        if any(step is None or step.untimed for step in found):
            return None
        shares = zip(found, self.steps.values(), strict=True)
        return sum(step.seconds * share for step, share in shares if step is not None)

    def as_json(self) -> dict[str, Any]:
        """Return the report in JSON form; bytes and seconds are those of one chip."""
        seconds = self.step_seconds
        return {
            "slice": self.where.name,
            "chips": self.where.chips,
            "mesh": dict(self.mesh),
            "compiler": self.compiler,
            "passed": self.passed,
            "programs": {
                name: {
                    **dataclasses.asdict(found),
                    "xla": found.xla,
                    "kernels": found.kernels,
                    "seconds": None if found.untimed else found.seconds,
                }
                for name, found in self.programs.items()
            },
            **({} if self.generation is None else {"generation": _json(self.generation)}),
            "failures": dict(self.failures),
            "checks": [dataclasses.asdict(check) for check in self.checks],
            "flops": self.flops,
            "mfu_estimate": self.mfu,
            "tokens_per_second_estimate": seconds and self.tokens / seconds,
            "steps": dict(self.steps),
            "train_steps": self.train_steps,
        }

    def __str__(self) -> str:
        mesh = " x ".join(f"{axis}={size}" for axis, size in self.mesh.items())
        lines = [f"{self.where}, mesh {mesh}; {self.compiler}"]
        if self.programs:
            lines += ["", *columns([["one chip", *self.programs], *self._rows()])]
        if (mfu := self.mfu) is not None and (seconds := self.step_seconds) is not None:
            hours = self.train_steps * seconds / 3600
            lines += [
                "",
                f"training, by the compiler's estimate (nothing was run): {mfu:.1%} MFU, "
                f"{self.tokens / seconds:,.0f} tokens per second",
                f"the run: {self.train_steps:,} steps of {1e3 * seconds:,.1f} ms, {hours:,.1f} h, "
                f"{hours * self.where.chips:,.0f} chip-hours{self._shares()}",
            ]
            for name in self.steps:
                unit = f"ms{name.removeprefix(STEP)}, without collectives"
                parts = _parts(self.programs[name])
                lines += ["", *columns([[unit, "forward", "backward"], *parts])]
        if self.generation:
            lines += ["", *_generation(self.generation)]
        for name, estimate in self.programs.items():
            if estimate.untimed:
                lines.append(f"the time of the {name} is not estimated: {estimate.untimed}")
        lines += ["", *columns([[c.name, c.outcome, c.detail] for c in self.checks])]
        lines += [f"{name}: {error}" for name, error in self.failures.items()]
        return "\n".join(lines)

    def _shares(self) -> str:
        """Return which share of the steps has which length, if they differ."""
        if len(self.steps) < 2:
            return ""
        shares = [f"{share:.1%}{name.removeprefix(STEP)}" for name, share in self.steps.items()]
        return f" ({', '.join(shares)})"

    def _rows(self) -> list[list[str]]:
        estimates = list(self.programs.values())
        kinds = sorted({kind for each in estimates for kind in each.collectives})
        return [
            ["arguments, GiB", *(_gib(each.arguments) for each in estimates)],
            ["temporary, GiB", *(_gib(each.temporary) for each in estimates)],
            ["program and results, GiB", *(_gib(each.code) for each in estimates)],
            [
                "total, of usable GiB",
                *(f"{_gib(each.memory)} of {_gib(each.usable)}" for each in estimates),
            ],
            ["peak, GiB", *(_gib(each.peak) for each in estimates)],
            *(
                [
                    f"{kind}, number and MiB",
                    *(_number(each.collectives.get(kind)) for each in estimates),
                ]
                for kind in kinds
            ),
            ["XLA's cycles, ms", *(_ms(each.xla) for each in estimates)],
            ["attention kernels, ms", *(_ms(each.kernels) for each in estimates)],
            ["collectives, ms", *(_ms(each.links) for each in estimates)],
            ["of which overlapped, ms", *(_ms(each.overlapped) for each in estimates)],
            ["total, ms", *(_ms(each.seconds) for each in estimates)],
            ["compile time here, s", *(f"{each.compile_seconds:.0f}" for each in estimates)],
        ]


def _json(generation: Generation) -> dict[str, Any]:
    seconds = None if generation.token.untimed else generation.token.seconds
    token = {**dataclasses.asdict(generation.token), "seconds": seconds}
    return {"prompts": generation.prompts, "cache": generation.cache, "token": token}


def _generation(generation: Generation) -> list[str]:
    token = generation.token
    collectives = [
        f"{kind} {number} ({size / 2**20:.2f} MiB)"
        for kind, (number, size) in token.collectives.items()
    ]
    time = "time not estimated" if token.untimed else f"{1e3 * token.seconds:.2f} ms"
    return [
        f"generation of {generation.prompts}: {generation.cache / 2**20:,.0f} MiB of keys and "
        "values per chip",
        "a new token, by the compiler's estimate: "
        f"{time}; {', '.join(collectives) or 'no collectives'}",
    ]


def _parts(step: Estimate) -> list[list[str]]:
    """Return a row of the table for each part of the model, in decreasing order of time."""
    parts = sorted(step.parts.items(), key=lambda part: -sum(part[1]))
    return [[name, _ms(forward), _ms(backward)] for name, (forward, backward) in parts]


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f}"


def _ms(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{1e3 * seconds:.1f}"


def _number(collective: tuple[int, int] | None) -> str:
    return f"{collective[0]}, {collective[1] / 2**20:.0f}" if collective else "-"
