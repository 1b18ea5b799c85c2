"""What the verbs of the command line do: read the configuration, call one function with it."""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from etils import epath

from fire_lm import config as gin
from fire_lm import evaluation, models, positions, training
from fire_lm.absent_tpu import skip_absent_tpu
from fire_lm.checkpoints import Checkpointing, available_steps, split_run
from fire_lm.data import Blocks, TextData
from fire_lm.encoding_label import POSITIONS, check_label, derived_label
from fire_lm.errors import RunFailed, UserError
from fire_lm.kept_lengths import kept_lengths, open_lengths
from fire_lm.reporting import ranked_steps, read_own
from fire_lm.sharding import MeshShape, initialize_distributed
from fire_lm.storage import children, in_bucket

# What a configuration can be asked to call: the verbs, and the model, to compare two of them.
ROOTS = ("pretrain", "length_sweep", "build_decoder")


def load_config(
    gin_files: Sequence[str], bindings: Sequence[str] = (), search_paths: str = ""
) -> gin.Config:
    """The experiment. Every verb knows all configurables, so that one set of files serves them
    all, and a binding is unused only if no verb could use it."""
    configurables: list[Callable[..., Any]] = [
        training.pretrain,
        evaluation.length_sweep,
        models.build_decoder,
        models.size_tiny,
        models.size_125m,
        models.size_350m,
        TextData,
        Blocks,
        training.AdamW,
        Checkpointing,
        training.Spikes,
        training.Watchdog,
        MeshShape,
        *positions.configurables().values(),
    ]
    names = ", ".join(sorted(path.stem for path in POSITIONS.glob("*.gin")))
    folders = [path for path in search_paths.split(",") if path]
    for folder in folders:
        if not place(folder).is_dir():
            raise UserError(f"--gin_search_paths: there is no folder {folder}")
    config = gin.load(
        gin_files,
        bindings,
        folders,
        configurables={c.__name__: c for c in configurables},
        roots=ROOTS,
        hints={
            "POSITION": "no positional encoding chosen: add "
            f"--gin_file=configs/positions/NAME.gin\nNAME is one of {names}"
        },
        derive=derived_label,
    )
    check_label(config.macro("ENCODING"))
    return config


def saved_config(workdir: str | epath.Path) -> gin.Config:
    """The configuration of a run's latest start.

    Raises:
      UserError: it cannot be loaded: damaged, or of another version of the code.
    """
    saved = newest_config(workdir)
    if saved is None:
        raise UserError(f"{workdir} holds no run (no config.gin)")
    try:
        config = load_config([str(saved)]).as_saved()
        config.check_complete("build_decoder")
    except UserError as error:
        raise damaged(saved, str(error).removeprefix("--gin_file: ")) from error
    return config


def damaged(saved: epath.Path, why: str) -> UserError:
    told = why.partition("\n")[0].partition("; give one")[0].rstrip(".")
    where = "" if str(saved) in told else f"{saved}: "
    return UserError(
        f"{where}{told}\nif the file is damaged, move it away: the command with which the run was "
        "trained writes a new one"
    )


def pretrain(arguments: argparse.Namespace) -> None:
    """`fire-lm pretrain`: trains, or resumes, the run in `--workdir`."""
    quiet_libraries()
    if not arguments.workdir and not arguments.dry_run:
        raise UserError("pretrain needs --workdir=DIR, the run directory (or --dry_run)")
    config = load_config(arguments.gin_file, arguments.bindings, arguments.gin_search_paths)
    check_blocks(config)
    check_settings(config)
    initialize_distributed()
    speaks = jax.process_index() == 0
    if arguments.dry_run:
        try:
            config = with_kept_lengths(config, arguments.workdir, arguments.allow_config_change)
        except (UserError, RunFailed) as error:
            told = str(error).partition("\n")[0]
            print(f"{told}; shown as if nothing were kept of the length that it was trained with")
        print(config.text())
        config.call("pretrain", workdir="", dry_run=True, init_from_model=None)
        return
    with training.telling_others():
        asked = config
        config = with_kept_lengths(asked, arguments.workdir, arguments.allow_config_change)
        if speaks:
            print(config.text())
        start_run(config, arguments, speaks, kept=config is not asked)


