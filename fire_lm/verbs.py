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
from fire_lm.checkpoints import Checkpointing, available_steps, choose_step, split_run
from fire_lm.data import Blocks, TextData
from fire_lm.errors import UserError
from fire_lm.reporting import SweepRow, ranked_steps, read_rows, write_rows
from fire_lm.reporting import length_sweep as report
from fire_lm.sharding import MeshShape, initialize_distributed, skip_absent_tpu

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
    folder = Path(__file__).parent.parent / "configs" / "positions"
    names = ", ".join(sorted(path.stem for path in folder.glob("*.gin")))
    return gin.load(
        gin_files,
        bindings,
        [path for path in search_paths.split(",") if path],
        configurables={c.__name__: c for c in configurables},
        roots=ROOTS,
        hints={
            "POSITION": "no positional encoding chosen: add "
            f"--gin_file=configs/positions/NAME.gin\nNAME is one of {names}"
        },
    )


def pretrain(arguments: argparse.Namespace) -> None:
    """`fire-lm pretrain`: trains, or resumes, the run in `--workdir`."""
    quiet_libraries()
    if not arguments.workdir and not arguments.dry_run:
        raise UserError("pretrain needs --workdir=DIR, the run directory (or --dry_run)")
    config = load_config(arguments.gin_file, arguments.bindings, arguments.gin_search_paths)
    check_blocks(config)
    initialize_distributed()
    speaks = jax.process_index() == 0
    if speaks:
        print(config.text())
    if arguments.dry_run:
        config.call("pretrain", workdir="", dry_run=True, init_from_model=None)
        return
    with training.telling_others():
        start_run(config, arguments, speaks)


def start_run(config: gin.Config, arguments: argparse.Namespace, speaks: bool) -> None:
    check_same_experiment(config, arguments.workdir, arguments.allow_config_change)
    source = split_run(str(config.macro("INIT_FROM") or ""))[0]
    trained = None
    if source and not available_steps(arguments.workdir):  # else the run resumes without it
        trained = model_of_run(source)
        if speaks:
            print(compare_with_source(config.call("build_decoder"), trained, source))
    config.call(
        "pretrain",
        workdir=arguments.workdir,
        dry_run=False,
        init_from_model=trained,
        before_first_step=lambda: gin.save(config, arguments.workdir) if speaks else None,
        ranked=lambda: ranked_steps(read_rows(epath.Path(arguments.workdir) / "length_sweep.csv")),
    )


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


