"""The results that a report shows, gathered from run directories and folders of results."""

from __future__ import annotations

import collections
import dataclasses
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from etils import epath

from fire_lm.data import Synthetic
from fire_lm.errors import UserError
from fire_lm.experiment import Experiment
from fire_lm.models import layer_rows, parameter_shapes
from fire_lm.processes import note_once
from fire_lm.reporting.arms import arm_names, differing, scored_models, series_of, size_in_words
from fire_lm.reporting.history import settings_of_history
from fire_lm.reporting.losses import scored_in
from fire_lm.reporting.probes import probed_arms
from fire_lm.reporting.series import grouped
from fire_lm.reporting.sources import labels, named_apart, with_own_names
from fire_lm.results import SweepRow, read_own
from fire_lm.results.folder import (
    ENCODER,
    Results,
    RunFacts,
    Setting,
    holds_results,
    joined,
    read_results,
    renamed,
)
from fire_lm.results.measured_values import MeasuredValue, read_measures
from fire_lm.results.metrics_log import logged_steps
from fire_lm.results.tables import (
    KindOfLayer,
    LearnedNumber,
    LengthAccuracy,
    PositionLoss,
    RotaryPeriod,
    TrainedTask,
    TrainingPoint,
)
from fire_lm.runs.saved import newest_config, no_run, saved_experiment
from fire_lm.storage import children, place, with_name
from fire_lm.training.goodput import starts
from fire_lm.training.summary import count_parameters

Scored = TypeVar("Scored", SweepRow, LengthAccuracy, MeasuredValue)


def gather(
    named: Sequence[str], *, with_probes: bool = True, before: Results | None = None
) -> Results:
    """Gather the results of run directories, folders of runs, and folders of results.

    Args:
      named: The paths of the directories and folders, as given by the user.
      with_probes: Whether to compute biases and attention scores from checkpoints.
      before: The results of an earlier report, whose biases and attention scores are reused if they
        belong to the same checkpoints.

    Raises:
      UserError: A path is neither a run nor one of these folders, or two runs have the same name.
      RunFailed: A file is damaged.
    """
    folders: list[epath.Path] = []
    runs: list[epath.Path] = []
    for name in dict.fromkeys(named):
        folder = with_name(place(name))
        inside = _runs_inside(folder)
        if inside:
            runs += inside
        elif holds_results(folder):
            folders.append(folder)
        else:
            raise no_results(name)
    parts = [(label, read_results(folder)) for folder, label in labels(folders).items()]
    parts, places = with_own_names(parts, list(dict.fromkeys(runs)))
    if places:
        parts.append(("these runs", of_runs(places, with_probes, before or Results())))
    return joined(named_apart(parts))


def no_results(name: str) -> UserError:
    """Return the error for a path from which no results can be gathered."""
    return no_run(
        name,
        f"{name} is neither a run (no config.gin) nor a folder of runs or of results\n"
        "specify a run directory, a folder that contains runs, or the folder of a report",
    )


def _runs_inside(folder: epath.Path) -> list[epath.Path]:
    inside = children(folder)
    if newest_config(folder, inside):
        return [folder]
    return sorted(path for path in inside if newest_config(path))


def of_runs(places: Mapping[str, epath.Path], with_probes: bool, before: Results) -> Results:
    """Return the results of runs by name, which may differ from the name of the directory."""
    experiments = {run: saved_experiment(path) for run, path in places.items()}
    history = settings_of_history(places, experiments)
    settings = [*differing(experiments), *history]
    arms = arm_names(experiments, settings)
    of_each = [_of_run(run, path, experiments[run], arms[run]) for run, path in places.items()]
    results = joined([*of_each, Results(settings=settings)])

    def kind(row: SweepRow) -> object:
        return row.variant, scored_in(row)

    losses = newest(results.losses, arms, kind)
    results = dataclasses.replace(
        results,
        losses=losses,
        earlier=earlier_steps(results.losses, losses, kind),
        series=series_of(experiments, settings, arms),
        positions=of_losses(results.positions, losses),
        tasks=trained_tasks(experiments, history),
        models=scored_models(experiments, results.task_scores, history),
        accuracies=newest(
            results.accuracies, arms, lambda row: (row.variant, row.task, row.layout, row.positions)
        ),
        measures=newest(results.measures, arms, lambda row: (row.variant, row.measure, row.part)),
    )
    if not with_probes:
        return results
    return joined([results, *probed_arms(places, experiments, results, before)])


