"""Changes to RoPE's frequencies for inputs beyond the training length.

A scaling changes the frequencies `theta_k = base^(-2k/d)`, k = 0 .. d/2 - 1, for inputs that are s
times as long as the training sequences (L tokens). The factor s is either fixed (as for a model
that is finetuned with it) or derived from the input, usually as s = max(1, n / L) for n tokens. At
s = 1 every scaling but `ClippedRoPE` is exactly RoPE.

Sources: position interpolation, Chen et al. (2023), Eq. 4; NTK-aware, dynamic NTK and YaRN, Peng
et al., "YaRN" (ICLR 2024), sections 3.1, 3.3, 3.4, and its released code, whose ramp differs from
that of the paper (see `YaRN`); Llama 3, Grattafiori et al. (2024) and the code of Llama 3.1;
clipped RoPE, arXiv:2602.05258 (its name, CoPE, is also that of an unrelated encoding).
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import ClassVar, Literal

import numpy as np

from fire_lm.errors import UserError
from fire_lm.positions.angles import pair_frequencies


@dataclasses.dataclass(frozen=True)
class RopeScaling(abc.ABC):
    """A change to RoPE's frequencies; the base class of all scalings.

    Attributes:
      factor: The factor s for every input, at least 1; None derives s from the length of each
        input.
    """

    label: ClassVar[str]

    factor: float | None = None

    def __post_init__(self) -> None:
        if self.factor is not None and not 1 <= self.factor < math.inf:
            raise UserError(
                f"{type(self).__name__}.factor is {self.factor:g}: it must be finite and at least "
                "1 (4 is for inputs of four times the training length)"
            )

    @property
    def follows_input(self) -> bool:
        """Whether the factor s depends on the length of the input."""
        return self.factor is None

    @abc.abstractmethod
    def frequencies(
        self, width: int, base: float, train_length: int, context_length: int
    ) -> tuple[np.ndarray, float]:
        """Return the radians per position, float64 `[width/2]`, and the factor on cos and sin.

        Args:
          width: The number d of rotated dims.
          base: RoPE's base theta.
          train_length: The training length L in tokens.
          context_length: The length n of the complete input in tokens.
        """

    def stretch(self, train_length: int, context_length: int) -> float:
        """Return the factor s for an input of `context_length` tokens."""
        if self.factor is not None:
            return self.factor
        return max(1.0, context_length / train_length)

    def __str__(self) -> str:
        """Return the label used in tables of results, such as "yarn-4x".

        Different scalings have different labels.
        """
        name = self.label
        numbers = [] if self.factor is None else [f"{self.factor:g}x"]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "factor" or value == field.default:
                continue
            if isinstance(value, str):
                name += f"_{value}"
            else:
                numbers.append(f"{field.name}={value:g}")
        return "-".join([name, *numbers])


def stretch_geometrically(frequency_K: np.ndarray, s: float) -> np.ndarray:
    """Apply NTK-aware scaling, which is RoPE with the base `base * s^(d / (d - 2))`.

    The highest frequency does not change, and the lowest is divided by exactly s.
    """
    share_K = np.arange(len(frequency_K)) / max(1, len(frequency_K) - 1)
    return frequency_K * s**-share_K


def interpolate(frequency_K: np.ndarray, s: float, share_K: np.ndarray) -> np.ndarray:
    """Interpolate between each frequency (weight 0) and this frequency divided by s (weight 1)."""
    return frequency_K * (1 - share_K * (1 - 1 / s))


def ramp_by_turns(frequency_K: np.ndarray, length: int, slow: float, fast: float) -> np.ndarray:
    """Return each frequency's interpolation weight, 1 - gamma in the YaRN paper (Eq. 17-18).

    The weight is 1 (the frequency is divided by s) for pairs that make at most `slow` turns in
    `length` tokens, 0 for pairs that make at least `fast` turns, and linear in the number of turns
    between these limits.
    """
    turns_K = length * frequency_K / (2 * math.pi)
    return 1 - np.clip((turns_K - slow) / (fast - slow), 0, 1)


def ramp_by_index(width: int, base: float, length: int, slow: float, fast: float) -> np.ndarray:
    """Return each frequency's interpolation weight, as in YaRN's released code.

    The weight is 0 up to the pair that makes `fast` turns in `length` tokens, 1 from the pair that
    makes `slow` turns on, and linear in the index of the pair between these limits. If no pair
    makes as many as `slow` turns, so that the second limit is below 0, all weights are 0.
    """

    def index(turns: float) -> float:
        """Return the (fractional) index of the pair that makes `turns` turns in `length` tokens."""
        return width * math.log(length / (2 * math.pi * turns)) / (2 * math.log(base))

    first = max(math.floor(index(fast)), 0)
    last = float(min(math.ceil(index(slow)), width - 1))
    if last == first:
        last += 0.001
    return np.clip((np.arange(width // 2) - first) / (last - first), 0, 1)


def check_turns(scaling: RopeScaling, slow: str, fast: str) -> None:
    """Raise UserError unless 0 < slow < fast for the fields of `scaling` with these two names."""
    low, high = getattr(scaling, slow), getattr(scaling, fast)
    if not 0 < low < high:
        name = type(scaling).__name__
        raise UserError(
            f"{name}.{slow} is {low:g} and {name}.{fast} is {high:g}: {slow} must be above 0, "
            f"and {fast} must be above {slow}"
        )


@dataclasses.dataclass(frozen=True)
class PositionInterpolation(RopeScaling):
    """Position interpolation: division of all frequencies by s."""

    label: ClassVar[str] = "pi"

    def frequencies(
        self, width: int, base: float, train_length: int, context_length: int
    ) -> tuple[np.ndarray, float]:
        s = self.stretch(train_length, context_length)
        return pair_frequencies(width, base) / s, 1.0


@dataclasses.dataclass(frozen=True)
class NTKAware(RopeScaling):
    """NTK-aware scaling: the base `base * s^(d / (d - 2))`, which reduces low frequencies most."""

    label: ClassVar[str] = "ntk"

    def frequencies(
        self, width: int, base: float, train_length: int, context_length: int
    ) -> tuple[np.ndarray, float]:
        s = self.stretch(train_length, context_length)
        return stretch_geometrically(pair_frequencies(width, base), s), 1.0


@dataclasses.dataclass(frozen=True)
class DynamicNTK(NTKAware):
    """Dynamic NTK scaling: s = f n / L - (f - 1) for n > L tokens, and s = 1 otherwise.

    n is the length of the complete input, not the longest length seen so far, so results do not
    depend on earlier computations.

    Attributes:
      factor: The factor f, at least 1; f = 1 gives the paper's s = n / L.
    """

    label: ClassVar[str] = "dynamic_ntk"

    factor: float = 1.0

    @property
    def follows_input(self) -> bool:
        return True

    def stretch(self, train_length: int, context_length: int) -> float:
        return 1 + self.factor * (max(1.0, context_length / train_length) - 1)

    def __str__(self) -> str:
        return self.label if self.factor == 1 else super().__str__()


@dataclasses.dataclass(frozen=True)
class YaRN(RopeScaling):
    """YaRN: interpolation of slowly rotating pairs only, with cos and sin scaled by 0.1 ln s + 1.

    Attributes:
      beta_fast: Pairs that make at least this many turns in L tokens keep their frequency.
      beta_slow: The frequencies of pairs that make at most this many turns are divided by s.
      ramp: How the frequencies between these two limits change: "code" is linear in the pair's
        index, with rounded ends, as in the commonly used released code; "paper" is linear in the
        number of turns (Eq. 17-18). "code" yields higher frequencies, by up to 80 percent at s = 4.
    """

    label: ClassVar[str] = "yarn"

    beta_fast: float = 32.0
    beta_slow: float = 1.0
    ramp: Literal["code", "paper"] = "code"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_turns(self, "beta_slow", "beta_fast")

    def frequencies(
        self, width: int, base: float, train_length: int, context_length: int
    ) -> tuple[np.ndarray, float]:
        s = self.stretch(train_length, context_length)
        frequency_K = pair_frequencies(width, base)
        turns = {"slow": self.beta_slow, "fast": self.beta_fast}
        if self.ramp == "code":
            share_K = ramp_by_index(width, base, train_length, **turns)
        else:
            share_K = ramp_by_turns(frequency_K, train_length, **turns)
        return interpolate(frequency_K, s, share_K), 0.1 * math.log(s) + 1


@dataclasses.dataclass(frozen=True)
class Llama3(RopeScaling):
    """Llama 3's scaling: interpolation of the pairs that make few turns in the original length.

    Attributes:
      factor: The factor s for every input.
      low_frequency_factor: Pairs that make at most this many turns are divided by s.
      high_frequency_factor: Pairs that make at least this many turns keep their frequency.
      original_length: The length L in tokens (8192 in Llama 3.1); None means the training length.
    """

    label: ClassVar[str] = "llama3"
    length_fields: ClassVar[tuple[str, ...]] = ("original_length",)

    factor: float = 8.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_length: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_turns(self, "low_frequency_factor", "high_frequency_factor")
        if self.original_length is not None and self.original_length < 1:
            raise UserError(f"Llama3.original_length is {self.original_length}: it must be above 0")

    def frequencies(
        self, width: int, base: float, train_length: int, context_length: int
    ) -> tuple[np.ndarray, float]:
        frequency_K = pair_frequencies(width, base)
        length = train_length if self.original_length is None else self.original_length
        turns = {"slow": self.low_frequency_factor, "fast": self.high_frequency_factor}
        share_K = ramp_by_turns(frequency_K, length, **turns)
        return interpolate(frequency_K, self.factor, share_K), 1.0


@dataclasses.dataclass(frozen=True)
class ClippedRoPE(RopeScaling):
    """Clipped RoPE: pairs whose period exceeds the training length fade to the frequency 0.

    These pairs never make a full turn in training. The first of them keeps its frequency, the last
    stops, and those between are multiplied by 1/2 + 1/2 cos, in the order of their periods. It
    applies at every length, and has no factor.
    """

    label: ClassVar[str] = "clipped"

    def __post_init__(self) -> None:
        if self.factor is not None:
            raise UserError(f"ClippedRoPE.factor is {self.factor:g}: it has no effect, remove it")

    @property
    def follows_input(self) -> bool:
        return False

    def frequencies(
        self, width: int, base: float, train_length: int, context_length: int
    ) -> tuple[np.ndarray, float]:
        frequency_K = pair_frequencies(width, base)
        slow = int(np.sum(2 * math.pi / frequency_K > train_length))
        fading = (1 + np.cos(np.linspace(0, math.pi, slow))) / 2
        return frequency_K * np.concatenate([np.ones(len(frequency_K) - slow), fading]), 1.0
