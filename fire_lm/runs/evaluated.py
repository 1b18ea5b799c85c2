"""The configuration of a run, with changes to its model that apply only at evaluation."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from etils import epath

from fire_lm import models
from fire_lm.config import Config, check_needed
from fire_lm.errors import UserError
from fire_lm.experiment import evaluates_a_task, load_config, training_root
from fire_lm.experiment.own_measure import split_measure
from fire_lm.runs.input_checks import note_changed_modules
from fire_lm.runs.inputs import located_text
from fire_lm.runs.kept_lengths import with_longest_length
from fire_lm.runs.saved import newest_config, saved_config


def configuration(
    arguments: argparse.Namespace,
    workdir: epath.Path,
    files: Sequence[str] = (),
    bindings: Sequence[str] = (),
) -> tuple[Config, str]:
    """Return the run's configuration with the requested changes, and a label for the changes.

    The changes consist of the gin files and bindings in the command-line `arguments`, followed by
    `files` and `bindings`. The paths of the run are those at which its inputs are found now; see
    `fire_lm.runs.inputs`.

    Raises:
      UserError: The configuration is invalid, `variant_of` rejects a change, or the command does
        not use a binding on its command line.
    """
    trained = saved_config(workdir)
    note_changed_modules(workdir)
    located = located_text(trained, workdir)
    module, name = split_measure(getattr(arguments, "measure", None))
    config = load_config(
        [str(newest_config(workdir)), *located, *arguments.gin_file, *files],
        [*arguments.bindings, *bindings],
        arguments.gin_search_paths,
        [*arguments.imports, *([module] if module else [])],
        more_roots=[name] if name else [],
    ).as_saved()
    check_needed(config.bindings, arguments.verb, uses_of(arguments, config))
    variant = variant_of(trained, config, workdir)
    return with_longest_length(config, trained) if variant else config, variant


def uses_of(arguments: argparse.Namespace, config: Config) -> dict[str, tuple[str, ...]]:
    """Return what a command needs of the configuration of a run: the parameters of each root.

    An empty tuple stands for all parameters.
    """
    given = (arguments.gin_file, arguments.bindings, arguments.gin_search_paths)
    model: dict[str, tuple[str, ...]] = {"build_decoder": ()}
    if name := split_measure(getattr(arguments, "measure", None))[1]:
        return model | {name: (), training_root(config): ("data", "train_length")}
    if arguments.verb == "sweep":
        return model | {"length_sweep": ()}
    if evaluates_a_task(*given):  # `evaluate` or `preflight`
        return model | {"evaluate": (), training_root(config): ("train_length",)}
    if arguments.verb == "evaluate":
        return model | {training_root(config): ("data",), "length_sweep": ("lengths",)}
    return model | {training_root(config): ("data",)}


def variant_of(trained: Config, asked: Config, workdir: epath.Path) -> str:
    """Return the label that tables show for the changes to the model since training.

    Raises:
      UserError: The encoding has changed, or a change is not allowed at evaluation.
    """
    if trained.macro("ENCODING") != asked.macro("ENCODING"):
        raise UserError(
            f"{workdir} was trained as {trained.macro('ENCODING')}, and tables show it under this "
            "name\nto change its encoding at evaluation, add bindings such as "
            "--gin.RoPE.scaling='@YaRN()' instead of a file from configs/positions"
        )
    try:
        return models.variant(trained.call("build_decoder"), asked.call("build_decoder"))
    except UserError as error:
        raise UserError(f"{workdir}: {error}") from error
