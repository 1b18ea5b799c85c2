"""What `fire-lm sweep` leaves at the top of several runs: their rows, a table and a figure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from etils import epath

from fire_lm import config as gin
from fire_lm.arms import arm_names, differing
from fire_lm.reporting import (
    PositionLoss,
    ScoredText,
    SweepRow,
    read_rows,
    read_table,
    write_rows,
    write_table,
)
from fire_lm.reporting.length_sweep import sweep_text, write_figure
from fire_lm.reporting.results import Results, RunFacts
from fire_lm.reporting.scored_text import FILE as TEXTS_FILE
from fire_lm.storage import make_folder
from fire_lm.verbs import place, saved_config


def write_tables(checkpoints: Sequence[tuple[str, int]], top: epath.Path) -> str:
    """Rows of these checkpoints, what they are of, and a figure; returns the table.

    A folder that is not the run's own gets its rows, and what belongs to them, anew each time.
    """
    wanted = {(name, step) for name, step in checkpoints}  # in a job they come as lists (JSON)
    rows: list[SweepRow] = []
    texts: list[ScoredText] = []
    positions: list[PositionLoss] = []
    for name in dict.fromkeys(name for name, _ in checkpoints):
        folder = place(name)

        def is_wanted(row: SweepRow | ScoredText | PositionLoss, name: str = name) -> bool:
            return row.run == place(name).name and (name, row.step) in wanted

        rows += filter(is_wanted, read_rows(folder / "length_sweep.csv"))
        texts += filter(is_wanted, read_table(folder / TEXTS_FILE, ScoredText))
        positions += filter(is_wanted, read_table(folder / "position_losses.csv", PositionLoss))
    make_folder(top)
    if {place(name) for name, _ in checkpoints} != {top}:
        write_table(top / TEXTS_FILE, ScoredText, texts)  # first: see its module
        write_rows(top / "length_sweep.csv", rows)
        if positions:
            write_table(top / "position_losses.csv", PositionLoss, positions)
    configs = {place(name).name: saved_config(place(name)) for name, _ in checkpoints}
    results = as_results(rows, texts, configs)
    write_figure(results, top / "length_sweep.png")
    return sweep_text(results)


def as_results(
    rows: Sequence[SweepRow], texts: Sequence[ScoredText], configs: Mapping[str, gin.Config]
) -> Results:
    """As a report has them: runs that differ by their seed alone are an arm, of each step its own.

    Two runs of one seed are no two draws of anything: they are told apart by their names.
    """
    own = dict(configs)
    arms = arm_names(own, differing(own))
    seeds = {run: config.call("pretrain").seed for run, config in own.items()}
    alike = Counter((arms[run], seeds[run]) for run in own)
    several = len({row.step for row in rows}) > 1
    facts: dict[str, RunFacts] = {}
    for row in rows:
        config, arm = own[row.run], arms[row.run]
        if any(alike[arm, seeds[run]] > 1 for run in own if arms[run] == arm):
            arm = f"{arm} of {row.run}"
        facts[_run_at(row)] = RunFacts(
            run=_run_at(row),
            encoding=row.encoding,
            arm=f"{arm}, step {row.step}" if several else arm,
            seed=seeds[row.run],
            model="",
            parameters=0,
            encoding_parameters=0,
            train_length=config.call("pretrain").train_length,
            batch_size=0,
            step=row.step,
            train_steps=row.step,
            data="",
            machine="",
            began="",
            seconds=0.0,
        )
    return Results(
        runs=list(facts.values()),
        losses=[dataclasses.replace(row, run=_run_at(row)) for row in rows],
        scored=[dataclasses.replace(line, run=_run_at(line)) for line in texts],
    )


def _run_at(row: SweepRow | ScoredText) -> str:
    return f"{row.run}@{row.step}"
