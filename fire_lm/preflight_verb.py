"""What `fire-lm preflight` does: reads the configuration, has it compiled, prints the report."""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fire_lm import verbs
from fire_lm.checkpoints import available_steps, check_arrays, split_run
from fire_lm.errors import RunFailed, UserError
from fire_lm.evaluation import lengths_refused
from fire_lm.preflight import bundles, check
from fire_lm.preflight.programs import Compiler, state_of
from fire_lm.storage import in_bucket, is_folder, require_bucket
from fire_lm.tpu_topology import parse_slice
from fire_lm.training import check_start, ensure_writable


def preflight(arguments: argparse.Namespace) -> None:
    """`fire-lm preflight`: the programs of a run compiled for `--slice`, and what it reads."""
    where = parse_slice(arguments.slice)
    verbs.quiet_libraries()
    workdir = str(verbs.place(arguments.workdir)) if arguments.workdir else ""
    if arguments.json:
        check_place_of(arguments.json)
    config = verbs.load_config(arguments.gin_file, arguments.bindings, arguments.gin_search_paths)
    verbs.check_blocks(config)
    with contextlib.suppress(UserError, RunFailed):  # told below, as a check of what is saved
        config = verbs.with_kept_lengths(config, workdir, allow_change=False)
    train = config.arguments("pretrain", workdir=workdir, dry_run=False, init_from_model=None)
    rest: dict[str, Any] = {"finished": None, "on_scored": None}
    score = config.arguments("length_sweep", workdir="", run="", step=0, variant="", **rest)
    lengths = sorted(set(score["lengths"]))
    lengths = sorted(set(lengths) - set(lengths_refused(score["model"], lengths)))
    with tempfile.TemporaryDirectory() as folder:
        bundles.ask(folder)
        report = check.preflight(
            Compiler(where, Path(folder)),
            train,
            score,
            lengths if arguments.all_lengths else lengths[-1:],
            workdir,
            what_is_saved(config, train, workdir),
        )
    print(report)
    if arguments.json:
        verbs.place(arguments.json).write_text(json.dumps(report.as_json(), indent=1) + "\n")
    if not report.passed:
        raise RunFailed(f"this run would not work on {where}")


def what_is_saved(
    config: Any, train: Mapping[str, Any], workdir: str
) -> dict[str, Callable[[], str]]:
    """Checks of what the run would go on from, or start from."""

    def checkpoint() -> str:
        verbs.check_same_experiment(config, workdir, allow_change=False)
        steps = available_steps(workdir)
        if not steps:
            return "none yet"
        check_arrays(workdir, steps[-1], state_of(train))
        return f"goes on from step {steps[-1]}"

    def source() -> str:
        if workdir and available_steps(workdir):
            return "not read: the run directory has checkpoints"
        run, _ = split_run(train["init_from"])
        allowed = (train["init_allow_missing"], train["init_allow_unused"])
        trained, params = verbs.model_of_run(run), state_of(train).params
        step, missing = check_start(params, train["init_from"], *allowed, train["model"], trained)
        fresh = f"; fresh, as it lacks them: {', '.join(missing)}" if missing else ""
        return f"starts from the parameters of {run}@{step}{fresh}"

    checks: dict[str, Callable[[], str]] = {}
    if workdir:
        checks["checkpoint"] = checkpoint
    if train["init_from"]:
        checks["INIT_FROM"] = source
    return checks


def check_place_of(file: str) -> None:
    """Before minutes of compiling."""
    path = verbs.place(file)
    require_bucket(path, "--json")
    with contextlib.suppress(RunFailed):  # who may write to a bucket need not be allowed to read
        if is_folder(path):
            raise UserError(f"--json={file} is a folder: name a file")
    if not in_bucket(path) and not path.parent.is_dir():
        raise UserError(f"--json={file}: there is no folder {path.parent}: make it")
    ensure_writable(path.parent, "--json")
