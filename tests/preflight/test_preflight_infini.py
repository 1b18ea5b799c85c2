"""Infini-attention compiled for a slice: its step, its kernels and its decoding."""

import pytest
from preflight_run import preflight

SMALL = {
    "size_tiny.num_layers": 2,
    "size_tiny.num_heads": 2,
    "size_tiny.head_dim": 64,
    "TRAIN_LENGTH": 256,
    "EVAL_LENGTHS": 256,
    "InfiniAttention.segment": 128,
}


@pytest.mark.ci
def test_training_and_decoding_with_a_memory_compile(tmp_path):
    """The memory has a line of its own, and the state of decoding has the size of a segment.

    The loop over layers has a line too, whose name depends on how JAX names our methods.
    """
    flags = [f"--gin.{name}={value}" for name, value in SMALL.items()]
    mixer = "--gin_file=configs/mixers/infini.gin"
    run = preflight(tmp_path, "v4-8", "quickstart", "rope", mixer, *flags, "--generate=4x1024x8")
    assert run.code == 0 and run.report is not None, run.err[-2000:] + run.out
    programs = run.report["programs"]
    for name in ("training step", "sweep at 256"):
        assert {"memory of a mixer", "attention kernels"} <= set(programs[name]["parts"]), name
    assert "stacks of layers in a loop" in programs["training step"]["parts"]
    layers, heads, memories, keys = 2, 2, 2 * 64 * 65, 2 * 64 * (127 + 8)
    assert run.report["generation"]["cache"] == 4 * layers * heads * (memories + keys)
