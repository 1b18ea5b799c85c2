"""What the programs in this folder share: the folder of the evidence, and their command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fire_lm.cli.startup import prepare_process
from fire_lm.errors import FireLMError
from fire_lm.reporting.gather import gather
from fire_lm.reporting.page import Section, as_markdown
from fire_lm.reporting.report import check_is_reports, write_page
from fire_lm.results.folder import Results
from fire_lm.storage import place

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "docs" / "evidence"


def refusing(run: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> int:
    """Run a program, print an expected failure in plain lines, and return the exit code."""
    prepare_process()
    try:
        run(arguments)
    except FireLMError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def page_of(title: str, sections: Callable[[Results], list[Section]]) -> int:
    """Print the sections on runs that the command line names, or write a page of them."""

    def run(arguments: Sequence[str]) -> None:
        parser = argparse.ArgumentParser(description=f"{title}: prints it, or writes a page.")
        parser.add_argument("runs", metavar="RUN", nargs="+", help="as for `fire-lm report`")
        parser.add_argument("--output", metavar="DIR", help="folder for a page with figures")
        parsed = parser.parse_args(arguments)
        made = sections(gather(parsed.runs, with_probes=False))
        if not parsed.output:
            print(as_markdown(title, made))
            return
        folder = place(parsed.output)
        check_is_reports(folder)
        write_page(folder, title, made)
        print(f"{folder / 'index.html'}")

    return refusing(run, sys.argv[1:])
