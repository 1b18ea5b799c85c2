"""The configuration of a run, with changes to its model that apply only at evaluation."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from etils import epath

from fire_lm import models
from fire_lm.config import Config
from fire_lm.errors import UserError
from fire_lm.experiment import load_config
from fire_lm.runs.inputs import located_text, note_changed_modules
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
      UserError: The configuration is invalid, or `variant_of` rejects a change.
    """
    trained = saved_config(workdir)
    note_changed_modules(workdir)
    own = located_text(trained, workdir)
    config = load_config(
        [str(newest_config(workdir)), own, *arguments.gin_file, *files],
        [*arguments.bindings, *bindings],
        arguments.gin_search_paths,
        arguments.imports,
    ).as_saved()
    variant = variant_of(trained, config, workdir)
    return with_longest_length(config, trained) if variant else config, variant


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