def with_kept_lengths(config: gin.Config, workdir: str, allow_change: bool) -> gin.Config:
    """`config` with the lengths that its model keeps of the one it goes on from (kept_lengths.py).

    That is the model of INIT_FROM, unless the run directory has one already: such a run, which may
    be older than this rule, goes on as it was saved. `config` itself if nothing is to be changed.

    Raises:
      UserError: INIT_FROM holds no run, or one whose configuration cannot be read.
    """
    if not open_lengths(config):
        return config
    source = split_run(str(config.macro("INIT_FROM") or ""))[0]
    started = bool(workdir) and newest_config(workdir) is not None
    if started and not (source or allow_change):
        return config  # its own run: what differs will be told
    if not started and not source:
        return config
    where = workdir if started else source
    if not started and newest_config(source) is None:
        if workdir and available_steps(workdir):
            return config  # it resumes, though its configuration was moved away
        raise UserError(f"INIT_FROM: {source} holds no run (no config.gin)")
    trained = saved_config(where)
    names = [models.encoding_names(one.call("build_decoder")) for one in (config, trained)]
    kept = kept_lengths(config, trained) if names[0] == names[1] else {}
    return config.with_values(kept, f"kept from {where}") if kept else config


def start_run(
    config: gin.Config, arguments: argparse.Namespace, speaks: bool, kept: bool = False
) -> None:
    """`kept`: whether `config` has lengths of the model that it goes on from."""
    check_same_experiment(config, arguments.workdir, arguments.allow_config_change)
    source = split_run(str(config.macro("INIT_FROM") or ""))[0]
    if source and not available_steps(arguments.workdir):  # else the run resumes without it
        trained = model_of_run(source)
        if speaks:
            print(compare_with_source(config.call("build_decoder"), trained, source, kept))
    config.call(
        "pretrain",
        workdir=arguments.workdir,
        dry_run=False,
        init_from_model=lambda: model_of_run(source),
        # Again: a run that was still writing may have begun after the first look.
        once_held=lambda: check_same_experiment(
            config, arguments.workdir, arguments.allow_config_change
        ),
        before_first_step=lambda: gin.save(config, arguments.workdir) if speaks else None,
        ranked=lambda: ranked(epath.Path(arguments.workdir), label_in(config)),
    )
    if speaks and newest_config(arguments.workdir) is None:  # of a finished run, moved away
        gin.save(config, arguments.workdir)


def ranked(workdir: epath.Path, encoding: str) -> list[int]:
    """The steps of a run that sweeps have scored, best first."""
    own = read_own(workdir, encoding)
    return ranked_steps(own.losses, own.texts.of)


def label_in(config: gin.Config) -> str:
    """What tables call the encoding of a run."""
    return str(config.macro("ENCODING"))


def check_blocks(config: gin.Config) -> None:
    """Refuses what a file says of `TextData` where blocks are read, which would not heed it."""
    idle = config.idle("TextData")
    where, mixture = idle.get("mixture", ("", ()))
    if mixture:
        raise UserError(
            f"{where}: TextData.mixture has no effect here, blocks hold one data set\n"
            "remove it, or read on the fly: without configs/data/blocks.gin"
        )
    macro = config.macro("CONSTRUCTION")
    where, construction = idle.get("construction", ("", macro))
    if construction != macro:
        raise UserError(
            f"{where}: TextData.construction = {construction!r} has no effect on blocks\n"
            "set CONSTRUCTION, which both read"
        )


def check_settings(config: gin.Config) -> None:
    """Refuses what no run and no sweep could do, in a dry run as in others."""
    if config.macro("DATA_DIR") == "":
        raise UserError("DATA_DIR is empty: give the folder of the data set")
    split_run(str(config.macro("INIT_FROM") or ""))
    asked = config.values("length_sweep")
    names = ("lengths", "tokens", "tokens_per_batch", "protocols", "stride", "position_bins")
    if set(names) <= set(asked):
        evaluation.check_scoring(**{name: asked[name] for name in names})


