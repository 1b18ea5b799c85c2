"""`fire-lm report`, which writes a page of tables and figures about one or more runs."""

from __future__ import annotations

import argparse

from fire_lm.console import signs_of_life
from fire_lm.errors import UserError
from fire_lm.reporting.gather import gather, no_results
from fire_lm.reporting.page import Table
from fire_lm.reporting.report import VERDICT, check_is_reports, write_report
from fire_lm.results.folder import Results, holds_results, read_results
from fire_lm.storage import in_bucket, place, require_folder


def run(arguments: argparse.Namespace) -> None:
    if len(arguments.runs) > 1 and not arguments.output:
        raise UserError("several runs need --output=DIR, the folder of their report")
    top = place(arguments.runs[0])
    if not (arguments.output or in_bucket(top) or top.is_dir()):
        raise no_results(arguments.runs[0])
    folder = place(arguments.output) if arguments.output else top / "report"
    require_folder(folder, "--output")
    check_is_reports(folder)
    against = None
    if arguments.against:
        against = (arguments.against, gather([arguments.against], with_probes=False))
    before = read_results(folder) if holds_results(folder) else Results()
    with signs_of_life("reading the runs"):
        results = gather(arguments.runs, before=before)
    with signs_of_life("drawing"):
        sections = write_report(folder, _title(arguments.runs), results, against)
    for section in sections:
        if section.title == VERDICT:
            tables = [part.plain() for part in section.parts if isinstance(part, Table)]
            print("\n".join([section.title, *section.paragraphs, *tables]))
    print("\n".join(f"  {section.title}" for section in sections if section.title != VERDICT))
    pages = f"{folder / 'index.html'}\n{folder / 'report.md'}"
    print(f"{pages}, with the data as .csv and the figures as .svg and .png")


def _title(names: list[str]) -> str:
    runs = place(names[0]).absolute().name if len(names) == 1 else f"{len(names)} runs or folders"
    return f"Length generalisation: {runs}"
