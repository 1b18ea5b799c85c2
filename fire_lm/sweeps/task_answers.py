"""The answers of a checkpoint to a task at one length, and the rows with their scores.

Predictions are written as they are computed, and rows are written once all examples have been
answered. Existing predictions and rows are not recomputed.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
from etils import epath
from jax.sharding import Mesh

from fire_lm.console import Progress
from fire_lm.generation.result_lines import appended_lines
from fire_lm.measures.prediction_scores import prediction_scores
from fire_lm.measures.predictions import Answering, read_predictions
from fire_lm.measures.scoring import read_params
from fire_lm.processes import by_first, say
from fire_lm.results import TaskScore, merge_table
from fire_lm.results.task_rows import FILE
from fire_lm.sharding import decoding_layout, make_mesh
from fire_lm.sweeps.claims import claimed_by_job, kept
from fire_lm.sweeps.task_settings import LOSS, Cell, TaskSetting, cells
from fire_lm.tasks.metrics import Score


def answer_checkpoint(setting: TaskSetting, workdir: epath.Path, step: int) -> bool:
    """Write a checkpoint's missing rows; return False if another job is writing some of them."""
    mesh = make_mesh(setting.asked.mesh)
    params = functools.cache(
        lambda: read_params(str(workdir), step, setting.model, mesh, decoding_layout)
    )
    whole = True
    for cell in cells(setting, workdir, step):
        if by_first(cell.is_finished):
            continue
        with claimed_by_job(workdir, cell.claim) as still_ours:
            if still_ours is None or by_first(cell.is_finished):
                whole &= still_ours is not None
                continue

            def work() -> None:
                loss = answer(cell, params, mesh)  # noqa: B023 (called at once)
                still_ours()  # noqa: B023
                by_first(lambda: write_rows(cell, loss))  # noqa: B023

            whole &= kept(work)
    return whole


def answer(cell: Cell, params: Callable[[], Any], mesh: Mesh) -> Score | None:
    """Compute the missing predictions of a cell, and append each batch to the cell's file.

    Returns:
      The loss of the targets, or None if the setting does not measure it.
    """
    examples = cell.task.examples
    there = set(by_first(lambda: list(read_predictions(cell.file, examples))))
    left = [example for example in examples if example.id not in there]
    if there:
        say(f"{cell.file} already contains {len(there)} of {len(examples)} predictions")
    setting = cell.setting
    if not (left or cell.measures_loss):
        return None
    answering = Answering(setting.asked, setting.model, params(), mesh, setting.train_length)
    first = jax.process_index() == 0
    progress = Progress(len(left), quiet=not first)
    where = f"{cell.task.name} at {cell.length}"
    with contextlib.closing(progress), appended_lines(cell.file) as append:
        for batch in answering.answers(left, cell.length, lambda n: progress.show(n, where)):
            for prediction in batch:
                append(prediction.line())
    return answering.target_loss(examples, cell.length) if cell.measures_loss else None


def write_rows(cell: Cell, loss: Score | None = None) -> None:
    """Score the predictions of a cell and add its rows, with the loss of targets, to the table."""
    found = read_predictions(cell.file, cell.task.examples)
    cut = sum(found[example.id].truncated for example in cell.task.examples)
    if cut:
        say(
            f"{cut} of {len(found)} inputs of {cell.task.name} have more than {cell.length} tokens "
            f"and were truncated ({cell.setting.asked.data.truncation})"
        )
    scores = prediction_scores(cell.task, {key: one.prediction for key, one in found.items()})
    intervals = [
        f"{name} {score.low:.2f} to {score.high:.2f}"
        for name, score in scores.items()
        if not math.isnan(score.low)
    ]
    if intervals:
        say(f"{cell.task.name} at {cell.length}, 95 % intervals: {', '.join(intervals)}")
    if loss is not None:  # after the metrics, because checkpoints are ranked by the first of them
        scores[LOSS] = loss
    rows = [cell.row(name, score) for name, score in scores.items()]
    merge_table(cell.workdir / FILE, TaskScore, rows)
