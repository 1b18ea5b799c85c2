"""No order of `sweep` calls gives a table, figure or file in which different texts stand as one.

Runs, checkpoints and text are made up, and the losses are those of a table of token ids, so that
fifty random sequences of calls take seconds. Everything else is the command's own.
"""

import functools
import importlib
import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from etils import epath

from fire_lm import cli, sweep_runs, sweep_settings, sweep_tables, sweep_verb, verbs
from fire_lm import config as gin
from fire_lm.data import Data, ScoringText
from fire_lm.errors import FireLMError
from fire_lm.evaluation import text_choice
from fire_lm.reporting import PositionLoss, SweepRow, read_rows, read_table, read_texts
from fire_lm.reporting.length_sweep import differences, sweep_text
from fire_lm.reporting.results import Results
from fire_lm.reporting.seeds import loss_lines, scored_in

module = importlib.import_module("fire_lm.evaluation.length_sweep")

LENGTHS, BUDGETS = (
    (8, 12, 16, 32, 64),
    (1024, 2048, 2080, 2112),
)  # of the second and third the text is the same
ALSO = (
    "--gin.RoPE.scaling=@YaRN()",
    "--gin.length_sweep.split=train",
    "--gin.CONSTRUCTION=cut",
    "--gin.length_sweep.protocols=sliding --gin.length_sweep.stride=4",
)
FILES = ("length_sweep.csv", "scored_text.csv", "position_losses.csv")
STREAM = np.random.default_rng(0).integers(1, 200, 10**6).astype(np.int32)


def synthetic_text(data: Data, *, length: int, num_sequences: int, split: str) -> ScoringText:
    """Rows from all over a stream, as real ones: another length or number, other tokens. As many
    bytes as tokens, so that equal counts are frequent."""
    start = 1000 * (split == "train") + 5000 * (data.construction == "cut")
    places = start + np.arange(num_sequences)[:, None] * 8 * length + np.arange(length)
    return ScoringText(STREAM[places], np.ones(places.shape, np.int32), skipped=0)


@functools.cache
def load(*given: Any) -> gin.Config:
    return verbs.load_config(*given)


def load_config(files: Sequence[str], bindings: Sequence[str] = (), paths: str = ""):
    """Once for all folders: what is saved of a run is the same in each."""
    plain = [name for file in files if (name := Path(file).parent.name) in ("fire", "rope")]
    texts = [f"configs/positions/{name}.gin" for name in plain]
    found = ["configs/runs/quickstart.gin", *texts, *files[len(plain) :]]
    return load(tuple(found), tuple(bindings), paths)


class Sweeps:
    """A folder of two runs, and the true text of every loss that was ever computed in it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        self.shown: list[Results] = []
        self.said: list[str] = []
        self.true: dict[str, bytes] = {}
        for name in ("fire", "rope"):
            (folder / name).mkdir(parents=True)
            saved = str(folder / name / "config.gin")
            Path(saved).write_text(load_config([saved]).text())
        for user in (sweep_settings, sweep_tables):
            monkeypatch.setattr(user, "load_config", load_config)
        monkeypatch.setattr(sweep_verb, "available_steps", lambda _: [1, 2])
        monkeypatch.setattr(sweep_runs, "available_steps", lambda _: [1, 2])
        monkeypatch.setattr(sweep_verb, "checkpoint_damage", lambda *_: "")
        monkeypatch.setattr(sweep_verb, "choose_step", lambda _, step: step or 2)
        monkeypatch.setattr(sweep_tables, "write_figure", lambda *_: None)
        monkeypatch.setattr(module, "read_params", lambda workdir, step, *_: step)
        monkeypatch.setattr(module, "dataset_label", lambda _: "embedded")
        monkeypatch.setattr(text_choice, "read_scoring_text", synthetic_text)
        monkeypatch.setattr(module, "score", self.score)
        monkeypatch.setattr(sweep_tables, "sweep_text", self.show)

    def score(self, model, params, text, laid, batch, mesh, run, bins):
        """Nats that depend on the token, its place, the step and the length; with noise, so that
        no two texts have one mean."""
        targets = laid.of(text.targets)
        nll = np.sqrt(targets) * (1 + 0.1 * params) + np.log1p(np.arange(laid.length))
        nll = np.where(laid.scored(len(text.targets)), nll, 0.0)
        nll_RP = nll.reshape(len(text.targets), -1, bins, laid.length // bins).sum(axis=(1, 3))
        places = laid.scored_places(text.targets.shape[1])
        mean = nll_RP.sum() / (text.targets[:, places] != 0).sum()
        self.true[f"{mean:.12g}"] = text.targets.tobytes()
        return nll_RP

    def truth(self, row: SweepRow) -> bytes:
        return self.true[f"{row.nll:.12g}"]

    def show(self, results: Results) -> str:
        self.shown.append(results)
        self.said.append(sweep_text(results))
        return self.said[-1]

    def __call__(self, names: list[str], *flags: str) -> str:
        """What was refused, if it was."""
        try:
            sweep_verb.sweep(cli.parse(["sweep", *names, *flags]))
        except FireLMError as error:
            return str(error)
        return ""


def any_call(draw: random.Random, folder: Path) -> tuple[list[str], list[str]]:
    """Runs and flags."""
    runs = [str(folder / name) for name in ("fire", "rope")]
    at = draw.choice(("", "@1", "@2", "@all"))
    named = draw.choice(([str(folder)], [runs[0] + at], [runs[1] + at], [run + at for run in runs]))
    lengths = draw.sample(LENGTHS, draw.randint(1, 3))
    flags = [
        f"--gin.EVAL_LENGTHS={lengths}",
        f"--gin.length_sweep.tokens={draw.choice(BUDGETS)}",
        f"--gin.length_sweep.position_bins={draw.choice((0, 4))}",
        *(f"--also={also}" for also in draw.sample(ALSO, draw.choice((0, 0, 1, 2)))),
    ]
    if len(named) > 1 or draw.random() < 0.3:
        flags.append(f"--output={folder / draw.choice(('one', 'two'))}")
    return named, flags


def tamper(draw: random.Random, folder: Path) -> None:
    """As users do, and older versions: a file is moved away, or another run's is copied over it."""
    file = folder / draw.choice(("fire", "rope")) / draw.choice(FILES)
    if file.exists():
        file.unlink()


