"""The settings of `fire-lm sweep`: which text to score, at which lengths, and with which model."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import Any, Self

from etils import epath

from fire_lm.errors import UserError
from fire_lm.evaluation import LengthSweep
from fire_lm.experiment import check_settings
from fire_lm.runs.saved import check_same_vocabulary, check_text_of_run
from fire_lm.sweeps.settings import Setting

# The settings that, together with the model, determine the rows.
_SCORING = ("data", "split", "lengths", "protocols", "stride", "tokens")


@dataclasses.dataclass(frozen=True)
class LengthSetting(Setting):
    """A way of scoring a run's checkpoints on a text, at several lengths."""

    @functools.cached_property
    def asked(self) -> LengthSweep:
        """The length sweep that the configuration describes."""
        value: LengthSweep = self.config.sweep
        return value

    @property
    def rows(self) -> dict[str, Any]:
        return {"variant": self.variant, **{name: getattr(self.asked, name) for name in _SCORING}}

    def claim(self, step: int) -> str:
        """Return the name, including a hash of the data, under which a checkpoint is claimed."""
        text = repr([self.rows[name] for name in ("data", "split")])
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{step}-{self.variant or 'plain'}-{digest}"

    def check(self, workdir: epath.Path) -> None:
        """Check the vocabulary and the settings, and the split if the splits can be read quickly.

        Raises:
          UserError: The training data is not text, the scored text has another vocabulary, or a
            setting or the split is invalid.
        """
        check_text_of_run(self.config, workdir)
        check_same_vocabulary(self.asked.data, workdir)
        check_settings(self.config)
        for part in self.asked.data.parts:
            if (there := part.quick_splits()) is not None and self.asked.split not in there:
                raise UserError(
                    f"{part.title} has no split {self.asked.split!r}, only {', '.join(there)}: set "
                    "length_sweep.split to one of them"
                )

    def check_apart(self, other: Self) -> None:
        """Raise UserError if the two settings score different tokens under the same name."""
        names = [
            {(part.label(), part.construction) for part in setting.asked.data.parts}
            for setting in (self, other)
        ]
        same_rows = self.variant == other.variant and self.asked.split == other.asked.split
        if not (same_rows and (both := names[0] & names[1])):
            return
        if self.asked.data != other.asked.data:
            raise UserError(
                f"--also='{self.also}' scores another text that is also called {min(both)[0]}: the "
                "rows of the two texts could not be distinguished\n"
                "give the data sets different names (fire-lm corpus --name=NAME)"
            )
        if self.asked.tokens != other.asked.tokens:
            raise UserError(
                f"--also='{self.also}' scores a different number of tokens of {min(both)[0]}: the "
                "rows could not be compared\nuse the same length_sweep.tokens in all settings"
            )
