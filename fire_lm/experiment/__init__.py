"""The names available in gin, and the configuration of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fire_lm import evaluation, models, positions, training
from fire_lm.checkpoints import Checkpointing, split_run
from fire_lm.config import Config, load
from fire_lm.data import Blocks, SeqioTask, Synthetic, TextData
from fire_lm.errors import UserError
from fire_lm.experiment.encoding_label import POSITIONS, check_label, derived_label
from fire_lm.sharding import MeshShape
from fire_lm.storage import place
from fire_lm.tasks import synthetic

# The experiments by their names in gin.
EXPERIMENTS: dict[str, Callable[..., Any]] = {
    "pretrain": training.Pretraining,
    "length_sweep": evaluation.LengthSweep,
}

# The roots of a configuration: the experiments, and the model, so that two models can be compared.
ROOTS = (*EXPERIMENTS, "build_decoder")


def load_config(
    gin_files: Sequence[str],
    bindings: Sequence[str] = (),
    search_paths: str = "",
    imports: Sequence[str] = (),
) -> Config:
    """Load the configuration of an experiment.

    All commands know all configurables, so that one set of files serves them all, and a binding
    counts as unused only if no command could use it.
    """
    configurables: list[Callable[..., Any]] = [
        models.build_decoder,
        models.size_tiny,
        models.size_125m,
        models.size_350m,
        TextData,
        Blocks,
        SeqioTask,
        Synthetic,
        training.AdamW,
        training.decay_mask,
        training.muon_dimensions,
        Checkpointing,
        training.Spikes,
        training.Watchdog,
        MeshShape,
        *positions.configurables().values(),
        *synthetic.configurables().values(),
    ]
    names = ", ".join(sorted(path.stem for path in POSITIONS.glob("*.gin")))
    folders = [path for path in search_paths.split(",") if path]
    for folder in folders:
        if not place(folder).is_dir():
            raise UserError(f"--gin_search_paths: there is no folder {folder}")
    config = load(
        gin_files,
        bindings,
        folders,
        configurables=EXPERIMENTS
        | {c.__name__: c for c in configurables}
        | dict(training.optax_configurables()),
        roots=ROOTS,
        hints={
            "POSITION": "no positional encoding chosen: add "
            f"--gin_file=configs/positions/NAME.gin\nNAME is one of {names}"
        },
        derive=derived_label,
        imports=imports,
    )
    check_label(config.macro("ENCODING"))
    return config


def trains_on_a_task(config: Config) -> bool:
    """Return whether the run trains on exercises of a synthetic task and not on text."""
    return isinstance(config.call("pretrain").data, Synthetic)


def label_in(config: Config) -> str:
    """Return the name of a run's encoding in tables."""
    return str(config.macro("ENCODING"))


def check_blocks(config: Config) -> None:
    """Refuse bindings of `TextData` that have no effect because blocks are read."""
    idle = config.idle("TextData")
    where, mixture = idle.get("mixture", ("", ()))
    if mixture:
        raise UserError(
            f"{where}: TextData.mixture has no effect here, because blocks hold one data set\n"
            "remove it, or read on the fly, without configs/data/blocks.gin"
        )
    macro = config.macro("CONSTRUCTION")
    where, construction = idle.get("construction", ("", macro))
    if construction != macro:
        raise UserError(
            f"{where}: TextData.construction = {construction!r} has no effect on blocks\n"
            "set CONSTRUCTION, which both read"
        )


def check_settings(config: Config) -> None:
    """Refuse settings that are invalid for every run and sweep, also in a dry run."""
    if config.macro("DATA_DIR") == "":
        raise UserError("DATA_DIR is empty: set it to the folder of the data set")
    split_run(str(config.macro("INIT_FROM") or ""))
    asked = config.values("length_sweep")
    if set(evaluation.CHECKED) <= set(asked):
        evaluation.check_scoring(**{name: asked[name] for name in evaluation.CHECKED})
