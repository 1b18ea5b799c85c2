"""`fire-lm sweep` over synthetic runs, checkpoints and text.

Losses come from a table of token ids, so that many calls take seconds. Everything else is the real
command.
"""

import dataclasses
import functools
import importlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from sample_results import facts

from fire_lm import cli, experiment
from fire_lm.cli import sweep, sweep_tables
from fire_lm.data import ScoringText, TextData, TextSource
from fire_lm.errors import FireLMError
from fire_lm.experiment import Experiment, GinText, Statements, load_experiment
from fire_lm.measures import text_choice
from fire_lm.reporting import gather
from fire_lm.reporting.length_sweep import sweep_text
from fire_lm.results import SweepRow
from fire_lm.results.folder import Results
from fire_lm.runs import find, saved, variants
from fire_lm.sweeps import command, schedule

module = importlib.import_module("fire_lm.measures.length_sweep")

FILES = ("length_sweep.csv", "scored_text.csv", "position_losses.csv")
STREAM = np.random.default_rng(0).integers(1, 200, 10**6).astype(np.int32)


def synthetic_text(data: TextSource, *, length: int, num_sequences: int, split: str) -> ScoringText:
    """Return rows from all over a stream; another length or number of rows has other tokens.

    There are as many bytes as tokens, so that equal counts are frequent.
    """
    start = 1000 * (split == "train") + 5000 * (data.construction == "cut")
    places = start + np.arange(num_sequences)[:, None] * 8 * length + np.arange(length)
    return ScoringText(STREAM[places], np.ones(places.shape, np.int32), skipped=0)


# What each run saves: one has another encoding, one another seed.
RUNS = {"fire": ("fire", 0), "rope": ("rope", 0), "fire-1": ("fire", 1)}
TEXTS = {
    name: "include 'configs/runs/quickstart.gin'\n"
    f"include 'configs/positions/{encoding}.gin'\nSEED = {seed}\n"
    for name, (encoding, seed) in RUNS.items()
}
LOADED: dict[str, Experiment] = {}


@functools.cache
def load_saved(text: str) -> Experiment:
    return load_experiment([GinText("config.gin", text)])


@functools.cache
def read_gin(files: tuple[str, ...], bindings: tuple[str, ...], paths: str) -> Statements:
    return experiment.read_gin(files, bindings, paths)


def resolve(stated: Statements, imports: Sequence[str] = (), more_roots=()) -> Experiment:
    """Resolve equal statements once for all folders."""
    key = repr([(str(one.key), str(one.node), one.from_command_line) for one in stated.statements])
    if key not in LOADED:
        LOADED[key] = experiment.resolve(stated, imports)
    return LOADED[key]


def is_of(run: Path) -> str:
    """Return which of RUNS a folder is, whatever its name."""
    text = (run / "config.gin").read_text()
    return next(name for name in RUNS if TEXTS[name] == text)


def spellings(path: Path) -> tuple[str, ...]:
    """Return ways in which users type a folder; the last goes through a symbolic link."""
    above, name = path.parent, path.name
    return (
        str(path),
        f"{above}/../{above.name}/{name}/",
        os.path.relpath(path),
        f"{above} by another name/{name}",
    )


class Sweeps:
    """A folder of runs; remembers the run and text of every loss that was ever computed in it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        self.shown: list[Results] = []
        self.true: dict[str, tuple[str, bytes]] = {}
        for name in RUNS:
            (folder / name).mkdir(parents=True)
            (folder / name / "config.gin").write_text(TEXTS[name])
        (folder.parent / f"{folder.name} by another name").symlink_to(folder)
        monkeypatch.setattr(saved, "load_experiment", lambda texts: load_saved(texts[0].text))
        monkeypatch.setattr(variants, "read_gin", lambda f, b, p: read_gin(tuple(f), tuple(b), p))
        monkeypatch.setattr(variants, "resolve", resolve)
        monkeypatch.setattr(schedule, "available_steps", lambda _: [1, 2])
        monkeypatch.setattr(find, "available_steps", lambda _: [1, 2])
        monkeypatch.setattr(schedule, "checkpoint_damage", lambda *_: "")
        monkeypatch.setattr(schedule, "choose_step", lambda _, step: step or 2)
        monkeypatch.setattr(sweep_tables, "write_figure", lambda *_: None)
        monkeypatch.setattr(command, "read_params", lambda run, step, *_: (is_of(Path(run)), step))
        monkeypatch.setattr(TextData, "label", lambda _: "embedded")
        monkeypatch.setattr(text_choice, "read_scoring_text", synthetic_text)
        monkeypatch.setattr(module, "row_losses", self.score)
        monkeypatch.setattr(sweep_tables, "sweep_text", self.show)
        monkeypatch.setattr(gather, "run_facts", self.facts)

    def facts(self, workdir, config, arm, step):
        encoding, seed = RUNS[is_of(Path(workdir))]
        return dataclasses.replace(facts(encoding, seed), run=workdir.name, arm=arm)

    def score(self, model, params, text, laid, batch, mesh, run, bins):
        """Return nats that depend on the token, its position, the run, the step and the length.

        No two texts therefore have the same mean.
        """
        which, step = params
        targets = laid.of(text.targets)
        slope = 1 + 0.1 * step + 0.01 * list(RUNS).index(which)
        nll = np.sqrt(targets) * slope + np.log1p(np.arange(laid.length))
        nll = np.where(laid.scored(len(text.targets)), nll, 0.0)
        nll_RP = nll.reshape(len(text.targets), -1, bins, laid.length // bins).sum(axis=(1, 3))
        places = laid.scored_places(text.targets.shape[1])
        mean = nll_RP.sum() / (text.targets[:, places] != 0).sum()
        self.true[f"{mean:.12g}"] = which, text.targets.tobytes()
        return nll_RP

    def truth(self, row: SweepRow) -> bytes:
        return self.true[f"{row.nll:.12g}"][1]

    def scorer(self, row: SweepRow) -> str:
        return self.true[f"{row.nll:.12g}"][0]

    def runs(self) -> list[Path]:
        return sorted(path.parent for path in self.folder.glob("*/config.gin"))

    def show(self, results: Results) -> str:
        self.shown.append(results)
        return sweep_text(results)

    def __call__(self, names: list[str], *flags: str) -> str:
        """Run `fire-lm sweep` and return its error message, or ""."""
        try:
            schedule.evaluate_checkpoints(sweep.Sweep(cli.parse(["sweep", *names, *flags])))
        except FireLMError as error:
            return str(error)
        return ""

    def report(self) -> Results:
        return gather.gather([str(self.folder)], with_probes=False)


def files_of(runs: Sequence[Path]) -> dict[Path, list[str]]:
    """Return the lines of each file."""
    paths = [run / name for run in runs for name in FILES]
    return {path: path.read_text().splitlines() for path in paths if path.exists()}
