"""Arms, which are groups of runs that differ only in their seeds, and their names."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from fire_lm.checkpoints import parted
from fire_lm.data import TextToText
from fire_lm.experiment import Experiment
from fire_lm.models import ModelSize
from fire_lm.reporting.series import grouped
from fire_lm.results.folder import Setting
from fire_lm.results.tables import BudgetSeries, ScoredModel, TaskScore
from fire_lm.runs.changed import affects_results
from fire_lm.training import in_words

# Seeds tell the runs of an arm apart. Where paths lead to different texts, `_with_texts` adds the
# texts to names.
SEEDS = ("pretrain.seed", "finetune.seed")
_LENGTHS = "pretrain.train_lengths"
# The values of a setting that is off. Names of arms omit these settings.
_OFF = ("None", "Resampling()")
# The settings that identify the task of a finetuning run.
OF_TASK = (
    *("TextToText.name", "TextToText.target_length"),
    *("Pairs.name", "Pairs.file", "Pairs.sha256", "Pairs.target_length"),
)


def differing(experiments: dict[str, Experiment]) -> list[Setting]:
    """Return the settings whose values differ between runs, with the `repr` of each value.

    A setting is compared only among the runs that have it. Runs are compared by parameter, because
    one run may bind a parameter directly and another run through a macro.
    """
    leaves = {
        run: {name: repr(value) for name, (_, value) in experiment.settings.items()}
        for run, experiment in experiments.items()
    }
    names = dict.fromkeys(name for values in leaves.values() for name in values)
    return [
        Setting(run, name, values[name])
        for name in names
        if len({values[name] for values in leaves.values() if name in values}) > 1
        for run, values in leaves.items()
        if name in values
    ]


def arm_names(
    experiments: dict[str, Experiment],
    settings: Sequence[Setting],
    apart: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the name of each run's arm.

    The name consists of the encoding and of the settings, if any, in which runs with this encoding
    differ, apart from settings that are off, and of the text if only the text differs. Finetuned
    runs are not compared with pretrained runs.
    Two runs with the same seed, such as a run and its copy, are not independent samples, so the
    names of their arms also contain the names of the runs, unless `apart` maps the two runs to
    different values.
    """
    own: dict[str, dict[str, str]] = {run: {} for run in experiments}
    for setting in settings:
        if setting.name not in SEEDS and affects_results(setting.name):
            own[setting.run][setting.name] = _what(setting)
    names, differs = {}, {}
    for run, experiment in experiments.items():
        of_encoding = [other for other in own if experiments[other].label == experiment.label]
        same = [other for other in of_encoding if experiments[other].kind == experiment.kind]
        differs[run] = {
            name: value
            for name, value in own[run].items()
            if len({own[other].get(name) for other in same}) > 1 and value not in _OFF
        }
        finetuned = ["finetuned"] * (experiment.kind == "finetune" and len(same) < len(of_encoding))
        names[run] = ", ".join([experiment.label, *finetuned])
    names = _with_settings(names, differs)
    names = _with_texts(names, experiments)
    draws = Counter(
        (names[run], experiment.train.seed, (apart or {}).get(run))
        for run, experiment in experiments.items()
    )
    repeated = {name for (name, *_), count in draws.items() if count > 1}
    return {run: f"{name} of {run}" if name in repeated else name for run, name in names.items()}


def series_of(
    experiments: dict[str, Experiment], settings: Sequence[Setting], arms: Mapping[str, str]
) -> list[BudgetSeries]:
    """Return the series of runs that differ in their numbers of steps, or [] if none do.

    The name of a series has the settings of the arm's name except the number of steps and those
    settings of the optimizer in which runs of the same encoding and number of steps agree, such as
    a learning rate that was searched for each budget. `settings` comes from `differing`, and `arms`
    from `arm_names`.
    """
    steps = {run: experiment.train.train_steps for run, experiment in experiments.items()}
    if len(set(steps.values())) < 2:
        return []
    values: dict[tuple[object, ...], set[str]] = {}
    budgets = {run: (experiment.label, steps[run]) for run, experiment in experiments.items()}
    for setting in settings:
        values.setdefault((setting.name, budgets[setting.run]), set()).add(setting.value)
    optimizers = {type(experiment.train.optimizer).__name__ for experiment in experiments.values()}

    def follows(setting: Setting) -> bool:
        """Return whether a setting is the number of steps, or chosen for it."""
        chosen = setting.name.partition(".")[0] in optimizers
        return setting.name.endswith(".train_steps") or (
            chosen and len(values[setting.name, budgets[setting.run]]) == 1
        )

    own = [setting for setting in settings if not follows(setting)]
    names = arm_names(experiments, own, apart={run: str(count) for run, count in steps.items()})
    return [BudgetSeries(run, names[run]) for run in experiments if names[run] != arms[run]]