def trained_tasks(
    experiments: dict[str, Experiment], history: Sequence[Setting] = ()
) -> list[TrainedTask]:
    """Return the synthetic task of each run, with the run's arm among all runs on such tasks.

    An arm has the same name on every task. A setting is part of the name only if runs with the same
    encoding and task differ in it, and a setting of the task only in the names of these runs.
    `history` comes from `settings_of_history`.
    """
    data = {run: experiment.train.data for run, experiment in experiments.items()}
    tasks = {run: task for run, task in data.items() if isinstance(task, Synthetic)}
    own = {run: experiments[run] for run in tasks}
    on_task = grouped(tasks, lambda r: (own[r].label, tasks[r].task.label, tasks[r].layout))
    within = [s for runs in on_task.values() for s in differing({run: own[run] for run in runs})]
    settings = [setting for setting in within if _is_of_task(setting, tasks)]
    names_within = {setting.name for setting in within} - {setting.name for setting in settings}
    settings += [setting for setting in differing(own) if setting.name in names_within]
    settings += [setting for setting in history if setting.run in own]
    apart = {run: f"{task.task.label}, {task.layout}" for run, task in tasks.items()}
    names = arm_names(own, settings, apart)
    return [
        TrainedTask(run, names[run], task.task.label, task.layout, task.max_length)
        for run, task in tasks.items()
    ]


def _is_of_task(setting: Setting, tasks: Mapping[str, Synthetic]) -> bool:
    """Return whether a setting describes a run's synthetic task or the size that it requires."""
    configurable, _, parameter = setting.name.rpartition(".")
    return configurable in (
        "Synthetic",
        "length_sweep",
        type(tasks[setting.run].task).__name__,
    ) or parameter in ("vocab_size", "train_length")


def _of_run(run: str, workdir: epath.Path, experiment: Experiment, arm: str) -> Results:
    encoding = experiment.label
    lines, own = logged_steps(workdir), read_own(workdir, encoding)
    if own.problem:
        print(own.problem, flush=True)
    measures, damaged = read_measures(workdir, encoding)
    for problem in damaged:
        note_once(problem)
    facts = run_facts(workdir, experiment, arm, lines[-1]["step"] if lines else 0)
    turns = (position.periods() for position in experiment.model.encodings)
    rotary = (periods.tolist() for periods in turns if periods is not None)
    results = Results(
        runs=[facts],
        losses=own.losses,
        scored=own.scored,
        positions=own.positions,
        accuracies=own.accuracies,
        task_scores=own.task_scores,
        measures=measures,
        training=[point for line in lines if (point := _point(line, facts.run, encoding))],
        learned=[
            LearnedNumber(facts.run, encoding, line["step"], match[1], int(match[2]), float(value))
            for line in lines
            for name, value in line.items()
            if (match := re.fullmatch(r"(\w+)/layer_(\d+)", name)) and _is_number(value)
        ],
        layers=[
            KindOfLayer(run, encoding, *row)
            for row in layer_rows(experiment.model, parameter_shapes(experiment.model))
        ],
        periods=[
            RotaryPeriod(facts.run, encoding, pair, float(period))
            for pair, period in enumerate(next(rotary, []))
        ],
    )
    return renamed(results, {workdir.name: run})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def newest(
    rows: Sequence[Scored], arms: dict[str, str], kind: Callable[[Scored], object]
) -> list[Scored]:
    """Return, for each arm and kind of rows, the rows of the newest step that its runs share.

    Runs without rows of this kind are ignored. If the other runs share no step, the newest step of
    each run is used. Only steps whose scoring is complete are considered; see `complete_steps`.
    """
    steps = complete_steps(rows, kind)
    chosen: dict[tuple[str, object], int] = {}
    for runs in grouped(steps, lambda key: (arms[key[0]], key[1])).values():
        common = set.intersection(*(steps[key] for key in runs))
        chosen |= {key: max(common or steps[key]) for key in runs}
    return [row for row in rows if row.step == chosen[row.run, kind(row)]]


