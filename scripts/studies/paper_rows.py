"""The paper's models, their published numbers, and which of them have been run.

usage: .venv/bin/python scripts/studies/paper_rows.py [RUN ...]

A row of the first table is a model in configs/paper/; `finetuned_rows` defines the rows of the
second. A pretraining run belongs to a row if it has the row's encoding, size,
vocabulary size, training length and kind of text at one of the scales (`configs/scales/`). The
number of steps, the seed and the optimizer settings may differ, and the run may be unfinished.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import finetuned_rows
import published
from command import EVIDENCE, refusing
from etils import epath
from finetuned_rows import SCALES

from fire_lm.console import columns
from fire_lm.experiment import Experiment as Loaded
from fire_lm.experiment import load_experiment
from fire_lm.reporting.arms import size_in_words
from fire_lm.results import SweepRow, read_own, read_table
from fire_lm.results.folder import RunFacts, holds_results
from fire_lm.runs.find import find_runs
from fire_lm.runs.saved import saved_experiment
from fire_lm.storage import children, place


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The settings by which a run is assigned to a row.

    `text` is None for data other than `TextData`, and then agrees with any text.
    """

    encoding: Any
    size: Any
    vocab_size: int
    train_length: Any
    text: str | None

    def same(self, other: Experiment) -> bool:
        if self.text is None or other.text is None:
            return dataclasses.replace(self, text=None) == dataclasses.replace(other, text=None)
        return self == other


def experiment(config: Loaded) -> Experiment:
    model = config.model
    encoding, length = config.label, config.macro("TRAIN_LENGTH")
    return Experiment(encoding, model.size, model.vocab_size, length, _text(config))


def _text(config: Loaded) -> str | None:
    """Return the kind of training text, such as 'c4' for both c4/en:3.1.0 and c4_en:1.0.0.

    For a mixture, the result contains the names of all data sets. For data other than `TextData`,
    it is None.
    """
    found = {
        name.removeprefix("TextData."): value
        for name, (_, value) in config.settings.items()
        if name.startswith("TextData.")
    }
    if not found:
        return None
    names = [name for name, _ in found["mixture"]] or [found["tfds_name"]]
    return " ".join(name.split(":")[0].split("/")[0].removesuffix("_en") for name in names)


@functools.cache
def row_at(model: str, scale: str) -> Experiment:
    """Return the experiment that configs/paper/MODEL.gin describes at a scale."""
    files = [f"configs/paper/{model}.gin"]
    if scale != "paper":
        files.append(f"configs/scales/{scale}.gin")
    return experiment(load_experiment(files))


def row_of(config: Loaded) -> tuple[str, str] | None:
    """Return the model in configs/paper/ that a configuration pretrains, and its scale.

    The result is None if the configuration does not pretrain any of these models.
    At a scale with only one size, base and large models are the same; the result is then the base
    model.
    """
    if config.kind != "pretrain":
        return None
    ours = experiment(config)
    for model in published.models():
        if published.cells(model)[0].encoding == ours.encoding:
            for scale in SCALES:
                if row_at(model, scale).same(ours):
                    return model, scale
    return None


def run_so_far(runs: Iterable[tuple[epath.Path, Loaded]]) -> dict[str, dict[str, None]]:
    """Describe the pretraining runs of each model, both those in `runs` and those in evidence/.

    The descriptions of a model's runs are the keys of a dict, which serves as an ordered set.
    """
    found: dict[str, dict[str, None]] = {model: {} for model in published.models()}
    for workdir, config in runs:
        if row := row_of(config):
            results = read_own(workdir, config.label).losses
            found[row[0]][_words(*row, {result.dataset for result in results})] = None
    for folder in filter(holds_results, sorted(children(place(EVIDENCE)))):
        datasets: dict[str, set[str]] = {}
        for result in read_table(folder / "length_sweep.csv", SweepRow):
            datasets.setdefault(result.run, set()).add(result.dataset)
        for facts in read_table(folder / "runs.csv", RunFacts):
            if row := _row_of_facts(facts):
                found[row[0]][_words(*row, datasets.get(facts.run, ()))] = None
    return found


def _words(model: str, scale: str, datasets: Iterable[str]) -> str:
    """Return a description of a run: its scale, the scored data sets, and the training length."""
    scored = ", ".join(sorted(datasets)) or "not scored"
    return f"{scale} ({scored}, {row_at(model, scale).train_length})"


def _row_of_facts(facts: RunFacts) -> tuple[str, str] | None:
    """Return the row of a run without a configuration, by its encoding, size and training length.

    The result is a model in configs/paper/ and a scale, or None, as in `row_of`.
    """
    for model in published.models():
        if published.cells(model)[0].encoding == facts.encoding:
            for scale in SCALES:
                row = row_at(model, scale)
                if (size_in_words(row.size), row.train_length) == (facts.model, facts.train_length):
                    return model, scale
    return None


def listing(names: Sequence[str]) -> str:
    """Return the tables of the models in configs/paper/ and in configs/paper/finetuned/.

    `names` contains the paths of runs and folders of runs.

    Raises:
      UserError: A path is neither a run nor a folder of runs.
    """
    runs = [
        (run.workdir, saved_experiment(run.workdir))
        for name in names
        for run in find_runs([name], begun=False)[0]
    ]
    return "\n".join(
        [*columns(_pretraining(runs)), "", _LEGEND, "", *columns(_finetuning(runs)), "", _NEXT]
    )


def _pretraining(runs: Sequence[tuple[epath.Path, Loaded]]) -> list[list[str]]:
    done = run_so_far(runs)
    body = [["configs/paper/", "in the paper", "length", "log ppl", "at 8192", "run so far"]]
    for model in published.models():
        losses = published.log_perplexity_cells(model)
        length = published.cells(model)[0].train_length
        body.append(
            [
                model,
                published.places(model),
                str(length),
                *(losses[n].printed if n in losses else "-" for n in (length, 8192)),
                "; ".join(done[model]) or "not yet",
            ]
        )
    return body


def _finetuning(runs: Sequence[tuple[epath.Path, Loaded]]) -> list[list[str]]:
    pretrained = {found[0] for _, config in runs if (found := row_of(config))}
    body = [["configs/paper/", "in the paper", "suite", "average", "scores so far", "next"]]
    for row in finetuned_rows.rows():
        done = finetuned_rows.done_in(row, runs)
        body.append(
            [
                f"finetuned/{row.model}",
                row.places,
                row.suite,
                row.average or "-",
                finetuned_rows.so_far(row, done),
                finetuned_rows.next_step(row, done, row.source in pretrained),
            ]
        )
    return body


_LEGEND = """\
length: the pretraining length in tokens
log ppl, at 8192: the paper's log perplexity on C4 at the pretraining length and at 8192 tokens
run so far: the scale (scored data sets, training length) of each run, among the given runs and
those published with fire_lm
-: the paper prints no number"""
_NEXT = """\
average: the average score that the paper reports
scores so far: how many of the scores in the average the given runs have, by scale
next: the next command for the row, or - if the row is complete
  pretrain ROW: use configs/paper/ROW.gin
  finetune DATA_SET: use configs/finetune/DATA_SET.gin, then the row's file, whose header contains
    the command
  evaluate RUN: use the file of the run's data set in configs/tasks/, or narrative_qa.gin for the
    suite narrative_qa"""


if __name__ == "__main__":
    sys.exit(refusing(lambda runs: print(listing(runs)), sys.argv[1:]))
