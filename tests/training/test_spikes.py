"""fire_lm.training.spikes: what counts as a spike, which updates are skipped, what is logged."""

import contextlib
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm import models, positions
from fire_lm.training import AdamW, Spikes
from fire_lm.training import step as training_step
from fire_lm.training.spikes import SpikeLog, remember
from fire_lm.training.step import init_state, train_step

LOSSES = [3.0 + 0.1 * (-1) ** step for step in range(60)]  # median absolute deviation 0.1


def test_a_spike_is_far_above_the_usual():
    assert math.isclose(Spikes(deviations=10).limit(LOSSES), 3.0 + 10 * 1.4826 * 0.1, rel_tol=1e-6)
    assert Spikes().limit(LOSSES[:19]) == math.inf, "too few to say what is usual"


def test_spikes_do_not_move_the_limit_of_the_next():
    spiky = LOSSES[:-3] + [50.0, 60.0, 70.0]
    assert Spikes().limit(spiky) < 7
    assert np.mean(spiky) + 2 * np.std(spiky) > 20, "as mean and standard deviation would"


def test_a_hundred_losses_are_remembered():
    losses: list[float] = []
    for loss in range(250):
        losses, before = remember(losses, float(loss)), losses
        assert len(before) == min(loss, 100), "the old list stays as it was"
    assert losses == [float(loss) for loss in range(150, 250)]


@pytest.mark.parametrize(
    ("spikes", "guarded", "above"),
    [
        (Spikes(), False, math.inf),
        (Spikes(skips_allowed=3), True, math.inf),
        (Spikes(skips_allowed=3, skip_finite=True), True, Spikes().limit(LOSSES)),
    ],
)
def test_what_the_step_is_told(spikes, guarded, above):
    assert spikes.guard("limit") == (("limit",) if guarded else ())
    assert spikes.skip_above(LOSSES) == above


def test_the_log_holds_every_step_once_also_after_a_restart(tmp_path):
    def steps() -> list[int]:
        lines = (tmp_path / "spikes.jsonl").read_text().splitlines()
        return [json.loads(line)["step"] for line in lines]

    with contextlib.closing(SpikeLog(tmp_path, 0)) as log:
        assert not (tmp_path / "spikes.jsonl").exists()
        for step in (3, 5, 9):
            log.add({"step": step, "loss": math.nan, "limit": math.inf, "skipped": False})
    with (tmp_path / "spikes.jsonl").open("a") as file:
        file.write('{"note": "mine"}\n{"step": "4"}\n{"step": 11, "lo')  # the last, cut by a kill
    with contextlib.closing(SpikeLog(tmp_path, 5)):
        assert steps() == [3, 5]
    with contextlib.closing(SpikeLog(tmp_path, 5)) as log:
        log.add({"step": 6, "loss": 1.0})
        assert steps() == [3, 5, 6]
    line = json.loads((tmp_path / "spikes.jsonl").read_text().splitlines()[0])
    assert line == {"step": 3, "loss": "nan", "limit": "inf", "skipped": False}


@pytest.fixture(scope="module")
def step():
    """Return a state, and a jitted step that takes state, batch, seed and `skip_above`."""
    model = models.build_decoder(
        models.size_tiny(num_layers=1, num_heads=1, head_dim=8),
        positions.encodings()["NoPE"],
        vocab_size=32,
        train_length=16,
        dtype="float32",
    )
    optimizer = AdamW(warmup_steps=0).build(100)
    fixed = {"model": model, "optimizer": optimizer, "z_loss": 0.0, "microbatches": 1}
    state = jax.jit(functools.partial(init_state, model, optimizer))(jax.random.key(0))
    return state, jax.jit(functools.partial(train_step, **fixed))


BATCH = {
    "targets": jnp.arange(1, 33).reshape(2, 16) % 31 + 1,
    "weights": jnp.ones((2, 16), jnp.int8),
}


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def same(one, other) -> bool:
    return all(map(np.array_equal, leaves(one), leaves(other)))


@pytest.mark.ci
def test_a_step_below_the_limit_is_as_without_one(step):
    state, run = step
    free, _ = run(state, BATCH, 0)
    for limit in (math.inf, 1e3):
        guarded, metrics = run(state, BATCH, 0, jnp.float32(limit))
        assert same(guarded, free) and metrics["skipped"] == 0
    assert not same(free.params, state.params)


def test_above_the_limit_the_step_alone_is_counted(step):
    state, run = step
    after, metrics = run(state, BATCH, 0, jnp.float32(1e-3))
    assert metrics["skipped"] == 1 and after.step == state.step + 1
    assert same((after.params, after.opt_state), (state.params, state.opt_state))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_left_out(step, bad):
    """Infinite weights give a loss of NaN, which must not reach Adam's moments."""
    state, run = step
    params = jax.tree.map(lambda x: x.at[(0,) * x.ndim].set(bad), state.params)
    broken = state.replace(params=params)
    after, metrics = run(broken, BATCH, 0, jnp.float32(np.inf))
    assert metrics["skipped"] == 1 and not np.isfinite(metrics["loss"])
    assert all(np.isfinite(leaf).all() for leaf in leaves(after.opt_state))
    unguarded, _ = run(broken, BATCH, 0)
    assert not all(np.isfinite(leaf).all() for leaf in leaves(unguarded.opt_state))


def test_an_infinite_loss_is_left_out_even_if_its_gradient_is_finite(step, monkeypatch):
    state, run = step
    summed_loss = training_step.summed_loss

    def infinite(*args):
        loss, (nll, diagnostics) = summed_loss(*args)
        return loss, (nll + jnp.inf, diagnostics)

    monkeypatch.setattr(training_step, "summed_loss", infinite)
    again = jax.jit(lambda *args: run.__wrapped__(*args))
    after, metrics = again(state, BATCH, 0, jnp.float32(jnp.inf))
    assert np.isfinite(metrics["grad_norm"]) and metrics["skipped"] == 1
    assert same(after.params, state.params)
