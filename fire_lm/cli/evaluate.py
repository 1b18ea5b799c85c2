"""`fire-lm evaluate`: the accuracy of runs on their synthetic task, by length."""

from __future__ import annotations

import argparse

from fire_lm.cli.startup import quiet_libraries
from fire_lm.sweeps.accuracy import evaluate


def run(arguments: argparse.Namespace) -> None:
    quiet_libraries()
    evaluate(arguments)
