"""What `fire-lm preflight` does: reads the configuration, has it compiled, prints the report."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from etils import epath

from fire_lm import verbs
from fire_lm.checkpoints import available_steps
from fire_lm.errors import RunFailed
from fire_lm.preflight import bundles, check
from fire_lm.preflight.programs import Compiler
from fire_lm.tpu_topology import parse_slice


def preflight(arguments: argparse.Namespace) -> None:
    """`fire-lm preflight`: the programs of a run compiled for `--slice`, and what it reads."""
    where = parse_slice(arguments.slice)
    verbs.quiet_libraries()
    config = verbs.load_config(arguments.gin_file, arguments.bindings, arguments.gin_search_paths)
    verbs.check_blocks(config)
    workdir = arguments.workdir or ""

    def check_workdir() -> str:
        steps = available_steps(workdir)
        verbs.check_same_experiment(config, workdir, allow_change=False)
        return f"goes on from step {max(steps)}" if steps else "none yet"

    train = config.arguments("pretrain", workdir=workdir, dry_run=False, init_from_model=None)
    score = config.arguments(
        "length_sweep", workdir="", run="", step=0, variant="", finished=[], on_row=None
    )
    lengths = sorted(score["lengths"])
    with tempfile.TemporaryDirectory() as folder:
        bundles.ask(folder)
        report = check.preflight(
            Compiler(where, Path(folder)),
            train,
            score,
            lengths if arguments.all_lengths else lengths[-1:],
            workdir,
            check_workdir,
        )
    print(report)
    if arguments.json:
        epath.Path(arguments.json).write_text(json.dumps(report.as_json(), indent=1) + "\n")
    if not report.passed:
        raise RunFailed(f"this run would not work on {where}")
