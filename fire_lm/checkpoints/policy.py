"""The policy that determines when checkpoints are saved and which checkpoints are kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from fire_lm.errors import UserError


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """The policy for saving and keeping checkpoints; a run also saves its last step.

    Attributes:
      save_every: The number of steps between checkpoints.
      keep_last: The number of newest checkpoints to keep.
      keep_every: Checkpoints at multiples of this step are kept permanently. None keeps none of
        them.
      keep_best: The number of best checkpoints so far to keep. Checkpoints are ranked by the losses
        of sweeps or, if there are none, by the scores of tasks on the validation split.
      failures_allowed: The number of consecutive saves that may fail while training continues; one
        more failure ends the run.
    """

    save_every: int = 1000
    keep_last: int = 3
    keep_every: int | None = None
    keep_best: int = 0
    failures_allowed: int = 2

    def __post_init__(self) -> None:
        for name, least in {"save_every": 1, "keep_last": 1, "keep_every": 1}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"Checkpointing.{name} is {value}: it must be {least} or more")
        for name in ("keep_best", "failures_allowed"):
            if getattr(self, name) < 0:
                raise UserError(
                    f"Checkpointing.{name} is {getattr(self, name)}: it must be 0 or more"
                )

    def kept(self, steps: Sequence[int], ranked: Callable[[], Sequence[int]]) -> set[int]:
        """Return the steps to keep, which always include the newest step.

        Args:
          steps: The existing steps in ascending order.
          ranked: A function that returns the evaluated steps, starting with the best. The function
            is called only if `keep_best` is positive.
        """
        kept = set(steps[-self.keep_last :])
        if self.keep_every is not None:
            kept |= {step for step in steps if step % self.keep_every == 0}
        if self.keep_best:
            kept |= set([step for step in ranked() if step in steps][: self.keep_best])
        return kept
