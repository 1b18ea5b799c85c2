"""What an optimizer is, and AdamW as in the FIRE paper (Table 9) and GPT-3."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, Protocol

import jax
import optax

from fire_lm.errors import UserError
from fire_lm.sharding import POSITION, path_name

# Weight decay applies to matrices but not to biases, norm scales and the parameters of encodings.
# Paths distinguish these parameters. Ranks do not: the scan over layers adds an axis, so that a
# bias looks like a matrix.
_DECAYED = re.compile(r"(^|/)(kernel|embedding)$")
# Gates of mixers, such as InfiniAttention's, which `AdamW.gate_learning_rate` concerns.
_GATE = re.compile(r"(^|/)mixer_gate$")


class Optimizer(Protocol):
    """The value of `pretrain.optimizer`: any frozen dataclass with these methods."""

    def build(self, train_steps: int) -> optax.GradientTransformation:
        """Return the optimizer of a run of `train_steps` updates."""

    def schedule(self, train_steps: int) -> optax.Schedule | None:
        """Return the learning rate to log, as a function of the number of updates done.

        None means that there is none, as for a transformation that only clips the gradient.
        """


@dataclasses.dataclass(frozen=True)
class Chain:
    """Optimizers that are applied one after another, as by `optax.chain`.

    The learning rate to log is that of the last optimizer that has one.
    """

    links: tuple[Optimizer, ...]

    def build(self, train_steps: int) -> optax.GradientTransformation:
        return optax.chain(*(link.build(train_steps) for link in self.links))

    def schedule(self, train_steps: int) -> optax.Schedule | None:
        schedules = [link.schedule(train_steps) for link in self.links]
        return next((each for each in reversed(schedules) if each is not None), None)


def decay_mask(params: Any) -> Any:
    """Return a tree of bools, which are True for the parameters to which weight decay applies."""

    def decays(path: Any, _: Any) -> bool:
        name = path_name(path)
        return bool(_DECAYED.search(name)) and not POSITION.search(name)

    return jax.tree_util.tree_map_with_path(decays, params)


def _gates(params: Any) -> Any:
    """Return a tree of bools, which are True for the gates of mixers.

    Raises:
      UserError: There are none.
    """
    gates = jax.tree_util.tree_map_with_path(
        lambda path, leaf: bool(_GATE.search(path_name(path))), params
    )
    if not any(jax.tree.leaves(gates)):
        raise UserError(
            "AdamW.gate_learning_rate has no effect, because no layer has a gate: remove it"
        )
    return gates


@dataclasses.dataclass(frozen=True)
class AdamW:
    """AdamW (Loshchilov & Hutter, 2019) on gradients that are clipped by their global norm.

    Attributes:
      learning_rate: The peak of the schedule, which is the same for all parameters but gates.
      warmup_steps: The number of steps in which the learning rate rises from 0 to the peak.
      final_fraction: The final learning rate as a fraction of the peak.
      weight_decay: The weight decay, which is multiplied by the learning rate and applies to the
        parameters that `decay_mask` selects.
      b1, b2: The decay rates of the first and the second moment.
      epsilon: The constant that is added to the denominator of the update.
      clip_norm: The bound on the global norm of the gradient.
      gate_learning_rate: The peak of the schedule for the gates of mixers (`mixer_gate`), which
        have no weight decay; None means `learning_rate`.

    Raises:
      UserError: A value is out of range.
    """

    learning_rate: float = 6e-4
    warmup_steps: int = 715
    final_fraction: float = 0.1
    b1: float = 0.9
    b2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    gate_learning_rate: float | None = None

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value is None:
                continue
            fits, words = value >= 0, "0 or more, and finite"
            if name in ("epsilon", "clip_norm"):
                fits, words = value > 0, "more than 0, and finite"
            elif name in ("b1", "b2"):
                fits, words = 0 <= value < 1, "0 or more, and less than 1"
            elif name == "final_fraction":
                fits, words = 0 <= value <= 1, "between 0 and 1"
            if not (fits and math.isfinite(value)):
                raise UserError(f"AdamW.{name} is {value}: it must be {words}")
        if self.gate_learning_rate is not None and self.learning_rate == 0:
            raise UserError(
                "AdamW.learning_rate is 0: it must be more than 0 if gates have their own"
            )

    def schedule(self, train_steps: int) -> optax.Schedule:
        """Return a schedule of linear warm-up to the peak, and of cosine decay until the last step.

        Raises:
          UserError: The warm-up does not end before the last step.
        """
        if self.warmup_steps >= train_steps:
            raise UserError(
                f"warm-up of {self.warmup_steps} steps does not fit into TRAIN_STEPS = "
                f"{train_steps}: lower --gin.AdamW.warmup_steps or raise TRAIN_STEPS"
            )
        return optax.warmup_cosine_decay_schedule(
            init_value=0.0,
            peak_value=self.learning_rate,
            warmup_steps=self.warmup_steps,
            decay_steps=train_steps,
            end_value=self.final_fraction * self.learning_rate,
        )

    def build(self, train_steps: int) -> optax.GradientTransformation:
        links = [
            optax.clip_by_global_norm(self.clip_norm),
            optax.adamw(
                self.schedule(train_steps),
                b1=self.b1,
                b2=self.b2,
                eps=self.epsilon,
                weight_decay=self.weight_decay,
                mask=decay_mask,
            ),
        ]
        if self.gate_learning_rate is not None:
            factor = optax.scale(self.gate_learning_rate / self.learning_rate)
            links.append(optax.masked(factor, _gates))
        return optax.chain(*links)
