"""`fire-lm grid`, which runs `python -m tpu grid --local` in any folder.

The package does not import the launcher, which is part of a checkout and is not installed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import fire_lm
from fire_lm.errors import UserError

_CHECKOUT = Path(fire_lm.__file__).parent.parent


def run(arguments: argparse.Namespace) -> None:
    """Replace this process by the launcher, so signals and the exit code are the launcher's."""
    command, environment = launcher(arguments.rest, os.environ)
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)


def launcher(
    rest: list[str], environment: Mapping[str, str], checkout: Path = _CHECKOUT
) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs a grid on this machine, and its environment.

    `rest` has the arguments after `fire-lm grid`, and `checkout` contains the package.
    """
    if not (checkout / "tpu" / "__main__.py").is_file():
        raise UserError(
            "grid needs a checkout of the repository, because the installed package lacks the "
            "launcher\nclone the repository, and run `pip install -e .` in it"
        )
    if any(argument.startswith("--cluster") for argument in rest):
        raise UserError(
            "`fire-lm grid` runs on this machine: omit --cluster, or use `python -m tpu grid`"
        )
    paths = [str(checkout), *filter(None, [environment.get("PYTHONPATH")])]
    local = [] if "--local" in rest else ["--local"]
    command = [sys.executable, "-m", "tpu", "grid", *rest, *local]
    return command, {**environment, "PYTHONPATH": os.pathsep.join(paths)}
