"""The flags that describe an experiment, as the hosts of a job can read them."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fire_lm import cli
from fire_lm.errors import RunFailed, UserError, nearest
from fire_lm.storage.quiet import load_tensorflow, without_log_lines
from tpu import image as images
from tpu.commands import LIBRARIES_LOGIN
from tpu.placeholders import check_filled_in

if TYPE_CHECKING:
    from fire_lm.experiment import Experiment, Statements
    from fire_lm.runs.inherited import Source

ROOT = images.ROOT


def experiment_flags(arguments: argparse.Namespace) -> list[str]:
    """Return the flags of the training command, with paths of gin files that are valid on hosts.

    Raises:
      UserError: A flag is unknown or is --workdir, or a gin file is not in the image.
    """
    flags = [*gin_flags(arguments), *arguments.rest]
    if any(flag.partition("=")[0] == "--workdir" for flag in arguments.rest):
        raise UserError("the run directory follows from NAME and the bucket: omit --workdir")
    cli.parse(["finetune" if arguments.verb == "finetune" else "pretrain", *flags])
    return flags


def gin_flags(arguments: argparse.Namespace) -> list[str]:
    folders = [folder for folder in arguments.gin_search_paths.split(",") if folder]
    if not getattr(arguments, "local", False):
        folders = [folder_for_hosts(folder) for folder in folders]
    elif Path.cwd() != ROOT:
        folders = [x if "://" in x else str(Path(x).resolve()) for x in (*folders, ".")]
    paths = ",".join(folders)
    return [
        *(f"--gin_file={for_hosts(path, arguments, paths)}" for path in arguments.gin_file),
        *([f"--gin_search_paths={paths}"] if paths else []),
        *(f"--gin.{binding}" for binding in arguments.bindings),
    ]


def for_hosts(path: str, arguments: argparse.Namespace, search_paths: str = "") -> str:
    """Return a gin file's path from the repository's root, where hosts run commands, or its URL.

    A file in one of `search_paths` keeps its path, as does a file of the repository that is given
    by its path there from another folder. For a local job, the path of a file outside the
    repository is absolute.

    Raises:
      UserError: The file is not in the image from which hosts run the job.
    """
    if "://" in path:
        load_tensorflow()  # with which it is read, without its log lines
        return path
    full = Path(path).resolve()
    if not full.exists() and (ROOT / path).is_file():
        full = ROOT / path
    is_local = getattr(arguments, "local", False)
    searched = [folder for folder in search_paths.split(",") if folder]
    if not is_local and any("://" in one or (Path(one) / path).is_file() for one in searched):
        return path
    if not full.is_relative_to(ROOT):
        if is_local:
            return str(full)
        raise UserError(
            f"--gin_file={path} is outside {ROOT}, so the image does not contain it\n"
            "put it under configs/, or in the bucket"
        )
    relative = str(full.relative_to(ROOT))
    if not is_local and full.exists() and not images.contains(relative):
        raise UserError(
            f"--gin_file={path} is not in the image, which leaves out what git ignores, runs/ and "
            "data/\nput it under configs/, or in the bucket"
        )
    return relative


def folder_for_hosts(folder: str) -> str:
    """Return a folder of gin files as `for_hosts` does for a file."""
    if "://" in folder:
        load_tensorflow()
        return folder
    full = Path(folder).resolve()
    relative = str(full.relative_to(ROOT)) if full.is_relative_to(ROOT) else ""
    if full.exists() and not (relative and images.contains(relative)):
        raise UserError(
            f"--gin_search_paths: the image does not contain {folder}, so the hosts cannot read "
            "it\nput it under configs/, or in the bucket"
        )
    return relative or folder


def run_to_start_from(flags: Sequence[str], verb: str) -> str:
    """Return the folder of the run that finetuning starts from; "" for `pretrain`.

    Raises:
      UserError: See `check_experiment`.
    """
    from fire_lm.runs.find import split_steps  # these modules import JAX
    from fire_lm.runs.inherited import stated_source

    stated, _ = _stated(flags, verb)
    return split_steps(stated_source(stated))[0] if verb == "finetune" else ""


def check_experiment(
    flags: Sequence[str], verb: str = "pretrain", source: Source | None = None
) -> Experiment:
    """Load and check the configuration of `fire-lm VERB`.

    `source` is the run in INIT_FROM, if it has already been read.

    Raises:
      UserError: The configuration is invalid or belongs to another verb, or a path still contains
        a placeholder.
    """
    # These modules import JAX.
    from fire_lm.experiment import check_blocks, check_settings
    from fire_lm.runs.inherited import training_experiment

    stated, imports = _stated(flags, verb)
    pairs = str(stated.value("PAIRS") or "")
    try:
        with without_log_lines() if "://" in pairs else contextlib.nullcontext():
            config = training_experiment(stated, imports, source=source)
    except RunFailed as error:  # only a file of pairs is read from a bucket here
        raise RunFailed(f"{error}\n{LIBRARIES_LOGIN}" if "://" in pairs else error) from error
    for name, value in config.settings.values():
        _check_path(name, value)
    check_blocks(config)
    check_settings(config)
    config.train.transformation()  # like settings, a schedule may be invalid
    return config


def _stated(flags: Sequence[str], verb: str) -> tuple[Statements, list[str]]:
    """Return what the gin files and bindings of `fire-lm VERB` state, and the modules to import."""
    from fire_lm.experiment import kind_of, read_gin  # these modules import JAX
    from fire_lm.runs.inherited import stated_source

    # `experiment_flags` has already told about repeated bindings, once for all arms of a grid.
    arguments = cli.parse([verb, *flags], tell=False)
    stated = read_gin(arguments.gin_file, arguments.bindings, arguments.gin_search_paths)
    kind = kind_of(stated)
    if kind != verb and verb == "pretrain":
        raise UserError("the gin files describe finetuning: use `python -m tpu finetune`")
    if kind != verb:
        raise UserError(
            f"the gin files do not describe finetuning: {own_file(arguments.gin_file, verb)}"
        )
    if verb == "finetune":
        if not stated_source(stated):
            raise UserError(
                "finetune needs --gin.INIT_FROM=gs://.../RUN[@STEP], the run to start from"
            )
        for name, value in {str(item.key): item.value for item in stated.statements}.items():
            _check_path(name, value)  # before the run in INIT_FROM is read
    return stated, arguments.imports


def _check_path(name: str, value: object) -> None:
    if "://" in str(value):
        check_filled_in(f"--gin.{name}", str(value))


def own_file(gin_files: Sequence[str], folder: str) -> str:
    """Return which file of configs/`folder` to use, as the end of a message.

    It is the one whose name has the most words in common with that of a given file.
    """
    known = [path.stem for path in (ROOT / "configs" / folder).glob("*.gin")]
    for file in gin_files:
        words = {*Path(file).stem.split("_")}
        common = {name: len(words & {*name.split("_")}) for name in known}
        most = [name for name in known if common[name] == max(common.values()) > 0]
        if near := nearest(Path(file).stem, most, cutoff=0.0):
            return f"use --gin_file=configs/{folder}/{near}.gin instead of {file}"
    return f"add a file of configs/{folder}, such as --gin_file=configs/{folder}/scrolls_qasper.gin"
