"""The configurables that gin files can bind, and the loading and checking of configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fire_lm import evaluation, generation, models, positions, training
from fire_lm.checkpoints import Checkpointing, split_run
from fire_lm.config import Config, GinText, check_one_choice, load, stated
from fire_lm.data import Blocks, Pairs, SeqioTask, Synthetic, TextData, TextToText
from fire_lm.errors import UserError
from fire_lm.experiment.encoding_label import POSITIONS, check_label, derived_label
from fire_lm.experiment.task_evaluation import (
    TextEvaluation,
    default_lengths,
    default_truncation,
)
from fire_lm.sharding import MeshShape
from fire_lm.storage import in_bucket, place, present
from fire_lm.tasks import synthetic

# The experiments, keyed by their names in gin.
EXPERIMENTS: dict[str, Callable[..., Any]] = {
    "pretrain": training.Pretraining,
    "finetune": training.Finetuning,
    "length_sweep": evaluation.LengthSweep,
    "evaluate": TextEvaluation,
}

# The macros of which a file of its own chooses the value, in configs/positions and configs/models.
CHOICES = ("POSITION", "MODEL_SIZE")

# The roots of a configuration: the experiments, and the model, so that two models can be compared.
# If `evaluate` has bindings, it is also a root.
ROOTS = ("pretrain", "length_sweep", "build_decoder")
FINETUNING_ROOTS = ("finetune", "build_decoder")


def load_config(
    gin_files: Sequence[str | GinText],
    bindings: Sequence[str] = (),
    search_paths: str = "",
    imports: Sequence[str] = (),
    first: Mapping[str, str] | None = None,
) -> Config:
    """Load the configuration of an experiment.

    All commands accept all configurables, so that the same gin files serve every command. A binding
    counts as unused only if no command could use it.

    Args:
      gin_files: The names or paths of the gin files, or texts in their place.
      bindings: The bindings from the command line.
      search_paths: The folders to search for gin files, separated by commas.
      imports: The names of modules to import.
      first: Gin texts, keyed by their names, that are read before the files.

    Raises:
      UserError: The configuration is invalid or cannot be read.
    """
    configurables: list[Callable[..., Any]] = [
        models.build_decoder,
        models.Attention,
        models.InfiniAttention,
        models.Layers,
        models.size_tiny,
        models.size_125m,
        models.size_350m,
        TextData,
        Blocks,
        SeqioTask,
        TextToText,
        Pairs,
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
        generation.Greedy,
        generation.Sample,
        generation.Beam,
    ]
    names = ", ".join(sorted(path.stem for path in POSITIONS.glob("*.gin")))
    folders = search_folders(search_paths)
    check_one_choice(gin_files, folders, CHOICES, EXPERIMENTS)
    given = (gin_files, bindings, search_paths)
    roots = FINETUNING_ROOTS if finetunes(*given) else ROOTS
    if evaluates_a_task(*given):
        roots = (*roots, "evaluate")
    config = load(
        gin_files,
        bindings,
        folders,
        configurables=EXPERIMENTS
        | {c.__name__: c for c in configurables}
        | dict(training.optax_configurables()),
        roots=roots,
        hints={
            "POSITION": "no positional encoding chosen: add "
            f"--gin_file=configs/positions/NAME.gin\nNAME is one of {names}"
        },
        derive=lambda bound: [
            statement
            for derived in (derived_label, default_truncation, default_lengths)
            for statement in derived(bound)
        ],
        imports=imports,
        first=first,
    )
    check_label(config.macro("ENCODING"))
    return config


def search_folders(search_paths: str) -> list[str]:
    """Return the folders in --gin_search_paths.

    Raises:
      UserError: A folder does not exist.
    """
    folders = [path for path in search_paths.split(",") if path]
    for folder in folders:
        if not place(folder).is_dir():
            raise UserError(f"--gin_search_paths: there is no folder {folder}")
    return folders


def finetunes(
    gin_files: Sequence[str | GinText], bindings: Sequence[str], search_paths: str
) -> bool:
    """Return whether the arguments describe finetuning, that is, contain bindings of `finetune`.

    Raises:
      UserError: The arguments describe both finetuning and pretraining, or cannot be read.
    """
    bound = _bound(gin_files, bindings, search_paths)
    if {"finetune", "pretrain"} <= bound:
        raise UserError(
            "the gin files configure both pretraining (pretrain.) and finetuning (finetune.)\nto "
            "finetune, omit the run file: the model comes from INIT_FROM"
        )
    return "finetune" in bound


def evaluates_a_task(
    gin_files: Sequence[str | GinText], bindings: Sequence[str], search_paths: str
) -> bool:
    """Return whether the arguments describe the evaluation of a text-to-text task."""
    return "evaluate" in _bound(gin_files, bindings, search_paths)


def _bound(
    gin_files: Sequence[str | GinText], bindings: Sequence[str], search_paths: str
) -> set[str]:
    """Return the names of the configurables that have bindings in the arguments."""
    return {key.configurable for key in stated(gin_files, bindings, search_folders(search_paths))}


def training_root(config: Config) -> str:
    """Return the gin name of the training experiment: `pretrain` or `finetune`."""
    return "finetune" if "finetune" in config.bindings.roots else "pretrain"


def training_of(config: Config) -> training.Pretraining:
    """Return the settings of the training experiment, which pretrains or finetunes."""
    found: training.Pretraining = config.call(training_root(config))
    return found


def trains_on_a_task(config: Config) -> bool:
    """Return whether the run trains on the exercises of a synthetic task instead of text."""
    return training_of(config).data.exercises


def label_in(config: Config) -> str:
    """Return the name that tables show for a run's encoding."""
    return str(config.macro("ENCODING"))


def check_blocks(config: Config) -> None:
    """Reject a mixture or construction of `TextData` that has no effect on token blocks."""
    idle = config.idle("TextData")
    where, mixture = idle.get("mixture", ("", ()))
    if mixture:
        raise UserError(
            f"{where}: TextData.mixture has no effect, because token blocks contain one data set\n"
            "remove it, or omit configs/data/blocks.gin to tokenise the text on the fly"
        )
    macro = config.macro("CONSTRUCTION")
    where, construction = idle.get("construction", ("", macro))
    if construction != macro:
        raise UserError(
            f"{where}: TextData.construction = {construction!r} has no effect on token blocks\n"
            "set CONSTRUCTION instead, which applies to both TextData and Blocks"
        )


def check_positions(run: training.Pretraining) -> None:
    """Reject packed rows if their documents would get only the smallest of a row's positions."""
    if run.data.packed and run.model.resampling.spread_over_row:
        raise UserError(
            f"{type(run.model.resampling).__name__} draws positions for whole rows, not for the "
            "documents of packed rows: set another CONSTRUCTION, or omit build_decoder.resampling"
        )


def check_settings(config: Config) -> None:
    """Reject settings that are invalid for every run and sweep, even in a dry run."""
    if config.macro("DATA_DIR") == "":
        raise UserError("DATA_DIR is empty: set it to the folder of the data set")
    init_from = str(config.values(training_root(config))["init_from"])
    if not (in_bucket(init_from) or present(init_from)):
        split_run(init_from)
    asked = config.values("length_sweep") if "length_sweep" in config.bindings.roots else {}
    if set(evaluation.CHECKED) <= set(asked):
        evaluation.check_scoring(**{name: asked[name] for name in evaluation.CHECKED})
