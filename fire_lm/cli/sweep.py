"""`fire-lm sweep`, which scores runs at several lengths."""

from __future__ import annotations

import argparse

from fire_lm.cli.startup import quiet_libraries
from fire_lm.processes import initialize_distributed
from fire_lm.sweeps.sweep import sweep


def run(arguments: argparse.Namespace) -> None:
    quiet_libraries()
    initialize_distributed()
    sweep(arguments)
