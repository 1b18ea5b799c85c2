"""The configurables that gin files can bind, and the loading of experiments from gin files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fire_lm import generation, measures, models, positions, training
from fire_lm.checkpoints import Checkpointing
from fire_lm.config import GinText, Statements, load, read
from fire_lm.data import Blocks, MaskedText, Pairs, SeqioTask, Synthetic, TextData, TextToText
from fire_lm.errors import UserError
from fire_lm.experiment.defaults import default_lengths, default_truncation
from fire_lm.experiment.encoding_label import POSITIONS, check_label, derived_label
from fire_lm.experiment.experiment import Experiment, Kind
from fire_lm.measures.task_scores import TextEvaluation
from fire_lm.results.weights_and_biases import WandB
from fire_lm.sharding import MeshShape
from fire_lm.storage import place
from fire_lm.tasks import synthetic

# What commands call, keyed by its name in gin.
CALLED_BY_COMMANDS: dict[str, Callable[..., Any]] = {
    "pretrain": training.Pretraining,
    "finetune": training.Finetuning,
    "length_sweep": measures.LengthSweep,
    "evaluate": TextEvaluation,
}

# The macros of which a file of its own chooses the value, in configs/positions and configs/models.
_CHOICES = ("POSITION", "MODEL_SIZE")

# The roots of a configuration: the experiments, and the model, so that two models can be compared.
# If `evaluate` has bindings, it is also a root.
_ROOTS: dict[Kind, tuple[str, ...]] = {
    "pretrain": ("pretrain", "length_sweep", "build_decoder"),
    "finetune": ("finetune", "build_decoder"),
}


def load_experiment(
    gin_files: Sequence[str | GinText],
    bindings: Sequence[str] = (),
    search_paths: str = "",
    imports: Sequence[str] = (),
) -> Experiment:
    """Load the experiment that gin files and bindings describe; see `read_gin` and `resolve`."""
    return resolve(read_gin(gin_files, bindings, search_paths), imports)


def read_gin(
    gin_files: Sequence[str | GinText], bindings: Sequence[str] = (), search_paths: str = ""
) -> Statements:
    """Read gin files and bindings, each file once, without resolving them.

    Args:
      gin_files: The names or paths of the gin files, or texts in their place.
      search_paths: The folders to search for gin files, separated by commas.

    Raises:
      UserError: A file or binding cannot be read, a folder does not exist, or two files make the
        same choice.
    """
    folders = [path for path in search_paths.split(",") if path]
    for folder in folders:
        if not place(folder).is_dir():
            raise UserError(f"--gin_search_paths: there is no folder {folder}")
    stated = read(gin_files, bindings, folders)
    stated.check_one_choice(_CHOICES, CALLED_BY_COMMANDS)
    return stated


def evaluates_a_task(
    gin_files: Sequence[str], bindings: Sequence[str], search_paths: str = ""
) -> bool:
    """Return whether the arguments describe the evaluation of a text-to-text task."""
    return "evaluate" in read_gin(gin_files, bindings, search_paths).configurables


def kind_of(stated: Statements) -> Kind:
    """Return the kind of training that is stated: finetuning if there are bindings of `finetune`.

    Raises:
      UserError: Both finetuning and pretraining are described.
    """
    if {"finetune", "pretrain"} <= stated.configurables:
        raise UserError(
            "the gin files configure both pretraining (pretrain.) and finetuning (finetune.)\nto "
            "finetune, omit the run file: the model comes from INIT_FROM"
        )
    return "finetune" if "finetune" in stated.configurables else "pretrain"


def resolve(
    stated: Statements, imports: Sequence[str] = (), more_roots: Sequence[str] = ()
) -> Experiment:
    """Resolve and check what gin files and bindings state.

    All commands accept all configurables, so that the same gin files serve every command. A binding
    counts as unused only if no command could use it.

    Args:
      more_roots: Classes of the imported modules that the command calls itself.

    Raises:
      UserError: The configuration is invalid.
    """
    configurables: list[Callable[..., Any]] = [
        models.build_decoder,
        models.build_encoder,
        models.Attention,
        models.InfiniAttention,
        models.Layers,
        models.size_tiny,
        models.size_125m,
        models.size_350m,
        TextData,
        Blocks,
        MaskedText,
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
        WandB,
        measures.TrainingLosses,
        MeshShape,
        *positions.configurables().values(),
        *synthetic.configurables().values(),
        generation.Greedy,
        generation.Sample,
        generation.Beam,
    ]
    names = ", ".join(sorted(path.stem for path in POSITIONS.glob("*.gin")))
    kind = kind_of(stated)
    roots = _ROOTS[kind] + ("evaluate",) * ("evaluate" in stated.configurables)
    hints = {
        "POSITION": "no positional encoding chosen: add "
        f"--gin_file=configs/positions/NAME.gin\nNAME is one of {names}"
    }
    if kind == "finetune":  # its model comes from another run
        hints["MODEL_SIZE"] = (
            "finetune needs --gin.INIT_FROM=RUN[@STEP], the run to start from, or MODEL_SIZE and "
            "POSITION, which describe a model"
        )
    config = load(
        stated,
        configurables=CALLED_BY_COMMANDS
        | {c.__name__: c for c in configurables}
        | dict(training.optax_configurables()),
        roots=(*roots, *more_roots),
        hints=hints,
        derive=lambda bound: [
            *derived_label(bound),
            *default_truncation(bound),
            *default_lengths(bound),
        ],
        imports=imports,
    )
    check_label(config.macro("ENCODING"))
    return Experiment(kind, config)
