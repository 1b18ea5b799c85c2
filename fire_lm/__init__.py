"""Pretraining and length-generalisation studies of FIRE and competing positional encodings.

Source: Li et al., "Functional Interpolation for Relative Positions Improves Long Context
Transformers" (ICLR 2024). Importing this package does not import any heavy dependency.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fire_lm.runs.run import Run

__version__ = "0.1.0"

STARTED = time.monotonic()  # seconds; approximately the start of the process


def open_run(name: str) -> Run:
    """Open the trained run in the directory `name`, which may be local or on gs://.

    `RUN@STEP` also selects a checkpoint. Example:

        run = fire_lm.open_run("runs/quickstart/fire")
        model, params = run.restore()
        tokens, positions = run.inputs("def main():")
        logits = model.apply({"params": params}, tokens, positions)  # [1, T + 1, V]

    Raises:
      UserError: The directory does not contain a run.
    """
    from fire_lm.runs.run import open_run

    return open_run(name)
