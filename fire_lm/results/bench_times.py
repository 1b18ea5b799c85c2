"""Times of the whole model for each encoding: what `fire-lm bench model --json` writes, read back.

Nothing heavy is imported, so that benchmarks write it where there is JAX alone.
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
      processor: of a CPU the model, of an accelerator the kind of device.
      clock: what the seconds are: "CPU" (computing, all threads together) or "wall".
      cores: those that the process was bound to.
      load: processes that wanted a core, mean of the minute before the start.
      versions: of each library.
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
    """The cost of one call, forward or training.

    Attributes:
      seconds: by the machine's clock, the least of `rounds_s` or, as in Fig. 5, their mean.
      wall_s: least wall time of a round.
      spread: largest of `rounds_s` over the least.
      x_nope: `seconds` over those of the same library's NoPE.
      temp_bytes: what the compiler sets aside beside arguments and results, if it says.
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
      batch: sequences of `length` tokens.
      attention: the implementation that "auto" chose.
      tokens_per_second: of training, on all devices used.
      mfu: by the convention of `ModelTimes`; None where the device's peak is not known.
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
      benchmark: says in the file whose it is.
      model: size, dtype and what a step is, in words.
      left_out: encodings and lengths that could not be measured, each with the reason.
      protocol: "best", the least of the rounds on one device, or "paper", that of Fig. 5: the mean
        of the rounds on all devices of the host.
      devices: that share a batch.
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
        """A line on machine, date and model."""
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
        """The statistic that `seconds` are of the rounds, in words."""
        name = "mean" if self.protocol == "paper" else "least"
        return f"{name} of {len(self.rows[0].train.rounds_s)} rounds"


def read(path: epath.PathLike) -> ModelTimes:
    """Raise RunFailed if the file is not from `fire-lm bench model`, or is damaged."""
    try:
        found = json.loads(epath.Path(path).read_text())
        if not isinstance(found, dict) or found.get("benchmark") != MODEL:
            raise RunFailed(f"{path} is not what `fire-lm bench model --json` writes")
        times = _typed(ModelTimes, found)
        if not times.rows or "jax" not in times.machine.versions:
            raise ValueError("rows or versions are missing")
    except ValueError as error:  # of JSON, of UTF-8, and ours
        raise RunFailed(f"{path} is damaged ({error}): write it again") from error
    return times


def _typed(kind: type[_T], value: Any) -> _T:
    """Rebuild a `kind` from JSON; ValueError if it is something else."""
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
            raise ValueError(f"{container.__name__} without {', '.join(missing)}")
        there = {name: hint for name, hint in hints.items() if name in value}
        return container(**{name: _built(hint, value[name]) for name, hint in there.items()})
    if container is list and isinstance(value, list):
        return [_built(parts[0], part) for part in value]
    if container is dict and isinstance(value, dict):
        return {name: _built(parts[1], part) for name, part in value.items()}
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{json.dumps(value)[:40]} is no {container.__name__}")
    return value