def check_tables(sweeps: Sweeps) -> None:
    """Of all that was shown: a line is of one text, and so is a table in nats, unless it says that
    its text is not recorded."""
    for results, said in zip(sweeps.shown, sweeps.said, strict=True):
        rows_of = {
            (row.run, row.variant, scored_in(row), row.length): row for row in results.losses
        }
        for scored, lines in loss_lines(results).items():
            true: dict[str, set[bytes]] = {}
            for line in lines:
                runs = [run.run for run in results.arms()[line.arm]]
                rows = [
                    row
                    for run, n in itertools.product(runs, line.nats)
                    if (row := rows_of.get((run, line.variant, scored, n)))
                    and results.texts.of(row) == line.text
                ]
                assert rows
                true.setdefault(line.text, set()).update(map(sweeps.truth, rows))
            apart = differences(
                (r for r in results.losses if scored_in(r) == scored), results.texts
            )
            assert all(len(texts) == 1 for text, texts in true.items() if text)
            assert apart or len(true) == 1
            assert "" not in true or "not recorded" in said
            assert not apart or "In bits per byte alone" in said


def check_files(sweeps: Sweeps, folder: Path) -> None:
    """Rows of one identity are of one text, also losses by position; others are of none."""
    rows, texts = read_rows(epath.Path(folder) / FILES[0]), read_texts(epath.Path(folder))
    true = {(texts.of(row), sweeps.truth(row)) for row in rows if texts.of(row)}
    assert len(true) == len({text for text, _ in true}) == len({text for _, text in true})
    by_text = dict(true)
    sums: dict[tuple[str | int, ...], list[float]] = {}
    for one in read_table(epath.Path(folder) / FILES[2], PositionLoss):
        found = sums.setdefault(one.key, [0.0, 0.0])
        found[0], found[1] = found[0] + one.nll * one.tokens, found[1] + one.tokens
    of = texts.of_all_positions(read_table(epath.Path(folder) / FILES[2], PositionLoss))
    for key, (nats, tokens) in sums.items():
        if of[key] in by_text:
            near = [mean for mean in sweeps.true if abs(float(mean) - nats / tokens) < 1e-6]
            assert {sweeps.true[mean] for mean in near} == {by_text[of[key]]}


@pytest.fixture
def sweeps_in(monkeypatch) -> Callable[[Path], Sweeps]:
    return lambda folder: Sweeps(folder, monkeypatch)


@pytest.mark.ci
def test_no_order_of_sweeps_mixes_texts(sweeps_in, tmp_path, capsys):
    refused = 0
    for seed in range(50):
        draw = random.Random(seed)
        sweeps = sweeps_in(tmp_path / str(seed))
        for _ in range(draw.randint(2, 4)):
            if draw.random() < 0.25:
                tamper(draw, sweeps.folder)
            names, flags = any_call(draw, sweeps.folder)
            refused += "over another text" in sweeps(names, *flags)
            check_tables(sweeps)
            for folder in ("fire", "rope", "one", "two", "."):
                check_files(sweeps, sweeps.folder / folder)
    assert 10 < refused < 130, "some are refused, some are not"
    capsys.readouterr()


def test_two_sweepers_at_once_cannot_write_two_texts(sweeps_in, tmp_path, capsys, monkeypatch):
    """One begins with another budget while the other is computing its first row."""
    sweeps = sweeps_in(tmp_path)
    run, score, begun = str(tmp_path / "fire"), sweeps.score, []

    def score_meanwhile(*arguments):
        if not begun:
            begun.append("the other")
            begun.append(sweeps([f"{run}@1"], "--gin.EVAL_LENGTHS=[8]", TOKENS))
        return score(*arguments)

    monkeypatch.setattr(module, "score", score_meanwhile)
    told = sweeps([f"{run}@2"], "--gin.EVAL_LENGTHS=[8]", "--gin.length_sweep.tokens=1024")
    assert "another sweep" in told and "another text of the same name" in told and begun[1:] == [""]
    assert {row.step for row in read_rows(epath.Path(run) / FILES[0])} == {1}
    check_files(sweeps, Path(run))
    capsys.readouterr()


TOKENS = "--gin.length_sweep.tokens=2048"


def test_subsets_and_extensions_are_the_same_text(sweeps_in, tmp_path, capsys):
    """In any order, one call for each; the rows are those of one sweep of all lengths."""
    apart, once = sweeps_in(tmp_path / "apart"), sweeps_in(tmp_path / "once")
    run = str(tmp_path / "apart" / "fire")
    for lengths in ([16], [64], [8, 16], [32, 8]):
        assert apart([run], TOKENS, f"--gin.EVAL_LENGTHS={lengths}") == ""
    assert once([str(tmp_path / "once" / "fire")], TOKENS, "--gin.EVAL_LENGTHS=8,16,32,64") == ""
    found = [
        sorted((row.length, row.tokens, round(row.nll, 9)) for row in read_rows(path))
        for path in (epath.Path(tmp_path) / name / "fire" / FILES[0] for name in ("apart", "once"))
    ]
    assert found[0] == found[1] and len(found[0]) == 4
    assert "the same text at every length (text " in once.said[0]
    capsys.readouterr()
