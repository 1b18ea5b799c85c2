"""The expected times of a training step that has not been compiled, and of scoring.

The time is the compiler's estimate if preflight has reported on the same program: `step_times.csv`
has the estimates for the paper's runs, from the reports in docs/evidence/preflight. Otherwise, it
follows from the FLOPs of the step.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fire_lm.experiment import SHIPPED, load_experiment
from fire_lm.hardware.slices import Slice, parse_slice
from fire_lm.measures import LengthSweep
from fire_lm.measures.protocols import windows
from fire_lm.measures.task_scores import TextEvaluation
from fire_lm.measures.text_choice import row_length
from fire_lm.models import Decoder, parameter_shapes
from fire_lm.preflight.report import STEP
from fire_lm.training import Pretraining, model_flops_per_token

_ESTIMATES = Path(__file__).with_name("step_times.csv")
_COMPILER = "the compiler's estimate"
# The reports on slices of these chips are for layers in a loop (docs/preflight.md).
_LOOPED = {
    kind: ("build_decoder.scan_layers=True", "build_decoder.remat='full'")
    for kind in ("v5e", "v6e")
}


@dataclasses.dataclass(frozen=True)
class StepTime:
    """The expected seconds of a training step, and where they come from."""

    seconds: float
    source: str


def expected_step_time(run: Pretraining, where: Slice) -> StepTime:
    """Return the expected time of a training step of `run` on a slice that its mesh fills.

    If rows differ in length, it is the mean over the steps.
    """
    if not run.lengths.constant:
        shares = run.lengths.shares(run.train_steps).items()
        times = {n: expected_step_time(run.at_length(n), where) for n, share in shares if share}
        seconds = sum(times[n].seconds * share for n, share in shares if share)
        sources = dict.fromkeys(time.source for time in times.values())
        return StepTime(seconds, "; ".join(sources))
    program = _program(run, where)
    for report, (seconds, _) in estimates().items():
        if report.endswith(f"_{where.name}") and _program_of(report) == program:
            return StepTime(seconds, _COMPILER)
    per_token = model_flops_per_token(run.model, parameter_shapes(run.model), run.train_length)
    return _at_lowest_mfu(per_token * run.tokens_per_step, where)


def expected_sweep_time(sweep: LengthSweep, where: Slice) -> StepTime:
    """Return the expected time of scoring one checkpoint, from the FLOPs of all its windows."""
    flops = 0.0
    for part in sweep.data.parts:
        longest = row_length(sweep.tokens, part.construction)
        rows = max(1, sweep.tokens // longest)
        for length, protocol in itertools.product(sweep.in_order, sweep.protocols):
            count = len(windows(protocol, min(length, longest), longest, sweep.stride).starts)
            flops += rows * count * length * _forward_flops(sweep.model, length)
    return _at_lowest_mfu(flops, where)


def expected_reading_time(model: Decoder, evaluation: TextEvaluation, where: Slice) -> StepTime:
    """Return the expected time of reading an example of a task and its answer at every length."""
    lengths = [evaluation.context_length(length) for length in evaluation.in_order]
    return _at_lowest_mfu(sum(n * _forward_flops(model, n) for n in lengths), where)


def _forward_flops(model: Decoder, length: int) -> float:
    """Return the FLOPs per token of a forward pass, a third of those of training."""
    return model_flops_per_token(model, parameter_shapes(model), length) / 3


def _at_lowest_mfu(flops: float, where: Slice) -> StepTime:
    mfu = lowest_mfu(where.kind)
    source = f"assuming {mfu:.0%} MFU, the lowest of preflight's estimates for {where.kind}"
    return StepTime(flops / (mfu * where.peak_flops), source)


def reported_step_time(report: Mapping[str, Any]) -> StepTime | None:
    """Return the time of a training step in a report of preflight in JSON form, or None."""
    steps = report.get("steps", {STEP: 1.0})
    times = [report["programs"].get(name, {}).get("seconds") for name in steps]
    if None in times:
        return None
    seconds = sum(time * share for time, share in zip(times, steps.values(), strict=True))
    return StepTime(seconds, _COMPILER)


@functools.cache
def estimates() -> dict[str, tuple[float, float]]:
    """Return the seconds of a training step and the MFU of each report, by the report's name."""
    with _ESTIMATES.open(encoding="utf-8", newline="") as file:
        return {
            row["report"]: (float(row["seconds"]), float(row["mfu"]))
            for row in csv.DictReader(file)
        }


def lowest_mfu(kind: str) -> float:
    """Return the lowest MFU that preflight has estimated for the paper's runs on a kind of chip."""
    return min(
        mfu
        for report, (_, mfu) in estimates().items()
        if parse_slice(report.rpartition("_")[2]).kind == kind
    )


def _program(run: Pretraining, where: Slice) -> tuple[Any, ...]:
    """Return what the time of a step depends on; the values of hyperparameters are left out."""
    return (
        *(run.model, run.mesh.resolve(where.chips), run.batch_size, run.train_length),
        *(run.microbatches, run.overlap_gathers, run.data.packed, run.data.unshifted),
        *(type(run.optimizer), run.ema_decay is None, run.z_loss > 0),
    )


@functools.cache
def _program_of(name: str) -> tuple[Any, ...]:
    """Return the program of a report, whose name consists of its gin files and its slice."""
    data, size, encoding, slice_name = name.split("_")
    where = parse_slice(slice_name)
    preset = f"configs/slices/{slice_name.replace('-', '_')}.gin"
    has_preset = (SHIPPED / preset).is_file()
    files = [f"configs/runs/{data}_{size}.gin", *([preset] if has_preset else [])]
    bindings = () if has_preset else _LOOPED.get(where.kind, ())
    experiment = load_experiment([*files, f"configs/positions/{encoding}.gin"], bindings)
    return _program(experiment.train, where)
