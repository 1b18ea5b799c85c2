"""The expected time of a training step that has not been compiled.

The time is the compiler's estimate if preflight has reported on the same program; the reports on
the paper's runs are part of the package. Otherwise, it follows from the FLOPs of the step.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fire_lm
from fire_lm.experiment import SHIPPED, load_experiment
from fire_lm.hardware.slices import Slice, parse_slice
from fire_lm.preflight.plan import parameters
from fire_lm.training import Pretraining, model_flops_per_token

REPORTS = Path(fire_lm.__file__).parent / "reporting" / "evidence" / "preflight"
_STEP = "training step"
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
    """Return the expected time of a training step of `run` on a slice that its mesh fills."""
    program = _program(run, where)
    for file in sorted(REPORTS.glob(f"c4_*_{where.name}.json")):
        if _program_of(file.stem) == program:
            found = reported_step_time(json.loads(file.read_text()))
            assert found is not None, file
            return found
    mfu = lowest_mfu(where.kind)
    per_token = model_flops_per_token(run.model, parameters(run.model), run.train_length)
    flops = per_token * run.tokens_per_step
    return StepTime(
        flops / (mfu * where.peak_flops),
        f"assuming {mfu:.0%} MFU, the lowest of preflight's estimates for {where.kind}",
    )


def reported_step_time(report: Mapping[str, Any]) -> StepTime | None:
    """Return the time of a training step in a report of preflight in JSON form, or None."""
    seconds = report["programs"].get(_STEP, {}).get("seconds")
    return None if seconds is None else StepTime(seconds, "the compiler's estimate")


@functools.cache
def lowest_mfu(kind: str) -> float:
    """Return the lowest MFU that preflight has estimated for the paper's runs on a kind of chip."""
    reports = [json.loads(file.read_text()) for file in REPORTS.glob("c4_*.json")]
    return min(r["mfu_estimate"] for r in reports if parse_slice(r["slice"]).kind == kind)


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
