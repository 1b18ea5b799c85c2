"""Three training steps against stored numbers, so that nothing changes the maths unnoticed."""

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fire_lm.data.batches import text_weights
from fire_lm.models import build_decoder, size_tiny
from fire_lm.positions.fire import FIRE
from fire_lm.training.optimizer import AdamW
from fire_lm.training.step import TrainState, init_state, train_step

GOLDEN = Path(__file__).parents[1] / "golden" / "training_step.json"
HELP = """
Training gives other numbers than before. If you did not mean to change the maths (initialisation,
encoding, model, loss, optimizer), this is a bug. If you did, say so in the commit and write the
new numbers: UPDATE_GOLDEN=1 scripts/test -- tests/training/test_golden_step.py"""


@functools.cache
def compiled() -> tuple[Callable[..., TrainState], Callable[..., Any]]:
    """Return the compiled initialisation and training step of the tiny model with FIRE."""
    model = build_decoder(size_tiny(), FIRE, vocab_size=64, train_length=32, dtype="float32")
    optimizer = AdamW(learning_rate=4e-3, warmup_steps=0).build(train_steps=3)
    step = functools.partial(
        train_step, model=model, optimizer=optimizer, seed=0, z_loss=1e-4, microbatches=1
    )
    return jax.jit(functools.partial(init_state, model, optimizer)), jax.jit(step)


def three_steps(initial_L: float = 1.0) -> dict[str, list[float]]:
    """Return the losses and gradient norms of three steps on synthetic tokens."""
    init, step = compiled()
    state = init(jax.random.key(0))
    state.params["layers"]["position"]["L_multiplier"] *= initial_L
    rng = np.random.Generator(np.random.PCG64(0))
    recorded: dict[str, list[float]] = {"loss": [], "grad_norm": []}
    for _ in range(3):
        targets = rng.integers(0, 64, (4, 32)).astype(np.int32)  # some zeros: padding
        state, metrics = step(state, {"targets": targets, "weights": text_weights(targets)})
        for name, values in recorded.items():
            values.append(float(metrics[name]))
    return recorded


def check(recorded: dict[str, list[float]], golden: dict[str, list[float]]) -> None:
    assert recorded.keys() == golden.keys()
    for name in golden:
        np.testing.assert_allclose(recorded[name], golden[name], rtol=1e-5, err_msg=name + HELP)


def test_golden_training_step():
    recorded = three_steps()
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(json.dumps(recorded, indent=2) + "\n")
    check(recorded, json.loads(GOLDEN.read_text()))


def test_golden_training_step_sees_a_small_change():
    """The change is a tenth of FIRE's threshold."""
    with pytest.raises(AssertionError, match="UPDATE_GOLDEN=1"):
        check(three_steps(initial_L=1.1), json.loads(GOLDEN.read_text()))