def earlier_steps(
    rows: Sequence[SweepRow], shown: Sequence[SweepRow], kind: Callable[[SweepRow], object]
) -> list[SweepRow]:
    """Return the rows of the steps that are completely scored but not `shown`."""
    complete, keys = complete_steps(rows, kind), {row.key for row in shown}
    return [r for r in rows if r.key not in keys and r.step in complete[r.run, kind(r)]]


def complete_steps(
    rows: Sequence[Scored], kind: Callable[[Scored], object]
) -> dict[tuple[str, object], set[int]]:
    """Return the steps whose scoring seems to be complete, for each run and kind of rows.

    A step is incomplete if another step has all of its lengths and more. Lengths that at most half
    of the steps have come from additional sweeps and do not count.
    """
    complete = {}
    for key, own in grouped(rows, lambda row: (row.run, kind(row))).items():
        steps = grouped(own, lambda row: row.step)
        lengths = {step: {row.length for row in some} for step, some in steps.items()}
        steps_with = collections.Counter(n for of_step in lengths.values() for n in of_step)
        usual = {length for length, count in steps_with.items() if 2 * count > len(steps)}
        scored = {step: of_step & usual for step, of_step in lengths.items()}
        complete[key] = {
            step
            for step, some in scored.items()
            if not any(some < more for more in scored.values())
        }
    return complete


def of_losses(positions: Sequence[PositionLoss], losses: Sequence[SweepRow]) -> list[PositionLoss]:
    """Return the losses by position at the steps of `losses`.

    A sweep computes them at its longest length only, so their own lengths do not tell which steps
    are complete.
    """
    shown = {row.key[:-2] for row in losses if row.protocol == "full"}
    return [row for row in positions if row.key[:-1] in shown]


def _point(line: dict[str, Any], run: str, encoding: str) -> TrainingPoint | None:
    """Return the training point of a parsed line, or None if a value is missing or not finite."""
    names = ("tokens", "loss", "grad_norm", "learning_rate", "tokens_per_second")
    if not all(_is_number(line.get(name)) for name in names):
        return None
    tokens, *rest = (line[name] for name in names)
    return TrainingPoint(run, encoding, line["step"], int(tokens), *map(float, rest))


def run_facts(workdir: epath.Path, experiment: Experiment, arm: str, step: int) -> RunFacts:
    """Return the facts of a run that has been trained up to a step."""
    model = experiment.model
    counts = count_parameters(parameter_shapes(model))
    began = starts(str(workdir))
    machine = began[-1].get("machine", {}) if began else {}
    run = experiment.train
    return RunFacts(
        run=workdir.name,
        encoding=experiment.label,
        arm=arm,
        seed=run.seed,
        model=size_in_words(model.size) + ("" if model.causal else ENCODER),
        parameters=sum(counts.values()),
        encoding_parameters=counts.get("encoding", 0),
        train_length=run.trained_length,
        batch_size=run.tokens_per_step // run.trained_length,
        step=step,
        train_steps=run.train_steps,
        data=run.data.in_words,
        machine=_in_words(machine),
        began=time.strftime("%Y-%m-%d", time.gmtime(began[0]["began"])) if began else "",
        seconds=sum(sum(start["seconds"].values()) for start in began),
        lengths="" if run.lengths.constant else run.lengths_in_words,
    )


def _in_words(machine: dict[str, Any]) -> str:
    """Describe the machine recorded by training/goodput.py; {} means that there is no record."""
    if not machine:
        return "not recorded"
    devices = machine["devices"]
    several = f" in {machine['processes']} processes" if machine["processes"] > 1 else ""
    return f"{devices} x {machine['kind']}{several}, jax {machine['jax']}"