def _with_settings(
    names: Mapping[str, str], differs: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """Add the settings of each run in which runs differ, by their parameters.

    One macro may set several parameters; for example, TRAIN_LENGTH sets a length of the run and one
    of the model. Parameters of the same name in different scopes are told apart only where two
    names would otherwise be the same.
    """

    def named(run: str, whole: bool) -> str:
        values = dict.fromkeys(
            value
            if name in (OF_TASK[0], _LENGTHS)
            else f"{name if whole else name.rpartition('.')[2]} {value}"
            for name, value in differs[run].items()
        )
        return ", ".join([names[run], *values])

    short = {run: named(run, whole=False) for run in names}
    of_name = grouped(short, lambda run: short[run])
    unclear = {
        name for name, runs in of_name.items() if any(differs[r] != differs[runs[0]] for r in runs)
    }
    return {run: named(run, whole=name in unclear) for run, name in short.items()}


def _with_texts(names: Mapping[str, str], experiments: Mapping[str, Experiment]) -> dict[str, str]:
    """Add the text to the names of runs that have the same name but were trained on other texts.

    A folder may have been moved, so texts are compared by their names where these are known. The
    text of `Blocks` is otherwise that of its path, because no other setting identifies it.
    """
    with_texts = dict(names)
    for name in set(names.values()):
        data = {run: experiments[run].train.data for run in names if names[run] == name}
        if len(set(map(repr, data.values()))) > 1:
            texts = {run: one.text_name() for run, one in data.items()}
            if len(set(filter(None, texts.values()))) > 1:
                with_texts |= {run: f"{name}, {text}" for run, text in texts.items() if text}
    return with_texts


def _what(setting: Setting) -> str:
    """Return the value of a setting as it appears in the names of arms.

    A reference such as '@LogN()' appears as LogN. The value of INIT_FROM may differ between seeds,
    so names only show whether it is set, and the step, if any.
    """
    if setting.name in ("pretrain.init_from", "finetune.init_from"):
        run, at, step = parted(setting.value.strip("'"))
        return f"a run{at}{step}" if run else "nothing"
    if setting.name == OF_TASK[0]:
        return setting.value.strip("'").removeprefix("fire_lm:")
    if setting.name == _LENGTHS:
        entries = ast.literal_eval(setting.value)
        return f"trained at {in_words(entries)}" if entries else "None"
    reference = re.fullmatch(r"'@(.+?)(\(\))?'", setting.value)
    return reference[1] if reference else setting.value


def size_in_words(size: ModelSize) -> str:
    """Return the description of a model's size in `RunFacts`."""
    return f"{size.num_layers} layers x {size.hidden_size}"


def scored_models(
    experiments: dict[str, Experiment], rows: Sequence[TaskScore], history: Sequence[Setting] = ()
) -> list[ScoredModel]:
    """Return each run's model in each suite of text-to-text tasks for which the run has scores.

    Runs that differ only in the task of the suite on which they were finetuned have the same model.
    A finetuned run without scores is assigned to the suite "". `history` comes from
    `settings_of_history`.
    """
    of_suite = grouped(
        (r for r in rows if not experiments[r.run].train.data.exercises), lambda r: r.suite
    )
    models = []
    for suite, some in of_suite.items():
        own = {row.run: experiments[row.run] for row in some}
        settings = [setting for setting in differing(own) if setting.name not in OF_TASK]
        settings += [setting for setting in history if setting.run in own]
        task_of = {run: _task(experiment) for run, experiment in own.items()}
        for runs in grouped(own, lambda run: task_of[run]).values():  # noqa: B023
            settings += _pairs_of({run: own[run] for run in runs})
        names = arm_names(own, settings, apart=task_of)
        models += [ScoredModel(run, suite, names[run]) for run in own]
    scored = {model.run for model in models}
    unscored = [
        run for run, experiment in experiments.items() if _task(experiment) and run not in scored
    ]
    return models + [ScoredModel(run, "", experiments[run].label) for run in unscored]


def _pairs_of(experiments: dict[str, Experiment]) -> list[Setting]:
    """Return the beginnings of the hashes of files of pairs of one name, if they differ."""
    return [
        Setting(setting.run, "Pairs.pairs", ast.literal_eval(setting.value)[:8])
        for setting in differing(experiments)
        if setting.name == "Pairs.sha256"
    ]


def _task(experiment: Experiment) -> str:
    """Return the name of the task on which a run was finetuned, or "" for other runs."""
    data = experiment.train.data
    return data.name if isinstance(data, TextToText) else ""
