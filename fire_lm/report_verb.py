"""`fire-lm report`: with `--list`, the rows of the paper and what has been run of them."""

from __future__ import annotations

import argparse

from fire_lm.errors import UserError
from fire_lm.paper_rows import listing
from fire_lm.verbs import quiet_libraries


def report(arguments: argparse.Namespace) -> None:
    quiet_libraries()
    if arguments.list:
        print(listing(arguments.runs))
        return
    if not arguments.runs:
        raise UserError("report needs RUN, a run directory or a folder of runs, or --list")
    raise UserError("report has no page of runs yet: `fire-lm report --list RUN` has a table")
