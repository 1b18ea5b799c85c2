"""The paper's runs, compiled for the slices that they were made for, on a machine without a TPU.

What the compiler reports (memory, collectives) is pinned, so that a change that costs more is
noticed. Nothing here runs on a TPU.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from preflight_run import Run, preflight

GOLDEN = Path(__file__).parents[1] / "golden" / "preflight"
TOLERANCE = 0.05
HELP = """
The compiled program takes other memory or collectives than before. If this commit means that (the
model, its layout, the compiler's version), say so in it with the numbers, and write the new ones:
UPDATE_GOLDEN=1 scripts/test --ci -- tests/preflight/test_preflight.py, and with --all"""
PAPER = [
    ("c4_125m", "fire", "v4-256"),
    ("c4_350m", "rope", "v4-512"),
    ("c4_125m", "fire", "2xv4-128"),
]

ONE_LAYER = ("--gin.size_tiny.num_layers=1", "--gin.EVAL_LENGTHS=64,128")


def figures(report: dict[str, Any]) -> dict[str, Any]:
    """Return each program's pinned figures: bytes of memory, number and bytes of collectives."""
    return {
        name: {
            "memory": {kind: program[kind] for kind in ("arguments", "temporary")},
            **{
                kind: dict(zip(("number", "bytes"), found, strict=True))
                for kind, found in program["collectives"].items()
            },
        }
        for name, program in report["programs"].items()
    }


def check(found: dict[str, Any], golden: dict[str, Any]) -> None:
    """Compare each number to within `TOLERANCE`."""
    assert flat(found) == pytest.approx(flat(golden), rel=TOLERANCE), HELP


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, float]:
    leaves: dict[str, float] = {}
    for name, value in tree.items():
        path = f"{prefix}/{name}"
        leaves |= flat(value, path) if isinstance(value, dict) else {path: value}
    return leaves


def passed(run: Run) -> dict[str, Any]:
    assert run.code == 0 and run.report is not None, run.err[-2000:] + run.out
    assert run.report["passed"] and not run.report["failures"]
    return run.report


@pytest.mark.slow
@pytest.mark.parametrize("run, position, slice_", PAPER)
def test_a_run_of_the_paper_takes_what_it_took(run, position, slice_, tmp_path):
    """The training step and the sweep at 8192; this takes minutes, as every layer is compiled."""
    report = passed(preflight(tmp_path, slice_, run, position))
    compare(figures(report), GOLDEN / f"{run}_{position}_{slice_}.json")


@pytest.mark.ci
def test_two_layers_of_a_run_of_the_paper_take_what_they_took(tmp_path):
    """Two layers have all programs and collectives of a complete run, but not FIRE's kernels.

    The kernels compile for minutes, in test_tpu_kernel_compile.py.
    """
    two_layers = "--gin.size_125m.num_layers=2"
    report = passed(preflight(tmp_path, "2xv4-128", "c4_125m", "rope", two_layers))
    step = report["programs"]["training step"]
    assert 0.05 * step["links"] < step["overlapped"] < step["links"], "gathers overlap products"
    compare(figures(report), GOLDEN / "two_layers_of_c4_125m_rope_2xv4-128.json")


def compare(found: dict[str, Any], golden: Path) -> None:
    assert list(found) == ["training step", "sweep at 8192"]
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(json.dumps(found, indent=1) + "\n")
    check(found, json.loads(golden.read_text()))


def test_the_tolerance_is_five_percent():
    golden = {"training step": {"memory": {"arguments": 100}, "all-gather": {"number": 40}}}
    check({"training step": {"memory": {"arguments": 104}, "all-gather": {"number": 39}}}, golden)
    for found in (
        {"training step": {"memory": {"arguments": 106}, "all-gather": {"number": 40}}},
        {"training step": {"memory": {"arguments": 100}, "all-reduce": {"number": 40}}},
        {"training step": {"memory": {"arguments": 100}}},
    ):
        with pytest.raises(AssertionError, match="UPDATE_GOLDEN=1"):
            check(found, golden)


