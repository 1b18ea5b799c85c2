"""A folder for dry runs of commands: the configurations, and a run to sweep."""

from __future__ import annotations

import shutil
from pathlib import Path

from etils import epath

from fire_lm.checkpoints.manifest import write_manifest
from fire_lm.experiment import load_experiment
from fire_lm.runs.saved import save_config

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
FILES = ("configs/runs/quickstart.gin", "configs/positions/fire.gin")
QUICKSTART = tuple(f"--gin_file={file}" for file in FILES)
STEP = 20


def prepare(folder: Path) -> None:
    """Copy the configurations and make runs/fire, which a dry run can sweep.

    `folder` must be the working directory.
    """
    shutil.copytree(CONFIGS, folder / "configs")
    run = folder / "runs" / "fire"
    (run / "checkpoints" / str(STEP) / "state").mkdir(parents=True)
    (run / "checkpoints" / str(STEP) / "state" / "array").write_text("never read")
    write_manifest(epath.Path(run / "checkpoints" / str(STEP)))
    save_config(load_experiment(FILES), run)
