"""Which synthetic tasks a model can learn at all, and with which steps, batch and learning rate.

usage: .venv/bin/python scripts/studies/learnable.py --output=DIR [--models=decoder,encoder]
           [--positions=NAME] [--seed=SEED] TASK [TASK ...]

TASK is the name of a file in configs/synthetic. A comparison of encodings says nothing about a task
that no model learns, so this search comes first, with one encoding and with a seed that no later
arm has. It tries SETTINGS in the order of their cost, each with all models and tasks whose mean
accuracy at training lengths has not reached 95 % yet. DIR/search.csv has a row for each try. The
same command continues a search that was interrupted; another one keeps the rows that are there.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from command import ROOT, refusing
from etils import epath

from fire_lm.data import Synthetic
from fire_lm.errors import RunFailed, UserError
from fire_lm.results import LengthAccuracy
from fire_lm.results.tables import read_table, write_table
from fire_lm.runs.saved import read_saved
from fire_lm.storage import lock_file
from fire_lm.tasks.synthetic.scoring import mean_weights

LEARNED = 95.0
SEQUENCES = 64


@dataclasses.dataclass(frozen=True)
class Setting:
    """Settings of a try."""

    steps: int
    batch: int
    learning_rate: float

    @property
    def bindings(self) -> list[str]:
        return [
            f"--gin.TRAIN_STEPS={self.steps}",
            f"--gin.BATCH_SIZE={self.batch}",
            f"--gin.AdamW.learning_rate={self.learning_rate}",
        ]


SETTINGS = (
    Setting(2000, 32, 1e-3),
    Setting(4000, 16, 1e-3),
    Setting(8000, 16, 1e-3),
    Setting(2000, 32, 3e-4),
    Setting(2000, 32, 3e-3),
    Setting(16000, 16, 1e-3),
    Setting(8000, 128, 1e-3),
)


@dataclasses.dataclass(frozen=True)
class Try:
    """A row of search.csv; `accuracy` is the mean over training lengths in percent."""

    task: str
    model: str
    encoding: str
    seed: int
    steps: int
    batch: int
    learning_rate: float
    accuracy: float
    learned: bool


def accuracy_of(run: Path) -> float:
    """Return the mean accuracy of a run over all lengths up to its longest exercise."""
    saved = read_saved(str(run))
    assert saved is not None
    data = saved.experiment.train.data
    assert isinstance(data, Synthetic)
    rows = read_table(run / "length_accuracy.csv", LengthAccuracy)
    trained = sorted(
        (row.length, row.accuracy)
        for row in rows
        if row.length <= data.max_length and not row.variant
    )
    if not trained:
        raise RunFailed(f"{run}/length_accuracy.csv has no training length")
    lengths, accuracies = zip(*trained, strict=True)
    return float(mean_weights(lengths) @ accuracies)


def attempt(task: str, model: str, encoding: str, seed: int, setting: Setting, run: Path) -> Try:
    """Train and evaluate a run, or read it if it has ended, and return its row."""
    files = [
        f"configs/synthetic/{task}.gin",
        f"configs/positions/{encoding}.gin",
        f"configs/che/{model}.gin",
    ]
    train = [
        *("pretrain", f"--workdir={run}", f"--gin.SEED={seed}", *setting.bindings),
        *(f"--gin_file={file}" for file in files),
        f"--gin.Checkpointing.save_every={setting.steps}",
    ]
    evaluate = ["evaluate", str(run), f"--sequences={SEQUENCES}"]
    for arguments in (train, evaluate):
        code = subprocess.run([sys.executable, "-m", "fire_lm", *arguments], cwd=ROOT).returncode
        if code:
            raise RunFailed(f"fire-lm {' '.join(arguments)} exited with {code}")
    accuracy = accuracy_of(run)
    values = (setting.steps, setting.batch, setting.learning_rate)
    return Try(task, model, encoding, seed, *values, accuracy, accuracy >= LEARNED)


def search(
    tasks: Sequence[str], models: Sequence[str], encoding: str, seed: int, folder: Path
) -> Iterator[Try]:
    """Yield the tries, by setting: every task and model that is not learned gets the next one."""
    unlearned = [(task, model) for model in models for task in tasks]
    for setting in SETTINGS:
        for task, model in list(unlearned):
            of_setting = f"{setting.steps}-{setting.batch}-{setting.learning_rate}"
            name = f"{task}-{model}-{encoding}-seed{seed}-{of_setting}"
            row = attempt(task, model, encoding, seed, setting, folder / name)
            if row.learned:
                unlearned.remove((task, model))
            yield row


def settings_of(row: Try) -> tuple[object, ...]:
    return dataclasses.astuple(row)[:-2]


def earlier(path: Path) -> list[Try]:
    """Return the rows of an earlier search; `learned` is a word in the file."""
    rows = read_table(path, Try) if path.exists() else []
    return [dataclasses.replace(row, learned=row.accuracy >= LEARNED) for row in rows]


def record(row: Try, path: Path) -> None:
    """Add a row to search.csv, which other searches may be writing too, or replace it there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f".{path.name}.lock").open("a") as file:
        lock_file(file, wait=True)
        rows = {settings_of(one): one for one in [*earlier(path), row]}
        write_table(epath.Path(path), Try, rows.values())


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Which synthetic tasks a model can learn.")
    parser.add_argument("tasks", metavar="TASK", nargs="+")
    parser.add_argument("--output", metavar="DIR", type=Path, required=True)
    parser.add_argument("--models", default="decoder,encoder")
    parser.add_argument("--positions", default="rope")
    parser.add_argument("--seed", type=int, default=1000)
    parsed = parser.parse_args(arguments)
    folder, models = parsed.output.resolve(), parsed.models.split(",")
    for kind, names in (("synthetic", parsed.tasks), ("che", models)):
        for name in names:
            if not (ROOT / "configs" / kind / f"{name}.gin").is_file():
                raise UserError(f"there is no configs/{kind}/{name}.gin")
    path = folder / "search.csv"
    for row in search(parsed.tasks, models, parsed.positions, parsed.seed, folder):
        record(row, path)
        print(f"{row.task} {row.model}: {row.accuracy:.1f} % after {row.steps} steps", flush=True)


if __name__ == "__main__":
    sys.exit(refusing(main, sys.argv[1:]))