@pytest.mark.slow
def test_what_is_too_large_fails_with_how_much_and_what_would_fit(tmp_path):
    """Batches of 33 million tokens fail in training and in the sweep; what fits is reported."""
    run = preflight(
        *(tmp_path, "v5e-8", "quickstart", "fire", *ONE_LAYER),
        *("--gin.BATCH_SIZE=524288", "--gin.length_sweep.tokens_per_batch=134217728"),
        *("--generate=16x128x8", "--beams=2"),
    )
    assert run.code == 1 and "Traceback" not in run.err, run.err
    assert "this run would not work on v5e-8 (8 chips)" in run.err
    assert run.report is not None and not run.report["passed"]
    assert list(run.report["programs"]) == ["generation"]
    generation = run.report["generation"]
    # Keys and values of 2 prompts per chip and 2 beams of each, 96 wide, in float32.
    assert generation["cache"] == 2 * 2 * (128 + 2 * 8) * 96 * 4
    assert set(generation["token"]["collectives"]) == {"all-reduce"}  # whether all have ended
    assert list(run.report["failures"]) == ["training step", "sweep at 128"]
    for name, setting in (
        ("training step", "--gin.pretrain.microbatches=2"),
        ("sweep at 128", "--gin.length_sweep.tokens_per_batch=67108864"),
    ):
        told = run.report["failures"][name]
        assert (
            "GiB more than the usable 15.75 GiB" in told and f"it fits with {setting}:" in told
        ), told
        assert told.splitlines()[0] in run.out


@pytest.mark.slow
def test_parameters_that_are_summed_up_where_they_should_be_gathered(tmp_path):
    """768 columns over 128 chips are 6 each, less than a tile."""
    mesh = ("--gin.MeshShape.data=1", "--gin.MeshShape.fsdp=128")
    small = ("--gin.size_125m.num_layers=2", "--gin.EVAL_LENGTHS=512")
    run = preflight(tmp_path, "v4-256", "c4_125m", "rope", *mesh, *small)
    assert run.code == 1 and run.outcomes["gathers over fsdp"] == "FAILED", run.out + run.err
    assert "lower MeshShape.fsdp" in run.out
    assert {found for name, found in run.outcomes.items() if "fsdp" not in name} == {"ok", "-"}


# Each run on the slices with the number of chips it was made for, as one slice or two; then on
# other kinds of chips.
V4 = {"c4_125m": ["v4-256", "2xv4-128"], "c4_350m": ["v4-512", "2xv4-256"]}
OTHERS = {
    "c4_125m": ["v5e-128", "v5p-256", "v6e-128"],
    "c4_350m": ["v5e-256", "v5p-512", "v6e-256"],
}


def cases(slices: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(run, slice_) for run, names in slices.items() for slice_ in names]


@pytest.mark.slow
@pytest.mark.parametrize("position", ["fire", "rope"])
@pytest.mark.parametrize("run, slice_", cases(V4))
def test_the_papers_runs_to_every_length(run, slice_, position, tmp_path):
    report = passed(preflight(tmp_path, slice_, run, position, "--all_lengths"))
    lengths = (512, 1024, 2048, 4096, 8192)
    assert list(report["programs"]) == ["training step", *(f"sweep at {n}" for n in lengths)]


@pytest.mark.slow
@pytest.mark.parametrize("position", ["fire", "rope"])
@pytest.mark.parametrize("run, slice_", cases(OTHERS))
def test_the_training_step_on_as_many_other_chips(run, slice_, position, tmp_path):
    """Layers run in a loop: unrolled, libtpu would take a quarter of an hour for v6e."""
    loop = ("--gin.build_decoder.scan_layers=True", "--gin.build_decoder.remat=full")
    passed(preflight(tmp_path, slice_, run, position, "--gin.EVAL_LENGTHS=512", *loop))


@pytest.mark.slow
@pytest.mark.parametrize("slice_", ["v4-8", "v5e-8"])
def test_the_papers_batch_on_one_host(slice_, tmp_path):
    preset = f"--gin_file=configs/slices/{slice_.replace('-', '_')}.gin"
    report = passed(preflight(tmp_path, slice_, "c4_125m", "fire", preset))
    assert report["mesh"]["fsdp"] == 1
