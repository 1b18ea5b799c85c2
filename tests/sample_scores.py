"""Synthetic task scores: incomplete SCROLLS, NarrativeQA, GLUE, LongEval, and several steps."""

from __future__ import annotations

import dataclasses
from typing import Any

from sample_results import facts

from fire_lm.results import TaskScore
from fire_lm.results.folder import Results, RunFacts
from fire_lm.results.tables import ScoredModel
from fire_lm.tasks.suites import SUITES, Suite, TextTask

ENCODINGS = {"fire": 3.0, "rope": 0.0, "alibi": -4.0}


def run_of(name: str, encoding: str, seed: int = 0, **changed: Any) -> RunFacts:
    return dataclasses.replace(
        facts(encoding, seed),
        run=name,
        arm=f"{encoding}, {name.partition('_')[2].partition('-')[0]}",
        **changed,
    )


def score(run: RunFacts, suite: str, task: str, value: float, **changed: Any) -> TaskScore:
    given: dict[str, Any] = {
        "variant": "", "step": 500, "split": "validation", "input_length": 504,
        "target_length": 8, "truncation": "head", "decoding": "greedy", "context_length": 513,
        "metric": "accuracy", "examples": 100, "stderr": 0.5,
    }  # fmt: skip
    return TaskScore(
        run=run.run, encoding=run.encoding, suite=suite, task=f"fire_lm:{task}", value=value,
        **given | changed,
    )  # fmt: skip


def of(*rows: TaskScore, runs: list[RunFacts], names: dict[str, str] | None = None) -> Results:
    """Return results of these rows only; a run's model is named after its encoding by default."""
    models = {(row.run, row.suite): (names or {}).get(row.run, row.encoding) for row in rows}
    return Results(
        runs=runs,
        task_scores=rows,
        models=[ScoredModel(run, suite, name) for (run, suite), name in models.items()],
    )


def _primary(task: TextTask) -> dict[str, Any]:
    return {"metric": task.primary, "target_length": task.target_length}


def scrolls_results() -> Results:
    """Return three seeds for each data set and encoding, at two steps; RoPE lacks QuALITY."""
    suite, runs, rows = SUITES["scrolls"], [], []
    for encoding, more in ENCODINGS.items():
        for place, task in enumerate(suite.tasks):
            for seed in range(3):
                run = run_of(f"{encoding}_{task.title}-{seed}", encoding, seed)
                runs.append(run)
                if (encoding, task.title) == ("rope", "quality"):
                    continue
                for step in (250, 500):
                    value = 20 + more + place + seed + (step if seed else 1500 - step) / 500
                    given = {**_primary(task), "step": step, "context_length": 8192}
                    rows.append(score(run, "scrolls", task.name, value, **given))
    alibi = [row for row in rows if row.encoding == "alibi" and row.step == 500]
    rows += [dataclasses.replace(r, variant="interpolate", value=r.value + 2) for r in alibi]
    return of(*rows, runs=runs)


def length_results(suite: Suite = SUITES["narrative_qa"]) -> Results:
    """Return NarrativeQA at all lengths, with one run per encoding; ALiBi lacks the longest."""
    runs, rows = [], []
    for encoding, more in ENCODINGS.items():
        run = run_of(f"{encoding}_narrative_qa", encoding, train_length=8192)
        runs.append(run)
        for place, length in enumerate(suite.lengths):
            if (encoding, length) == ("alibi", 32768):
                continue
            value = 8 + more - abs(3 - place) / 2
            lengths = {"input_length": length, "context_length": length + 65, "metric": "f1"}
            rows.append(score(run, suite.name, suite.tasks[0].name, value, **lengths))
    return of(*rows, runs=runs)


def glue_results() -> Results:
    """Return a run with all 15 columns and other metrics, and one without WNLI."""
    suite, runs, rows = SUITES["glue_super_glue"], [], []
    for encoding in ("fire", "rope"):
        run = run_of(f"{encoding}_glue", encoding)
        runs.append(run)
        for place, task in enumerate(suite.tasks):
            if (encoding, task.title) != ("rope", "wnli"):
                given = {**_primary(task), "stderr": 1.5}
                rows.append(score(run, suite.name, task.name, 50.0 + place, **given))
                rows.append(score(run, suite.name, task.name, 1.0, metric="another"))
    return of(*rows, runs=runs)


def long_eval_results() -> Results:
    """Return three seeds of each encoding on four sizes of lines; validation has three steps."""
    runs, rows = [], []
    for encoding, more in ENCODINGS.items():
        for seed in range(3):
            run = run_of(f"{encoding}_lines-{seed}", encoding, seed, train_length=512)
            runs.append(run)
            for step in (250, 500, 750):
                value = 90 + more + seed - abs(step - 500) / 100
                rows.append(score(run, "long_eval", "long_eval_lines", value, step=step))
            for place, size in enumerate((8, 16, 32, 64)):
                value = 90 + more - 15 * place + 2 * seed
                given = {"split": f"size_{size}", "step": 500}
                rows.append(score(run, "long_eval", "long_eval_lines", value, **given))
    return of(*rows, runs=runs)
