"""What a report shows, gathered from run directories: files that runs and sweeps left, and probes
of the newest checkpoints."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from etils import epath

from fire_lm import config as gin
from fire_lm.checkpoints import available_steps
from fire_lm.data import Data, dataset_label, scoring_text
from fire_lm.errors import FireLMError, UserError
from fire_lm.evaluation.probes import attention_scores, interpolated, learned_biases
from fire_lm.evaluation.scoring import read_params
from fire_lm.metrics import whole_lines
from fire_lm.models import Decoder, variant
from fire_lm.reporting import SweepRow, read_rows
from fire_lm.reporting.result_files import (
    LearnedNumber,
    PositionLoss,
    TrainingPoint,
    read_table,
)
from fire_lm.reporting.results import (
    Results,
    RunFacts,
    Setting,
    holds_results,
    joined,
    read_results,
)
from fire_lm.reporting.seeds import scored_in
from fire_lm.sharding import MeshShape, make_mesh
from fire_lm.sweep_runs import SAME_NAME
from fire_lm.training.goodput import starts
from fire_lm.training.summary import count_parameters
from fire_lm.verbs import load_config, newest_config, place

Scored = TypeVar("Scored", SweepRow, PositionLoss)

# Of a run's settings, those that change no number.
_IDLE = ("SEED", "Checkpointing.", "Watchdog.", "pretrain.log_every")


def gather(named: Sequence[str]) -> Results:
    """Results of run directories, folders of runs, and folders of results.

    Raises:
      UserError: one of them is none of these, or two runs have one name. RunFailed: a damaged file.
    """
    parts, runs = [], []
    for name in named:
        folder = place(name)
        inside = _runs_inside(folder)
        if inside:
            runs += inside
        elif holds_results(folder):
            parts.append(read_results(folder))
        else:
            raise UserError(
                f"{name} is neither a run (no config.gin), nor a folder of runs, nor one of results"
            )
    runs = list(dict.fromkeys(runs))
    found = joined([*parts, of_runs(runs)] if runs else parts)
    names = [facts.run for facts in found.runs]
    if len(set(names)) < len(names):
        raise UserError(SAME_NAME)
    return found


def _runs_inside(folder: epath.Path) -> list[epath.Path]:
    if not folder.is_dir():
        return []
    folder = folder if folder.name else folder.absolute()
    if newest_config(folder):
        return [folder]
    return sorted(path for path in folder.iterdir() if path.is_dir() and newest_config(path))


def of_runs(workdirs: Sequence[epath.Path]) -> Results:
    configs = {path.name: load_config([str(newest_config(path))]) for path in workdirs}
    settings = differing(configs)
    arms = arm_names(configs, settings)
    found = [_of_run(path, configs[path.name], arms[path.name]) for path in workdirs]
    results = joined([*found, Results(settings=settings)])
    first = {runs[0].run for runs in results.arms().values()}
    probes = [_probed(path, configs[path.name], results) for path in workdirs if path.name in first]
    return joined([results, *probes])


def differing(configs: dict[str, gin.Config]) -> list[Setting]:
    """The settings that are not the same in all runs that have them, as gin would print them."""
    leaves = {
        run: {name: repr(value) for name, value in config.leaves("pretrain").values()}
        for run, config in configs.items()
    }
    names = dict.fromkeys(name for values in leaves.values() for name in values)
    return [
        Setting(run, name, values[name])
        for name in names
        if not name.startswith(("pretrain.before", "pretrain.ranked"))  # functions, set by verbs
        if len({values[name] for values in leaves.values() if name in values}) > 1
        for run, values in leaves.items()
        if name in values
    ]


def arm_names(configs: dict[str, gin.Config], settings: Sequence[Setting]) -> dict[str, str]:
    """The encoding, and where runs of one encoding differ by more than seeds, also by what."""
    own: dict[str, dict[str, str]] = {run: {} for run in configs}
    for setting in settings:
        if not setting.name.startswith(_IDLE):
            own[setting.run][setting.name] = setting.value
    encodings = {run: str(config.macro("ENCODING")) for run, config in configs.items()}
    names = {}
    for run, encoding in encodings.items():
        same = [values for other, values in own.items() if encodings[other] == encoding]
        apart = [
            f"{name.rpartition('.')[2]} {value}"
            for name, value in own[run].items()
            if len({values.get(name) for values in same}) > 1
        ]
        names[run] = f"{encoding}, {', '.join(apart)}" if apart else encoding
    return names


def _of_run(workdir: epath.Path, config: gin.Config, arm: str) -> Results:
    run, encoding = workdir.name, str(config.macro("ENCODING"))
    lines = [facts for facts, _ in whole_lines(workdir / "metrics.jsonl")]
    rows = [row for row in read_rows(workdir / "length_sweep.csv") if row.run == run]
    bins = [b for b in read_table(workdir / "position_losses.csv", PositionLoss) if b.run == run]
    facts = _facts(workdir, config, arm, lines[-1]["step"] if lines else 0)
    return Results(
        runs=[facts],
        losses=newest(rows, lambda row: (row.variant, scored_in(row))),
        positions=newest(bins, lambda row: (row.variant, row.dataset, row.split, row.construction)),
        training=[point for line in lines if (point := _point(line, run, encoding))],
        learned=[
            LearnedNumber(run, encoding, line["step"], match[1], int(match[2]), float(value))
            for line in lines
            for name, value in line.items()
            if (match := re.fullmatch(r"(\w+)/layer_(\d+)", name))
        ],
    )


def newest(rows: Sequence[Scored], kind: Callable[[Scored], object]) -> list[Scored]:
    """Of each kind of rows those of the newest step, but of none that is only being scored: one
    with fewer rows than another."""
    counts = Counter((kind(row), row.step) for row in rows)
    chosen: dict[object, tuple[int, int]] = {}
    for (what, step), count in counts.items():
        chosen[what] = max(chosen.get(what, (0, 0)), (count, step))
    return [row for row in rows if row.step == chosen[kind(row)][1]]


def _point(line: dict[str, Any], run: str, encoding: str) -> TrainingPoint | None:
    """None of a line that lacks something, such as a loss that was not finite."""
    names = ("tokens", "loss", "grad_norm", "learning_rate", "tokens_per_second")
    if any(not isinstance(line.get(name), int | float) for name in names):
        return None
    tokens, *rest = (line[name] for name in names)
    return TrainingPoint(run, encoding, line["step"], int(tokens), *map(float, rest))


def _facts(workdir: epath.Path, config: gin.Config, arm: str, step: int) -> RunFacts:
    model = config.call("build_decoder")
    counts = count_parameters(_abstract_params(model))
    began = starts(str(workdir))
    machine = began[-1].get("machine", {}) if began else {}
    asked = _asked(config)
    return RunFacts(
        run=workdir.name,
        encoding=str(config.macro("ENCODING")),
        arm=arm,
        seed=asked["seed"],
        model=f"{model.size.num_layers} layers x {model.size.hidden_size}",
        parameters=sum(counts.values()),
        encoding_parameters=counts.get("encoding", 0),
        train_length=asked["train_length"],
        batch_size=asked["batch_size"],
        step=step,
        train_steps=asked["train_steps"],
        data=f"{_label(config, asked['data'])}, {asked['data'].construction}",
        machine=_in_words(machine),
        began=time.strftime("%Y-%m-%d", time.gmtime(began[0]["began"])) if began else "",
        seconds=sum(sum(start["seconds"].values()) for start in began),
    )


def _asked(config: gin.Config) -> dict[str, Any]:
    """What `pretrain` was called with."""
    return config.arguments("pretrain", workdir="", dry_run=False, init_from_model=None)


def _label(config: gin.Config, data: Data) -> str:
    """Text that is no longer there cannot say what it is."""
    folder = str(config.macro("DATA_DIR"))
    if not place(folder).exists():
        return folder
    return " + ".join(dataset_label(part) for part in data.parts)


def _in_words(machine: dict[str, Any]) -> str:
    """As training/goodput.py records it; runs of before did not."""
    if not machine:
        return "not recorded"
    devices = machine["devices"]
    several = f" in {machine['processes']} processes" if machine["processes"] > 1 else ""
    return f"{devices} x {machine['kind']}{several}, jax {machine['jax']}"


def _abstract_params(model: Decoder) -> Any:
    tokens_BT = jax.ShapeDtypeStruct((1, 1), np.int32)
    return jax.eval_shape(model.init, jax.random.key(0), tokens_BT, tokens_BT)["params"]


def _probed(workdir: epath.Path, config: gin.Config, results: Results) -> Results:
    """Biases and scores of the checkpoint that was scored, or the newest; says what is missing."""
    run, model = workdir.name, config.call("build_decoder")
    learns = next(facts.encoding_parameters for facts in results.runs if facts.run == run) > 0
    changed = interpolated(model)
    steps = available_steps(workdir)
    scored = {row.step for row in results.losses if row.run == run}
    step = max(scored & set(steps) or steps, default=None)
    if step is None or not (learns or changed):
        return Results()
    print(f"reading the encoding of {run}@{step}", flush=True)
    names = {"run": run, "encoding": str(config.macro("ENCODING")), "step": step}
    try:
        params = read_params(str(workdir), step, model, make_mesh(MeshShape()))
        biases = learned_biases(model, params, **names) if learns else []
        scores = [
            score
            for model_or_changed in ([model, changed] if changed else [])
            for score in attention_scores(
                model_or_changed,
                params,
                _text(config, 2 * model.encodings[0].train_length),
                variant=variant(model, model_or_changed),
                **names,
            )
        ]
    except FireLMError as error:
        print(f"{run}@{step} is left out of biases and attention: {error}", flush=True)
        return Results()
    return Results(biases=biases, scores=scores)


def _text(config: gin.Config, length: int) -> np.ndarray:
    """A row of held-out text, int32 `[length]`."""
    data = _asked(config)["data"].parts[0]
    return scoring_text(data, length=length, num_sequences=1).targets[0]
