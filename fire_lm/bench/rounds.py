"""The timing of calls in turns, so that other activity on the machine affects all calls alike."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from statistics import fmean
from typing import Literal

from fire_lm.console import duration
from fire_lm.results.bench_times import Cost

Clock = Literal["CPU", "wall"]
Protocol = Literal["best", "paper"]  # the minimum over the rounds, or the mean over the rounds
# Calls shorter than this are repeated within a turn, because clocks are coarse and interrupts have
# a fixed cost.
SHORTEST_SECONDS = 0.2


@dataclasses.dataclass
class Times:
    """The seconds per call in each round, as CPU time of the process and as wall time."""

    cpu_s: list[float] = dataclasses.field(default_factory=list)
    wall_s: list[float] = dataclasses.field(default_factory=list)

    def of(self, clock: Clock) -> list[float]:
        return self.cpu_s if clock == "CPU" else self.wall_s

    def per(self, count: int) -> Times:
        """Return the times divided by `count`, for calls that consist of `count` equal parts."""
        return Times([s / count for s in self.cpu_s], [s / count for s in self.wall_s])


def race(
    calls: dict[str, Callable[[], object]], rounds: int, say: Callable[[str], None]
) -> dict[str, Times]:
    """Time every call in each round, after one warm-up turn that is not counted.

    Every other round runs in reverse order, so that a machine that slowly heats up favours no call.
    """
    repeats, rounds_s = {}, 0.0
    for name, call in calls.items():
        warm_up_s = timed(call, 1)[1]
        repeats[name] = max(1, math.ceil(SHORTEST_SECONDS / warm_up_s))
        say(f"warm-up: {name} {warm_up_s:.3g} s")
        rounds_s += repeats[name] * warm_up_s
    say(f"all rounds together take about {duration(rounds * rounds_s)}")
    found = {name: Times() for name in calls}
    for index in range(rounds):
        for name in reversed(calls) if index % 2 else calls:
            cpu_s, wall_s = timed(calls[name], repeats[name])
            found[name].cpu_s.append(cpu_s)
            found[name].wall_s.append(wall_s)
            say(f"round {index + 1} of {rounds}: {name} {cpu_s:.3g} s CPU, {wall_s:.3g} s wall")
    return found


def timed(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the CPU seconds and the wall seconds per call, averaged over `repeats` calls."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.process_time() - cpu) / repeats, (time.perf_counter() - wall) / repeats


def cost(
    own: Times, nope: Times, clock: Clock, temp_bytes: int | None, protocol: Protocol = "best"
) -> Cost:
    """Return the cost in the best round or, under the "paper" protocol, the mean over all rounds.

    The best round is the default because other activity on the machine only adds time.
    """
    rounds_s = own.of(clock)
    of_rounds = fmean if protocol == "paper" else min
    return Cost(
        seconds=of_rounds(rounds_s),
        wall_s=min(own.wall_s),
        spread=max(rounds_s) / min(rounds_s),
        x_nope=of_rounds(rounds_s) / of_rounds(nope.of(clock)),
        temp_bytes=temp_bytes,
        rounds_s=rounds_s,
    )
