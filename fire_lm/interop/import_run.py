"""The import of a Hugging Face model folder as an ordinary run directory.

The run directory contains `config.gin` and a checkpoint at step 0. `sweep`, `generate`, `open_run`
and INIT_FROM read this directory like any other run directory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from etils import epath

from fire_lm.checkpoints import Checkpointing, Checkpoints, checkpoint_directory
from fire_lm.data.hub_vocabulary import EXPORTED
from fire_lm.errors import UserError
from fire_lm.experiment import Experiment, GinText, load_experiment
from fire_lm.interop.gpt2 import read_gpt2
from fire_lm.interop.own_exports import check_config, read_own
from fire_lm.interop.weights import Weights, read_config
from fire_lm.models import Decoder, parameter_shapes
from fire_lm.runs.saved import save_config
from fire_lm.sharding import leaves_by_path
from fire_lm.storage import children, place

_GPT2_FILES = [
    "configs/base.gin",
    "configs/models/gpt2.gin",
    "configs/data/blocks.gin",
    "configs/positions/learned.gin",
]


class Gin(NamedTuple):
    """The user's additions to the imported configuration, such as data or a vocabulary."""

    files: Sequence[str] = ()
    bindings: Sequence[str] = ()
    search_paths: str = ""
    imports: Sequence[str] = ()


class Imported(NamedTuple):
    """An imported model, and a remark on what the user should know about the import, or ""."""

    experiment: Experiment
    params: Any
    remark: str


def read_folder(folder: Path, more: Gin) -> Imported:
    """Read the model of a GPT-2 folder or of a folder that `fire-lm export` wrote.

    `more` is added to the configuration.

    Raises:
      UserError: The folder contains another kind of model, or arrays that do not match the
        configuration.
    """
    config = read_config(folder)
    imported = _own(folder, config, more) if EXPORTED in config else _gpt2(folder, more)
    model: Decoder = imported.experiment.model
    check_shapes(parameter_shapes(model), imported.params, folder)
    return imported


def _own(folder: Path, fields: dict[str, Any], more: Gin) -> Imported:
    exported = GinText(f"{folder / 'config.json'} ({EXPORTED})", "\n".join(fields[EXPORTED]))
    experiment = load_experiment(
        [exported, *more.files], more.bindings, more.search_paths, more.imports
    )
    as_exported: Decoder | None = None
    with contextlib.suppress(UserError):  # The bindings in `more` may change the model.
        as_exported = load_experiment([exported], (), more.search_paths, more.imports).model
    if as_exported is not None:
        check_config(as_exported, fields, Weights(folder))
    return Imported(experiment, read_own(experiment.model, fields, Weights(folder)), "")


def _gpt2(folder: Path, more: Gin) -> Imported:
    gpt2 = read_gpt2(folder)
    bindings = [
        *(f"size_125m.{name} = {value}" for name, value in vars(gpt2.size).items()),
        f"Learned.max_length = {gpt2.positions}",
        f"TRAIN_LENGTH = {gpt2.positions}",
        f"EVAL_LENGTHS = ({gpt2.positions},)",
        f"VOCAB_SIZE = {gpt2.vocab_size}",
        "build_decoder.dtype = 'float32'",
        "DATA_DIR = 'data/blocks'",
        # A configuration must describe an experiment, although this run is never trained.
        "TRAIN_STEPS = 1",
        "BATCH_SIZE = 1",
    ]
    with_tokenizer = (folder / "tokenizer.json").exists()
    bindings.append(f"VOCABULARY = 'hf:{folder.absolute()}'" if with_tokenizer else "VOCABULARY=''")
    experiment = load_experiment(
        [*_GPT2_FILES, *more.files], [*bindings, *more.bindings], more.search_paths, more.imports
    )
    remark = f"the dropout of {gpt2.dropped:g} is not imported" if gpt2.dropped else ""
    return Imported(experiment, gpt2.params, remark)


def check_shapes(like: Any, params: Any, folder: Path) -> None:
    """Raise UserError unless the arrays `params` from a folder have the shapes in `like`.

    `like` contains the shapes of the configured model's parameters.
    """
    want, have = (
        {path: tuple(leaf.shape) for path, leaf in leaves_by_path(tree).items()}
        for tree in (like, params)
    )
    for path in [*want, *have]:
        if want.get(path) != have.get(path):
            raise UserError(
                f"the configuration does not match {folder}: the shape of '{path}' is "
                f"{have.get(path, 'missing')} in the folder and {want.get(path, 'missing')} in the "
                "configured model\nremove the bindings that change the model"
            )


def write_run(imported: Imported, workdir: str) -> None:
    """Write the checkpoint and then the configuration, which makes the folder a run directory.

    Raises:
      UserError: `workdir` is not empty.
      RunFailed: `workdir` cannot be written.
    """
    folder = place(workdir)
    if children(folder):
        raise UserError(f"--output {workdir} exists and is not an empty folder: choose another")
    params = jax.tree.map(jnp.asarray, imported.params)
    try:
        with contextlib.closing(Checkpoints(folder, Checkpointing(failures_allowed=0))) as saved:
            saved.save(0, {"params": params}, b"", {}, shared_position=True)
        save_config(imported.experiment, epath.Path(folder))
    except BaseException:
        with contextlib.suppress(OSError):
            checkpoint_directory(folder).rmtree()  # the next attempt must find the folder empty
        raise