def check_same_experiment(config: gin.Config, workdir: str, allow_change: bool) -> None:
    """Refuses a workdir of another experiment; training longer is the same experiment."""
    saved = newest_config(workdir)
    if saved is None:
        return
    if allow_change:
        check_same_encoding(config, workdir)
        return
    changed = [
        str(difference)
        for difference in gin.differences(saved.read_text(), config, root="pretrain")
        if difference.name not in ("TRAIN_STEPS", "pretrain.train_steps")
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
    saved = newest_config(workdir)
    if saved is None:
        raise UserError(f"INIT_FROM: {workdir} holds no run (no config.gin)")
    return load_config([str(saved)]).call("build_decoder")


def compare_with_source(model: models.Decoder, trained: models.Decoder, source: str) -> str:
    """How the model differs from that of the run whose parameters it takes (INIT_FROM).

    Parameters may mean something else under other settings: FIRE's threshold is a learned
    multiple of init_L, by default a quarter of the training length.
    """
    changed = [
        f"{name} {old} -> {new}" for name, (old, new) in models.changes(trained, model).items()
    ]
    return f"model against {source}: {'; '.join(changed) or 'the same'}"


def newest_config(workdir: str | epath.Path) -> epath.Path | None:
    """The configuration of a run's latest start."""
    found = {
        int(match[1] or 0): path
        for path in place(workdir).glob("config*.gin")
        if (match := re.fullmatch(r"config(?:_(\d+))?\.gin", path.name))
    }
    return found[max(found)] if found else None


def place(path: str | epath.Path) -> epath.Path:
    try:
        return epath.Path(path)
    except KeyError as error:
        raise UserError(f"{path} is neither a local folder nor gs://") from error


def sweep(arguments: argparse.Namespace) -> None:
    """`fire-lm sweep`: rows beside each run, table and figure of all of them at the top."""
    quiet_libraries()
    runs, top = find_runs(arguments.runs, arguments.output)
    initialize_distributed()
    rows: list[SweepRow] = []
    train_lengths: dict[str, int] = {}
    for workdir, step in dict.fromkeys((run, choose_step(run, step)) for run, step in runs):
        saved = str(newest_config(workdir))
        config = load_config(
            [saved, *arguments.gin_file], arguments.bindings, arguments.gin_search_paths
        )
        variant = variant_of(load_config([saved]), config, workdir)
        if arguments.dry_run:
            print(f"{workdir}@{step} at {config.macro('EVAL_LENGTHS')}\n{config.text()}")
            continue
        rows += sweep_run(config, workdir, step, variant)
        train_lengths[workdir.name] = train_length(config)
    if jax.process_index() == 0 and not arguments.dry_run:
        top.mkdir(parents=True, exist_ok=True)
        if {workdir for workdir, _ in runs} != {top}:
            write_rows(top / "length_sweep.csv", rows)
        report.figure(rows, train_lengths, top / "length_sweep.png")
        print(f"\n{report.table(rows, train_lengths)}\n\n{top / 'length_sweep.csv'}, .png")


def variant_of(trained: gin.Config, asked: gin.Config, workdir: epath.Path) -> str:
    """What is asked of the trained model at evaluation alone, by its name in the table."""
    if trained.macro("ENCODING") != asked.macro("ENCODING"):
        raise UserError(
            f"{workdir} was trained as {trained.macro('ENCODING')}, which is its name in the table"
            ": set what changes at evaluation by bindings (--gin.RoPE.scaling=@YaRN()), not by a "
            "file of configs/positions"
        )
    try:
        return models.variant(trained.call("build_decoder"), asked.call("build_decoder"))
    except UserError as error:
        raise UserError(f"{workdir}: {error}") from error


def sweep_run(config: gin.Config, workdir: epath.Path, step: int, variant: str) -> list[SweepRow]:
    """All rows of one checkpoint, each written as soon as it is known."""
    path = workdir / "length_sweep.csv"
    rows = read_rows(path)

    def add(row: SweepRow) -> None:
        rows.append(row)
        if jax.process_index() == 0:
            write_rows(path, rows)

    config.call(
        "length_sweep",
        workdir=str(workdir),
        run=workdir.name,
        step=step,
        variant=variant,
        finished=list(rows),
        on_row=add,
    )
    return [row for row in rows if (row.run, row.step) == (workdir.name, step)]


def train_length(config: gin.Config) -> int:
    length = config.macro("TRAIN_LENGTH")
    assert isinstance(length, int)  # pretrain's annotation has been checked
    return length


def find_runs(
    named: Sequence[str], output: str | None
) -> tuple[list[tuple[epath.Path, int | None]], epath.Path]:
    """The runs, each with the step asked for, and the folder of the combined results.

    A name is a run directory (its newest checkpoint), `RUN@STEP`, or a folder of runs.
    """
    runs: list[tuple[epath.Path, int | None]] = []
    folders = []
    for name in named:
        folder, step = (name, None) if place(name).is_dir() else split_run(name)
        path = place(folder)
        path = path if path.name else path.absolute()  # `.` has no name
        if not path.is_dir():
            raise UserError(f"there is no run directory {folder}")
        folders.append(path)
        inside = [path] if newest_config(path) else sorted(filter(newest_config, path.iterdir()))
        if not inside:
            raise UserError(f"{folder} is neither a run (no config.gin) nor a folder of runs")
        ready = [run for run in inside if available_steps(run)] or inside
        for run in set(inside) - set(ready):
            print(f"{run} has no checkpoint yet: left out")
        runs += [(run, step) for run in ready]
    paths = {run for run, _ in runs}
    if len({run.name for run in paths}) < len(paths):
        raise UserError("two of the runs have the same name, the table could not tell them apart")
    if output:
        return runs, epath.Path(output)
    if len(set(folders)) == 1:
        return runs, folders[0]
    raise UserError("several runs: say --output=DIR, the folder for their table and figure")


def quiet_libraries() -> None:
    """Orbax and TensorFlow log internals through absl and C++; what users need, we say."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    skip_absent_tpu()
