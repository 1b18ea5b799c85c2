"""`fire-lm finetune`, which trains the model of another run on a task."""

from __future__ import annotations

from fire_lm.cli.pretrain import run

__all__ = ["run"]
