"""The checks and the step time of a run on a slice that need no compiler."""

import dataclasses
import json
from pathlib import Path

import pytest

from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.hardware.slices import parse_slice
from fire_lm.preflight.plan import check_local_paths, check_plan, local_paths
from fire_lm.preflight.step_time import (
    _program_of,
    estimates,
    expected_step_time,
    expected_sweep_time,
    lowest_mfu,
)

REPORTS = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "preflight"
FILES = ["configs/runs/c4_125m.gin", "configs/positions/fire.gin"]


def run_of(*bindings, files=FILES):
    return load_experiment(files, bindings).train


@pytest.mark.ci
def test_the_program_of_each_report_is_found_by_its_name():
    files = sorted(REPORTS.glob("c4_*.json"))
    assert len(files) == 12
    for file in files:
        report = json.loads(file.read_text())
        _, mesh, batch, length, *_ = _program_of(file.stem)
        tokens = (
            report["tokens_per_second_estimate"] * report["programs"]["training step"]["seconds"]
        )
        assert mesh == tuple(report["mesh"].values()) and batch * length == pytest.approx(tokens)


def test_the_packages_estimates_are_those_of_the_reports():
    reports = {file.stem: json.loads(file.read_text()) for file in REPORTS.glob("c4_*.json")}
    assert estimates() == {
        name: (report["programs"]["training step"]["seconds"], report["mfu_estimate"])
        for name, report in reports.items()
    }


def test_a_step_that_preflight_has_estimated_has_this_time():
    report = json.loads((REPORTS / "c4_125m_fire_v4-256.json").read_text())
    where = parse_slice("v4-256")
    found = expected_step_time(run_of("AdamW.learning_rate=1e-3", "TRAIN_STEPS=10"), where)
    assert found.seconds == report["programs"]["training step"]["seconds"]
    assert found.source == "the compiler's estimate"


def test_any_other_step_has_the_time_of_its_flops():
    where, run = parse_slice("v4-256"), run_of("BATCH_SIZE=512")
    found = expected_step_time(run, where)
    flops = run.flops_per_token * run.tokens_per_step
    assert found.seconds == pytest.approx(flops / (lowest_mfu("v4") * 128 * 275e12))
    assert found.source == "assuming 28% MFU, the lowest of preflight's estimates for v4"


def test_a_sweep_has_the_time_of_a_forward_pass_over_all_its_windows():
    config = load_experiment(FILES, ["EVAL_LENGTHS=512,2048", "length_sweep.tokens=2_097_152"])
    sweep, where = config.sweep, parse_slice("v4-256")
    per_token = {n: run_of(f"TRAIN_LENGTH={n}").flops_per_token / 3 for n in (512, 2048)}
    peak = lowest_mfu("v4") * 128 * 275e12
    seconds = 2**21 * sum(per_token.values()) / peak
    assert expected_sweep_time(sweep, where).seconds == pytest.approx(seconds)
    sliding = dataclasses.replace(sweep, protocols=("sliding",), stride=256)
    rows, longest = 32, 2**16
    windows = {n: (longest - n) // 256 + 1 for n in per_token}
    tokens = {n: rows * windows[n] * n for n in per_token}
    found = expected_sweep_time(sliding, where).seconds
    assert found == pytest.approx(sum(tokens[n] * per_token[n] for n in per_token) / peak)


@pytest.mark.parametrize(
    "name, bindings, words",
    [
        ("v4-8", [], "needs 128 devices, but v4-8 (4 chips) has 4: set --gin.MeshShape.data=1 "
         "--gin.MeshShape.fsdp=4 --gin.MeshShape.tensor=1\nor add "
         "--gin_file=configs/slices/v4_8.gin after the run file"),
        ("v4:4x4x12", [], "--gin.MeshShape.data=12 --gin.MeshShape.fsdp=16 "
         "--gin.MeshShape.tensor=1\nwith this mesh, a batch of 256 sequences cannot be split "
         "evenly over data x fsdp x microbatches = 12 x 16 x 1: make BATCH_SIZE a multiple of 192"),
        ("v4-256", ["BATCH_SIZE=100"], "make BATCH_SIZE a multiple of 128"),
        ("2xv4-128", ["MeshShape.data=1", "MeshShape.fsdp=128", "BATCH_SIZE=128"],
         "2 slices must share the batch evenly"),
        ("v4-256", ["MeshShape.fsdp=1", "MeshShape.tensor=16"], "choose a size of tensor"),
    ],
)  # fmt: skip
def test_a_run_that_does_not_fit_a_slice_is_refused_with_what_fits(name, bindings, words):
    with pytest.raises(UserError) as told:
        check_plan(run_of(*bindings), parse_slice(name))
    assert words in str(told.value) and len(str(told.value).splitlines()) <= 2


def test_the_papers_run_fits_its_slice():
    check_plan(run_of(), parse_slice("v4-256"))


def test_local_paths_are_those_that_no_bucket_holds():
    config = load_experiment(FILES, ["DATA_DIR='data/c4'", "INIT_FROM='runs/a@10'"])
    assert local_paths(config) == [("INIT_FROM", "runs/a@10"), ("DATA_DIR", "data/c4")]
    (asked,) = check_local_paths(config, parse_slice("v4-256"))
    words = "DATA_DIR=data/c4, INIT_FROM=runs/a@10: does each of the 32 hosts of the slice have it"
    assert asked.outcome == "-" and asked.detail.startswith(words)
    config = load_experiment(FILES, ["DATA_DIR='gs://b/c4'", "VOCABULARY='hf:vocabulary'"])
    assert local_paths(config) == [("VOCABULARY", "vocabulary")]
    assert "does the host of the slice" in check_local_paths(config, parse_slice("v4-8"))[0].detail
    config = load_experiment(FILES, ["DATA_DIR='gs://b/c4'", "VOCABULARY='bytes'"])
    assert not local_paths(config) and not check_local_paths(config, parse_slice("v4-256"))


def test_every_path_of_a_tuple_is_a_local_path():
    files = [*FILES, "configs/data/seqio.gin"]
    cached = "SeqioTask.cache_dirs=('cached/a', 'gs://b/c', 'cached/d')"
    config = load_experiment(files, [cached, "MIXTURE_OR_TASK='c4'", "VOCABULARY='bytes'"])
    named = [("SeqioTask.cache_dirs", "cached/a"), ("SeqioTask.cache_dirs", "cached/d")]
    assert local_paths(config) == named
    assert "cache_dirs=cached/a, " in check_local_paths(config, parse_slice("v4-8"))[0].detail


@pytest.mark.ci
def test_a_run_of_several_lengths_has_the_mean_time_of_its_steps():
    where, schedule = parse_slice("v4-256"), "TRAIN_LENGTHS=((0, 2048), (0.9, 8192))"
    run = run_of(schedule, "TRAIN_STEPS=1000")
    assert run.at_length(8192) == run_of(
        "TRAIN_LENGTH=8192", "BATCH_SIZE=64", "TRAIN_STEPS=1000", "build_decoder.train_length=2048"
    )
    times = [expected_step_time(run.at_length(n), where) for n in (2048, 8192)]
    found = expected_step_time(run, where)
    assert found.seconds == pytest.approx(0.9 * times[0].seconds + 0.1 * times[1].seconds)
    assert found.source == f"the compiler's estimate; {times[1].source}"
    check_plan(run_of(schedule, "BATCH_SIZE=512"), where)
    with pytest.raises(UserError, match="length 8192 .* make BATCH_SIZE a multiple of 512"):
        check_plan(run, where)
