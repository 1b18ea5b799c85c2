"""The checks of `fire-lm preflight` that need no compiler, on text made for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sample_run import write_text

from fire_lm.cli import preflight
from fire_lm.experiment import load_experiment
from fire_lm.preflight import check
from fire_lm.runs.resuming import Start


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


def config_of(data: Path, *bindings: str, position: str = "fire", more: str = "") -> Any:
    names = ["runs/quickstart", f"positions/{position}", *filter(None, [more])]
    files = [f"configs/{name}.gin" for name in names]
    return load_experiment(files, [f"DATA_DIR={data}", *bindings])


def outcomes(
    config: Any, workdir: str = "", hosts: int = 1, **more: Any
) -> dict[str, tuple[str, str]]:
    """Return {name: (outcome, message)} for all checks that need no compiler."""
    train, score = config.train, config.sweep
    saved = preflight.what_is_saved(Start(config, workdir, **more), train, hosts)
    checks = list(check.check_surroundings(train, score, workdir, saved))
    assert all("\n" not in found.detail for found in checks)
    return {found.name: (found.outcome, found.detail) for found in checks}