def check_same_experiment(config: gin.Config, workdir: str, allow_change: bool) -> None:
    """Refuses a workdir of another experiment; training longer is the same experiment."""
    saved = newest_config(workdir)
    if saved is None:
        return
    if allow_change:
        check_same_encoding(config, workdir)
        return
    try:
        old = saved.read_bytes().decode("utf-8-sig")
        differences = gin.differences(old, config, root="pretrain")
    except UnicodeError:
        raise damaged(saved, "it is not UTF-8 text") from None
    except UserError as error:
        raise damaged(saved, str(error)) from error
    if lacking := [str(one.name) for one in differences if one.old is gin.ABSENT]:
        raise damaged(saved, f"it does not say {', '.join(lacking[:3])}")
    changed = [
        str(difference)
        for difference in differences
        if difference.name not in ("TRAIN_STEPS", "PRETRAINING_STEPS", "pretrain.train_steps")
        or difference.new <= difference.old
    ]
    if changed:
        raise UserError(
            f"{workdir} holds another experiment ({saved.name}): {'; '.join(changed)}\n"
            "choose another --workdir, or add --allow_config_change to go on in this one"
        )


def check_same_encoding(config: gin.Config, workdir: str) -> None:
    """No setting makes the state of one encoding that of another, even under the same names."""
    old, new = (model_of_run(workdir), config.call("build_decoder"))
    names = [models.encoding_names(model) for model in (old, new)]
    if names[0] != names[1] and available_steps(workdir):
        raise UserError(
            f"{workdir} was trained with {names[0]}, this run has {names[1]}: it cannot go on\n"
            f"to finetune across, choose another --workdir and add --gin.INIT_FROM={workdir}"
        )


def model_of_run(workdir: str) -> models.Decoder:
    if newest_config(workdir) is None:
        raise UserError(f"INIT_FROM: {workdir} holds no run (no config.gin)")
    return saved_config(workdir).call("build_decoder")


def compare_with_source(
    model: models.Decoder, trained: models.Decoder, source: str, kept: bool
) -> str:
    """How the model differs from that of the run whose parameters it takes (INIT_FROM), and which
    of its values are that run's and would be others at this length (`kept`)."""
    changed = [
        f"{name} {old} -> {new}" for name, (old, new) in models.changes(trained, model).items()
    ]
    line = f"model against {source}: {'; '.join(changed) or 'the same'}"
    if not kept:
        return line
    values = [f"{name} {value}" for name, value in models.lengths(model).items()]
    return f"{line}; kept from that run: {', '.join(values)}"


def newest_config(
    workdir: str | epath.Path, inside: Sequence[epath.Path] | None = None
) -> epath.Path | None:
    """The configuration of a run's latest start; `inside` is what the folder holds, if known.

    Raises:
      RunFailed: the folder cannot be listed, which is not to say that it holds no run.
    """
    found = {
        int(match[1] or 0): path
        for path in (children(place(workdir)) if inside is None else inside)
        if (match := re.fullmatch(r"config(?:_(\d+))?\.gin", path.name))
    }
    return found[max(found)] if found else None


def place(path: str | epath.Path) -> epath.Path:
    try:
        return epath.Path(path)
    except KeyError as error:
        raise UserError(f"{path} is neither a local folder nor gs://") from error


def resolved(path: epath.Path) -> epath.Path:
    """One spelling for all of a folder, symbolic links included. In a bucket each is its own."""
    return path if in_bucket(path) else epath.Path(Path(path).resolve())  # etils keeps links


def with_name(path: epath.Path) -> epath.Path:
    """`.` and `..` have none that a table could use."""
    return path if path.name not in ("", "..") else resolved(path)


def quiet_libraries() -> None:
    """Orbax and TensorFlow log internals through absl and C++; what users need, we say."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    skip_absent_tpu()
