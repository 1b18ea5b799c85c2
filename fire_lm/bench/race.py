"""The race: cases take turns, so that other activity on the machine affects all of them alike."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

import numpy as np

from fire_lm.console import duration, say

Call = Callable[[], object]
Clock = Literal["CPU", "wall"]
Protocol = Literal["best", "paper"]  # the minimum over the rounds, or the mean over the rounds
Row = dict[str, Any]  # a row of a report, as in the JSON file
# Calls shorter than this are repeated within a turn, because clocks are coarse and interrupts have
# a fixed cost.
SHORTEST_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Case:
    """Something to time.

    Attributes:
      name: The name of the encoding, or of the reader of data.
      length: The number of tokens in a sequence.
      calls: The calls to time, by name; each returns only when its work is done.
      memory: The temporary bytes that the compiler reserves for a call, by the call's name; None
        or absent where they are unknown.
      kind: What two cases must share to be compared, such as the library, by column of the row.
      facts: Other columns of the row.
      output: Returns the result that another library must reproduce.
      around: A context in which every turn takes place; what it does on entry and exit is not
        timed.
    """

    name: str
    length: int
    calls: Mapping[str, Call]
    memory: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    kind: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    output: Callable[[], np.ndarray] | None = None
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    @property
    def key(self) -> str:
        return " ".join(map(str, [*self.kind.values(), self.name, self.length]))


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


# The times by the keys of the cases and the names of their calls.
Results = dict[str, dict[str, Times]]


def race(cases: Sequence[Case], rounds: int) -> Results:
    """Time every call of every case in each round, after two warm-up calls that are not counted.

    The first of them may allocate memory or fill buffers, so only the second shows how often a
    call is to be repeated.

    Every other round runs in reverse order, so that a machine that slowly heats up favours no call.
    """
    turns = [(case, name) for case in cases for name in case.calls]
    repeats, rounds_s = [], 0.0
    for case, name in turns:
        with case.around():
            case.calls[name]()
            warm_up_s = timed(case.calls[name], 1)[1]
        repeats.append(max(1, math.ceil(SHORTEST_SECONDS / warm_up_s)))
        say(f"warm-up: {case.key} {name} {warm_up_s:.3g} s")
        rounds_s += repeats[-1] * warm_up_s
    say(f"all rounds together take about {duration(rounds * rounds_s)}")
    times = {case.key: {name: Times() for name in case.calls} for case in cases}
    schedule = list(zip(turns, repeats, strict=True))
    for index in range(rounds):
        for (case, name), count in reversed(schedule) if index % 2 else schedule:
            with case.around():
                cpu_s, wall_s = timed(case.calls[name], count)
            times[case.key][name].cpu_s.append(cpu_s)
            times[case.key][name].wall_s.append(wall_s)
            label = f"round {index + 1} of {rounds}: {case.key} {name}"
            say(f"{label} {cpu_s:.3g} s CPU, {wall_s:.3g} s wall")
    return times


def timed(call: Call, repeats: int) -> tuple[float, float]:
    """Return the CPU seconds and the wall seconds per call, averaged over `repeats` calls."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.process_time() - cpu) / repeats, (time.perf_counter() - wall) / repeats


def costs(case: Case, times: Results, clock: Clock, protocol: Protocol = "best") -> Row:
    """Return the cost of each call of a case, relative to NoPE of the same kind and length."""
    nope = times[dataclasses.replace(case, name="nope").key]
    return {
        name: cost(own, nope[name], clock, case.memory.get(name), protocol)
        for name, own in times[case.key].items()
    }


def row(case: Case, times: Results, clock: Clock) -> Row:
    """Return the row of a case: what it is, the cost of each call, and its facts."""
    labels = {"encoding": case.name, "length": case.length, **case.kind}
    return {**labels, **costs(case, times, clock), **case.facts}


def cost(
    own: Times, nope: Times, clock: Clock, temp_bytes: int | None, protocol: Protocol = "best"
) -> Row:
    """Return the cost of a call: its seconds, and what they are relative to NoPE.

    The seconds are the minimum over the rounds, because other activity on the machine only adds
    time, or under the "paper" protocol their mean. The minimum of the wall time is `wall_s`, and
    `spread` is the maximum of `rounds_s` divided by their minimum.
    """
    rounds_s = own.of(clock)
    of_rounds = fmean if protocol == "paper" else min
    return {
        "seconds": of_rounds(rounds_s),
        "wall_s": min(own.wall_s),
        "spread": max(rounds_s) / min(rounds_s),
        "x_nope": of_rounds(rounds_s) / of_rounds(nope.of(clock)),
        "temp_bytes": temp_bytes,
        "rounds_s": rounds_s,
    }


def counterparts(cases: Sequence[Case], library: str) -> Iterator[tuple[Case, Case]]:
    """Yield each case of ours with the case of `library` that has the same name and length."""
    theirs = {(case.name, case.length): case for case in cases if case.kind["library"] == library}
    for case in cases:
        other = theirs.get((case.name, case.length))
        if other is not None and case is not other:
            yield case, other
