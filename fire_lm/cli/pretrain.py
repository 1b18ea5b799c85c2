"""`fire-lm pretrain` and `fire-lm finetune`, which start or resume a training run."""

from __future__ import annotations

import argparse

import jax
from etils import epath

import fire_lm
from fire_lm import training
from fire_lm.checkpoints import available_steps
from fire_lm.cli.startup import quiet_libraries
from fire_lm.config import Config
from fire_lm.errors import RunFailed, UserError
from fire_lm.experiment import check_blocks, check_settings, finetunes, label_in, training_of
from fire_lm.hardware.host import keep_freed_memory
from fire_lm.processes import initialize_distributed
from fire_lm.runs.inherited import training_config
from fire_lm.runs.resuming import (
    check_new,
    check_not_imported,
    check_same_experiment,
    compare_with_source,
    same_text_warning,
    source_of,
    with_kept_lengths,
    with_own_vocabulary,
)
from fire_lm.runs.saved import (
    model_of_run,
    newest_config,
    ranked,
    save_config,
    tokenized_of_run,
)


def run(arguments: argparse.Namespace) -> None:
    """Start or resume the training run in `--workdir`, or describe it with `--dry_run`."""
    quiet_libraries()
    if not arguments.workdir and not arguments.dry_run:
        raise UserError(f"{arguments.verb} needs --workdir=DIR, the run directory (or --dry_run)")
    check_verb(arguments)
    config = training_config(arguments, arguments.workdir)
    check_blocks(config)
    check_settings(config)
    initialize_distributed()
    keep_freed_memory()
    speaks = jax.process_index() == 0
    if arguments.dry_run:
        try:
            config = with_kept_lengths(config, arguments.workdir, arguments.allow_config_change)
        except (UserError, RunFailed) as error:
            told = str(error).partition("\n")[0]
            print(f"{told}; the configuration below lacks the lengths that the run would keep")
        if speaks:
            print(config.text())
        check_new(config, arguments.workdir)
        run = training_of(config)
        plan = training.describe(run)
        if speaks:
            print(plan)
            if note := run.data.note(run.train_length):
                print(note)
        return
    with training.telling_others():
        asked = config
        config = with_kept_lengths(asked, arguments.workdir, arguments.allow_config_change)
        start_run(config, arguments, speaks, kept=config is not asked)


def check_verb(arguments: argparse.Namespace) -> None:
    """Raise UserError if `pretrain` is given gin files for `finetune`, or vice versa."""
    given = (arguments.gin_file, arguments.bindings, arguments.gin_search_paths)
    described = "finetune" if finetunes(*given) else "pretrain"
    if described == arguments.verb:
        return
    if arguments.verb == "pretrain":
        raise UserError("the gin files describe finetuning: use `fire-lm finetune`")
    raise UserError(
        "the gin files do not describe finetuning: give --pairs=FILE.jsonl, or a file from\n"
        "configs/finetune, as in fire-lm finetune --gin_file=configs/finetune/scrolls_qasper.gin "
        "--gin.INIT_FROM=RUN --workdir=DIR"
    )


def start_run(
    config: Config, arguments: argparse.Namespace, speaks: bool, kept: bool = False
) -> None:
    """Start or resume the run.

    Args:
      config: The configuration of the run.
      arguments: The arguments of the command line.
      speaks: Whether this process prints and saves the configuration.
      kept: Whether any lengths in `config` come from another model; see `with_kept_lengths`.
    """
    check_not_imported(arguments.workdir)
    check_same_experiment(config, arguments.workdir, arguments.allow_config_change)
    check_new(config, arguments.workdir)
    source = source_of(config)
    if arguments.verb == "finetune" and not source:
        raise UserError("finetune needs --gin.INIT_FROM=RUN[@STEP], the run to start from")
    # If the run directory has checkpoints, the run resumes from them and does not need the source.
    if source and not available_steps(arguments.workdir):
        if arguments.verb == "finetune":
            tokenized_of_run(config, source)  # checks that the vocabulary is that of the source
        trained = model_of_run(source)
        if speaks:
            print(compare_with_source(config.call("build_decoder"), trained, source, kept))
            if warning := same_text_warning(config, source):
                print(warning)
    run = training_of(with_own_vocabulary(config, arguments.workdir))
    note = run.data.note(run.train_length)
    training.pretrain(
        run,
        arguments.workdir,
        source=lambda: model_of_run(source),
        # Check again, because another run may have written to the directory since the first check.
        heading="".join(f"{text}\n" for text in (config.text(), note) if text),
        once_held=lambda: check_same_experiment(
            config, arguments.workdir, arguments.allow_config_change
        ),
        after_first_step=lambda: save_config(config, arguments.workdir) if speaks else None,
        ranked=lambda: ranked(epath.Path(arguments.workdir), label_in(config)),
        since=fire_lm.STARTED,
    )
    # A finished run takes no step and saves no configuration, so a lost one is saved again here.
    if speaks and newest_config(arguments.workdir) is None:
        save_config(config, arguments.workdir)
