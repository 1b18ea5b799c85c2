"""Rows that are split over the chips of a slice: the configuration, and its estimates in docs."""

import json
from pathlib import Path

import pytest

from fire_lm.experiment import load_experiment
from fire_lm.hardware.slices import parse_slice
from fire_lm.preflight.plan import check_plan

ROOT = Path(__file__).resolve().parents[2]
FILES = ("configs/runs/c4_125m.gin", "configs/positions/fire.gin", "configs/long_rows.gin")


EVIDENCE = ROOT / "docs" / "evidence" / "long_rows"
PAGE = (ROOT / "docs" / "preflight.md").read_text()


def test_the_page_states_the_estimates():
    report = json.loads((EVIDENCE / "c4_125m_fire_v4-32.json").read_text())
    step = report["programs"]["training step"]
    memory = sum(step[name] for name in ("arguments", "temporary", "code"))
    exposed = step["links"] - step["overlapped"]
    times = [step["xla"], step["kernels"], exposed, step["seconds"]]
    first, second, third, total = (f"{1e3 * seconds:,.1f}" for seconds in times)
    moved = sum(size for _, size in step["collectives"].values())
    row = [
        f"{memory / 2**30:.2f} of {step['usable'] / 2**30:.2f}",
        f"{moved / 2**20:,.0f}",
        f"{first} + {second} + {third} = {total}",
        f"{report['mfu_estimate']:.1%}".replace("%", " %"),
    ]
    assert f"| {' | '.join(row)} |" in PAGE
    report = json.loads((EVIDENCE / "c4_125m_fire_v4-32_sweep.json").read_text())
    (sweep,) = report["programs"].values()
    memory = sum(sweep[name] for name in ("arguments", "temporary", "code")) / 2**30
    milliseconds = 1e3 * sweep["seconds"]
    assert f"at that length takes {memory:.2f} GiB and {milliseconds:.0f} ms" in PAGE


@pytest.mark.ci
def test_the_configuration_fits_its_slice():
    train = load_experiment(FILES, ["DATA_DIR=data", "VOCABULARY=bytes"]).train
    assert train.mesh.resolve(16) == (1, 1, 1, 16) and train.train_length == 131_072
    check_plan(train, parse_slice("v4-32"))
