"""What the compiled training step contains on a CPU: loops over layers."""

import jax
import numpy as np
import pytest

from fire_lm import sharding
from fire_lm.models import build_decoder, size_tiny
from fire_lm.positions.nope import NoPE
from fire_lm.training import AdamW, Spikes, compile, compile_training
from fire_lm.training.compile import loops_over_layers


def model(**fields):
    layers = fields.pop("layers", 3)
    return build_decoder(size_tiny(layers), NoPE, 32, 8, dtype="float32", **fields)


@pytest.mark.parametrize(
    ("platform", "fields", "looped"),
    [
        ("cpu", {}, False),
        ("cpu", {"layers": 4}, False),
        ("cpu", {"layers": 5}, True),
        ("cpu", {"layers": 5, "scan_layers": False}, False),
        ("cpu", {"remat": "full"}, True),
        ("tpu", {}, True),
        ("gpu", {}, True),
        ("tpu", {"scan_layers": False}, False),
    ],
)
def test_a_loop_over_few_layers_is_unrolled_on_a_cpu(platform, fields, looped):
    assert loops_over_layers(model(**fields), platform) == looped


@pytest.mark.parametrize(("layers", "loops"), [(3, 0), (5, 2)])
def test_the_step_that_training_compiles_has_a_loop_only_over_many_layers(
    layers, loops, monkeypatch
):
    """Of these loops, one is in the forward pass and one in the backward pass."""
    traced = []
    monkeypatch.setattr(
        compile,
        "compile_step",
        lambda step, *arguments, options: traced.append(jax.make_jaxpr(step)(*arguments)),
    )
    compile_training(
        *(model(layers=layers), AdamW(warmup_steps=0).build(1)),
        sharding.mesh_of((1, 1, 1), jax.devices()[:1]),
        **{"packed": False, "batch_size": 1, "row_length": 8, "z_loss": 0.0, "microbatches": 1},
        spikes=Spikes(),
    )
    scans = [each for each in traced[0].eqns if str(each.primitive) == "scan"]
    unrolled = [each.params["unroll"] for each in scans]
    assert len([unroll for unroll in unrolled if unroll == 1]) == loops
    assert all(unroll in (1, layers) for unroll in unrolled) and np.all(unrolled)
