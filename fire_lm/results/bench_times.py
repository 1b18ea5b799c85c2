"""Timings of the complete model for each encoding, as written by `fire-lm bench model --json`.

This module imports no heavy dependency, so that benchmarks can write the file on machines where
only JAX, Flax and Optax are installed.
"""

from __future__ import annotations

import dataclasses
import json
import types
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from etils import epath

from fire_lm.errors import RunFailed

_T = TypeVar("_T")
MODEL = "model"


@dataclasses.dataclass(frozen=True)
class Machine:
    """The machine and date of a benchmark.

    Attributes:
      date: The date of the benchmark.
      processor: The model of the CPU, or the kind of accelerator.
      backend: JAX's backend.
      clock: The kind of time that was measured: "CPU" (the CPU time of all threads) or "wall".
      cores: The indices of the CPU cores to which the process was bound.
      load: The load average in the minute before the start, which is the mean number of processes
        that were running or waiting for a core.
      versions: The versions of the libraries, by name.
    """

    date: str
    processor: str
    backend: str
    clock: str
    cores: list[int]
    load: float
    versions: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a single call, which is a forward pass or a training step.

    Attributes:
      seconds: The time in seconds, as measured by `Machine.clock`. It is the minimum of `rounds_s`
        or, under the protocol of Fig. 5, their mean.
      wall_s: The minimum wall time per call over the rounds, in seconds.
      spread: The maximum of `rounds_s` divided by the minimum.
      x_nope: `seconds` divided by the time of NoPE in the same library.
      temp_bytes: The temporary memory that the compiler reserves in addition to arguments and
        results, or None if it is unknown.
      rounds_s: The time per call in each round, in seconds.
    """

    seconds: float
    wall_s: float
    spread: float
    x_nope: float
    temp_bytes: int | None
    rounds_s: list[float]


@dataclasses.dataclass(frozen=True)
class ModelRow:
    """The times of one encoding at one length.

    Attributes:
      encoding: The name of the encoding.
      length: The number of tokens in a sequence.
      batch: The number of sequences in a batch.
      attention: The attention implementation that "auto" selected.
      forward: The cost of a forward pass.
      train: The cost of a training step.
      tokens_per_second: The training throughput of all devices together.
      mfu: The model FLOPs utilisation under the convention of `ModelTimes`, or None if the
        device's peak FLOP/s is unknown.
    """

    encoding: str
    length: int
    batch: int
    attention: str
    forward: Cost
    train: Cost
    tokens_per_second: float
    mfu: float | None


@dataclasses.dataclass(frozen=True)
class ModelTimes:
    """The results of `fire-lm bench model`.

    Attributes:
      benchmark: The kind of benchmark, which identifies the file type.
      machine: The machine and date of the benchmark.
      size: The name of the model's size.
      vocab_size: The number of ids in the vocabulary.
      dtype: The data type of the computation.
      tokens_per_batch: The number of tokens in a batch.
      model: A description of the size, the data type and the operations of a step.
      flops_convention: A description of how FLOPs are counted.
      rows: The times of each encoding at each length.
      left_out: The encodings and lengths that could not be measured, each with the reason.
      protocol: "best" for the minimum of the rounds on one device, or "paper" for the protocol of
        Fig. 5, which is the mean of the rounds on all devices of the host.
      devices: The number of devices that share a batch.
    """

    benchmark: str
    machine: Machine
    size: str
    vocab_size: int
    dtype: str
    tokens_per_batch: int
    model: str
    flops_convention: str
    rows: list[ModelRow]
    left_out: list[str]
    protocol: str = "best"
    devices: int = 1

    @property
    def where(self) -> str:
        """A line that describes the machine, the date and the model."""
        machine = self.machine
        device = "one core" if len(machine.cores) == 1 else f"{len(machine.cores)} cores"
        if machine.backend != "cpu":
            device = "one device" if self.devices == 1 else f"{self.devices} devices"
        return (
            f"{machine.date}, {device} of {machine.processor}, jax {machine.versions['jax']}; "
            f"{self.model}; {machine.clock} time, {self.statistic}"
        )

    @property
    def statistic(self) -> str:
        """A description of how `seconds` is computed from the rounds."""
        name = "mean" if self.protocol == "paper" else "minimum"
        rounds = len(self.rows[0].train.rounds_s)
        return f"{name} of {rounds} round{'s' * (rounds > 1)}"


def read(path: epath.PathLike) -> ModelTimes:
    """Read the results of a benchmark.

    Raises:
      RunFailed: The file is damaged, or was not written by `fire-lm bench model`.
    """
    try:
        found = json.loads(epath.Path(path).read_text())
    except ValueError:  # raised by the JSON parser or the UTF-8 decoder
        found = None
    if not isinstance(found, dict) or found.get("benchmark") != MODEL:
        raise RunFailed(
            f"{path} was not written by `fire-lm bench model`, or is damaged: "
            "run `fire-lm bench model --json=FILE` and specify that file"
        )
    try:
        times = _typed(ModelTimes, found)
        if not times.rows or "jax" not in times.machine.versions:
            raise ValueError("rows or versions are missing")
    except ValueError as error:
        raise RunFailed(
            f"{path} is damaged ({error}): run `fire-lm bench model --json={path}` again"
        ) from error
    return times


def _typed(kind: type[_T], value: Any) -> _T:
    """Build an instance of `kind` from a JSON value, or raise ValueError if they do not match."""
    built = _built(kind, value)
    assert isinstance(built, kind)
    return built


def _built(kind: Any, value: Any) -> Any:
    container, parts = get_origin(kind) or kind, get_args(kind)
    if container is types.UnionType:  # X | None
        return None if value is None else _built(parts[0], value)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        own = dataclasses.fields(kind)
        needed = {field.name for field in own if field.default is dataclasses.MISSING}
        if missing := sorted(needed - set(value)):
            raise ValueError(f"{container.__name__} lacks {', '.join(missing)}")
        there = {name: hint for name, hint in hints.items() if name in value}
        return container(**{name: _built(hint, value[name]) for name, hint in there.items()})
    if container is list and isinstance(value, list):
        return [_built(parts[0], part) for part in value]
    if container is dict and isinstance(value, dict):
        return {name: _built(parts[1], part) for name, part in value.items()}
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{json.dumps(value)[:40]} is not of type {container.__name__}")
    return value
