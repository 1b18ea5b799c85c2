"""`fire-lm pretrain`: trains or resumes a run."""

from __future__ import annotations

import argparse

import jax
from etils import epath

import fire_lm
from fire_lm import training
from fire_lm.checkpoints import available_steps, split_run
from fire_lm.cli.startup import quiet_libraries
from fire_lm.config import Config
from fire_lm.errors import RunFailed, UserError
from fire_lm.experiment import check_blocks, check_settings, label_in, load_config
from fire_lm.processes import initialize_distributed
from fire_lm.runs.resuming import (
    check_not_imported,
    check_same_experiment,
    compare_with_source,
    with_kept_lengths,
)
from fire_lm.runs.saved import model_of_run, newest_config, ranked, save_config


def run(arguments: argparse.Namespace) -> None:
    """Run `fire-lm pretrain`: train or resume the run in `--workdir`."""
    quiet_libraries()
    if not arguments.workdir and not arguments.dry_run:
        raise UserError("pretrain needs --workdir=DIR, the run directory (or --dry_run)")
    config = load_config(
        arguments.gin_file, arguments.bindings, arguments.gin_search_paths, arguments.imports
    )
    check_blocks(config)
    check_settings(config)
    initialize_distributed()
    speaks = jax.process_index() == 0
    if arguments.dry_run:
        try:
            config = with_kept_lengths(config, arguments.workdir, arguments.allow_config_change)
        except (UserError, RunFailed) as error:
            told = str(error).partition("\n")[0]
            print(f"{told}; shown as if no length that it was trained with were kept")
        if speaks:
            print(config.text())
        plan = training.describe(config.call("pretrain"))
        if speaks:
            print(plan)
        return
    with training.telling_others():
        asked = config
        config = with_kept_lengths(asked, arguments.workdir, arguments.allow_config_change)
        if speaks:
            print(config.text())
        start_run(config, arguments, speaks, kept=config is not asked)


def start_run(
    config: Config, arguments: argparse.Namespace, speaks: bool, kept: bool = False
) -> None:
    """Start or resume the run.

    Args:
      kept: Whether `config` has taken lengths from the model that INIT_FROM names.
    """
    check_not_imported(arguments.workdir)
    check_same_experiment(config, arguments.workdir, arguments.allow_config_change)
    source = split_run(str(config.macro("INIT_FROM") or ""))[0]
    if source and not available_steps(arguments.workdir):  # otherwise the run resumes without it
        trained = model_of_run(source)
        if speaks:
            print(compare_with_source(config.call("build_decoder"), trained, source, kept))
    training.pretrain(
        config.call("pretrain"),
        arguments.workdir,
        source=lambda: model_of_run(source),
        # Check again: a run that was still writing may have started after the first check.
        once_held=lambda: check_same_experiment(
            config, arguments.workdir, arguments.allow_config_change
        ),
        before_first_step=lambda: save_config(config, arguments.workdir) if speaks else None,
        ranked=lambda: ranked(epath.Path(arguments.workdir), label_in(config)),
        since=fire_lm.STARTED,
    )
    if speaks and newest_config(arguments.workdir) is None:  # a finished run lost it
        save_config(config, arguments.workdir)
