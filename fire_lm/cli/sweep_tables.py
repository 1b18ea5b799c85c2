"""The combined results of several runs' sweeps: their rows, a table and a figure."""

from __future__ import annotations

from collections.abc import Sequence

from etils import epath

from fire_lm.experiment import Experiment
from fire_lm.reporting.arms import arm_names, differing
from fire_lm.reporting.history import settings_of_history
from fire_lm.reporting.length_sweep import sweep_text, write_figure
from fire_lm.reporting.series import at_step
from fire_lm.results import PositionLoss, ScoredText, SweepRow, read_own, write_table
from fire_lm.results.folder import Results, RunFacts, Setting
from fire_lm.results.scored_text import FILE as TEXTS_FILE
from fire_lm.runs.saved import newest_config, saved_experiment
from fire_lm.storage import make_folder, place, remove, tolerating


def write_tables(checkpoints: Sequence[tuple[str, int]], top: epath.Path) -> str:
    """Write the rows of these checkpoints, their texts and a figure, and return a printable table.

    Existing rows in the folder `top` are replaced. If the folder is itself a run directory, it
    already contains these rows and perhaps others, so only the figure is written.
    """
    # In a job of several processes, the pairs have been converted to lists by JSON.
    wanted = {(name, step) for name, step in checkpoints}
    rows: list[SweepRow] = []
    texts: list[ScoredText] = []
    positions: list[PositionLoss] = []
    experiments: dict[str, Experiment] = {}
    for name in dict.fromkeys(name for name, _ in checkpoints):
        experiment = saved_experiment(place(name))
        own = read_own(place(name), experiment.label)
        rows += [row for row in own.losses if (name, row.step) in wanted]
        texts += [line for line in own.scored if (name, line.step) in wanted]
        positions += [row for row in own.positions if (name, row.step) in wanted]
        experiments[place(name).name] = experiment
    make_folder(top)
    if newest_config(top) is None:
        write_table(top / TEXTS_FILE, ScoredText, texts)  # Texts come first, as in `write_result`.
        if positions:
            write_table(top / "position_losses.csv", PositionLoss, positions)
        else:
            remove(top / "position_losses.csv")  # An old file would belong to other rows.
        write_table(top / "length_sweep.csv", SweepRow, rows)
    places = {place(name).name: place(name) for name, _ in checkpoints}
    results = as_results(rows, texts, experiments, settings_of_history(places, experiments))
    with tolerating(f"{top / 'length_sweep.png'}", "the tables are written"):
        write_figure(results, top / "length_sweep.png")
    return sweep_text(results)


def as_results(
    rows: Sequence[SweepRow],
    texts: Sequence[ScoredText],
    experiments: dict[str, Experiment],
    history: Sequence[Setting],
) -> Results:
    """Return the rows in the form that reports use.

    Runs that differ only in their seed form an arm. If there are several steps, their losses are
    separate series of the same runs, whose names contain the step.
    """
    arms = arm_names(experiments, [*differing(experiments), *history])
    steps: dict[str, set[int]] = {arm: set() for arm in arms.values()}
    for row in rows:
        steps[arms[row.run]].add(row.step)
    several = len(set().union(*steps.values())) > 1
    runs = [
        RunFacts(
            run=run,
            encoding=experiment.label,
            # The series of an arm with several steps have names with the step in any case.
            arm=at_step(arm, max(steps[arm]), several and len(steps[arm]) == 1),
            seed=experiment.train.seed,
            train_length=experiment.train.trained_length,
            step=max(steps[arm]),
            train_steps=experiment.train.train_steps,
        )
        for run, experiment in experiments.items()
        if steps[arm := arms[run]]
    ]
    return Results(runs=runs, losses=rows, scored=texts)
