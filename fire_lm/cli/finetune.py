"""`fire-lm finetune`, which trains the model of another run on a task."""

from __future__ import annotations

import argparse

from fire_lm.cli import pretrain

_PAIRS = "configs/finetune/pairs.gin"


def run(arguments: argparse.Namespace) -> None:
    """Start or resume the finetuning run in `--workdir`, or describe it with `--dry_run`."""
    pretrain.run(with_pairs(arguments))


def with_pairs(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with the gin file and the binding for which `--pairs=FILE` stands."""
    if arguments.pairs is None:
        return arguments
    changed = argparse.Namespace(**vars(arguments))
    changed.gin_file = [_PAIRS, *arguments.gin_file]
    changed.bindings = [f"PAIRS={arguments.pairs!r}", *arguments.bindings]
    return changed
