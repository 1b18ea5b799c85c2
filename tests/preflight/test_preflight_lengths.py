"""Preflight of a run whose rows change their length: each program, and the cost of the run."""

import dataclasses

import pytest
from sample_run import tiny_run
from test_preflight_gathers import STEP

from fire_lm.hardware.slices import parse_slice
from fire_lm.preflight import check
from fire_lm.preflight.report import Report
from fire_lm.preflight.step_time import reported_step_time

NAMES = ["training step at 16", "training step at 64"]


def test_each_length_is_compiled_as_a_run_of_that_length(monkeypatch):
    run = tiny_run(train_lengths=((0, 16), (6, 64)))
    compiled = []

    def add(programs, name, function, what_fits):
        (given,) = function.args
        compiled.append((name, given.batch_size, given.train_length))
        programs.estimates[name] = STEP

    class Compiler:
        def training(self, run):
            raise AssertionError

    monkeypatch.setattr(check.Programs, "add", add)
    programs = check.compile_all(Compiler(), run, None, [])
    assert compiled == [(NAMES[0], 8, 16), (NAMES[1], 2, 64)]
    assert list(programs.estimates) == NAMES and not programs.failures
    shares = {name: share for name, (_, share) in check.training_steps(run).items()}
    assert shares == {NAMES[0]: 0.75, NAMES[1]: 0.25}
    assert list(check.training_steps(tiny_run())) == ["training step"]
    never = tiny_run(train_lengths=((0, 16), (1000, 64)))
    assert list(check.training_steps(never)) == [NAMES[0]], "no step has 64"


def test_the_report_has_the_time_of_each_length_and_the_cost_of_the_run():
    slow = dataclasses.replace(STEP, links=STEP.links + 0.1)
    programs = dict(zip(NAMES, [STEP, slow], strict=True))
    shares = dict(zip(NAMES, [0.75, 0.25], strict=True))
    arguments = (parse_slice("v5e-8"), {"data": 8}, programs, 1e12, 1024, {}, [], "libtpu 1")
    report = Report(*arguments, steps=shares, train_steps=36_000)
    seconds = STEP.seconds + 0.25 * 0.1
    assert report.step_seconds == pytest.approx(seconds)
    hours = 10 * seconds
    text = str(report)
    assert f"the run: 36,000 steps of {1e3 * seconds:,.1f} ms, {hours:,.1f} h, " in text
    assert f"{8 * hours:,.0f} chip-hours (75.0% at 16, 25.0% at 64)\n" in text
    assert "ms at 16, without collectives" in text and "ms at 64, without collectives" in text
    estimate = reported_step_time(report.as_json())
    assert estimate is not None and estimate.seconds == pytest.approx(seconds)
    partial = dataclasses.replace(report, programs={NAMES[0]: STEP})
    assert partial.mfu is None and reported_step_time(partial.as_json()) is None
