"""`fire-lm report`, which writes a page of tables and figures about one or more runs.

With `--list`, the verb prints the rows of the paper's tables and which of them have been run.
"""

from __future__ import annotations

import argparse

from etils import epath

from fire_lm.cli.startup import quiet_libraries
from fire_lm.console import signs_of_life
from fire_lm.errors import UserError
from fire_lm.reporting.gather import gather
from fire_lm.reporting.paper_rows import EVIDENCE, listing
from fire_lm.reporting.report import VERDICT, Beside, check_is_reports, write_report
from fire_lm.results import bench_times
from fire_lm.results.bench_times import ModelTimes
from fire_lm.results.folder import Results, holds_results, read_results
from fire_lm.storage import place, require_folder

_TIMES = "bench_model.json"


def run(arguments: argparse.Namespace) -> None:
    quiet_libraries()
    if arguments.list:
        other = arguments.against if arguments.against != "paper" else None
        asked = {"--output": arguments.output, "--bench": arguments.bench, "--against": other}
        if given := [name for name, value in asked.items() if value]:
            raise UserError(f"{given[0]} has no effect with --list: omit one of them")
        print(listing(arguments.runs))
        return
    if not arguments.runs:
        raise UserError("report needs RUN, a run directory or a folder of runs, or --list")
    if len(arguments.runs) > 1 and not arguments.output:
        raise UserError("several runs need --output=DIR, the folder of their report")
    top = place(arguments.runs[0])
    folder = place(arguments.output) if arguments.output else top / "report"
    require_folder(folder, "--output")
    check_is_reports(folder)
    times, times_are = _times(arguments.bench, top)
    against = None
    if arguments.against != "paper":
        against = (arguments.against, gather([arguments.against], with_probes=False))
    before = read_results(folder) if holds_results(folder) else Results()
    with signs_of_life("reading the runs"):
        results = gather(arguments.runs, before=before)
    with signs_of_life("drawing"):
        sections = write_report(
            folder, _title(arguments.runs), results, Beside(times, times_are, against)
        )
    told = [section for section in sections if section.title == VERDICT]
    print("\n".join(text for section in told for text in (section.title, *section.paragraphs)))
    print("\n".join(f"  {section.title}" for section in sections if section not in told))
    pages = f"{folder / 'index.html'}\n{folder / 'report.md'}"
    print(f"{pages}, with the data as .csv and the figures as .svg and .png")


def _title(names: list[str]) -> str:
    told = place(names[0]).absolute().name if len(names) == 1 else f"{len(names)} runs or folders"
    return f"Length generalisation: {told}"


def _times(asked: str | None, top: epath.Path) -> tuple[ModelTimes | None, str]:
    """Return the times of the model benchmark, if any, and a note on their origin.

    The times come from `--bench`, from the first run's folder, or from the measurements that
    fire_lm contains, in this order of preference. The note is empty unless fire_lm's are used.
    """
    if asked:
        if not place(asked).is_file():
            raise UserError(f"--bench: there is no file {asked}")
        return bench_times.read(place(asked)), ""
    own = "These times come from fire_lm's own benchmarks, not from these runs."
    for folder, whose in ((top, ""), (place(EVIDENCE), own)):
        if (folder / _TIMES).exists():
            return bench_times.read(folder / _TIMES), whose
    return None, ""
