"""The experiment of `fire-lm pretrain` or `finetune` with some arguments, without training."""

from __future__ import annotations

from pathlib import Path

from fire_lm.cli import parse
from fire_lm.experiment import Experiment, read_gin
from fire_lm.runs.inherited import training_experiment
from fire_lm.runs.saved import read_saved


def experiment_of(arguments: list[str], workdir: Path | str = "") -> Experiment:
    """Return the experiment that a training command would start or resume in `workdir`."""
    parsed = parse(arguments)
    stated = read_gin(parsed.gin_file, parsed.bindings, parsed.gin_search_paths)
    return training_experiment(stated, parsed.imports, read_saved(workdir) if workdir else None)
