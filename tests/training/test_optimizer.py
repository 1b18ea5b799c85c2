"""fire_lm.training.optimizer: what decays, the schedule, and two steps against plain numpy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_decoders import by_path, shapes_of

from fire_lm import models
from fire_lm.errors import UserError
from fire_lm.positions.fire import FIRE
from fire_lm.training.optimizer import AdamW, decay_mask


def test_a_mask_by_rank_would_decay_biases_scales_and_the_encoding():
    """Which parameters decay is tested with the table of shardings, for every encoding."""
    params = shapes_of(models.build_decoder(models.size_tiny(), FIRE, 64, 32))
    by_rank = {path for path, leaf in by_path(params).items() if len(leaf.shape) >= 2}
    wrong = {path for path in by_rank if not by_path(decay_mask(params))[path]}
    assert {"layers/query/bias", "layers/mlp_in/bias", "layers/attention_norm/scale"} <= wrong
    assert {"layers/position/mlp/dense_1/kernel", "layers/position/mlp/dense_1/bias"} <= wrong


def test_schedule_of_the_paper():
    schedule = AdamW().schedule(600_000)
    peak, last, half = 6e-4, 6e-5, 715 + (600_000 - 715) / 2
    expected = {0: 0.0, 143: 0.2 * peak, 715: peak, 600_000: last, 700_000: last}
    for step, value in {**expected, half: (peak + last) / 2}.items():
        np.testing.assert_allclose(schedule(step), value, rtol=1e-5, atol=1e-12)
    cosine = 0.5 * (1 + np.cos(np.pi * (100_000 - 715) / (600_000 - 715)))
    np.testing.assert_allclose(schedule(100_000), last + (peak - last) * cosine, rtol=1e-5)


@pytest.mark.parametrize("warmup_steps", [10, 11])
def test_warm_up_must_fit(warmup_steps):
    with pytest.raises(UserError, match=f"warm-up of {warmup_steps} .*TRAIN_STEPS = 10: lower"):
        AdamW(warmup_steps=warmup_steps).build(10)
    AdamW(warmup_steps=9).schedule(10)


@pytest.mark.parametrize(
    "setting",
    [
        "learning_rate=-1", "learning_rate=inf", "learning_rate=nan",
        "warmup_steps=-1", "final_fraction=-3", "final_fraction=1.5", "b1=1", "b1=-0.1", "b2=2",
        "epsilon=0", "weight_decay=-0.1", "clip_norm=0", "clip_norm=-1",
    ],
)  # fmt: skip
def test_settings_that_cannot_work(setting):
    name, _, value = setting.partition("=")
    with pytest.raises(UserError, match=f"AdamW.{name} is {float(value):g}.*: it must be"):
        AdamW(**{name: float(value)})


PARAMS = {
    "embedding": np.array([[0.5, -1.0], [2.0, 0.25]], np.float32),
    "layers": {
        "query": {"kernel": np.array([[1.0, -3.0]], np.float32), "bias": np.array([[2.0]])},
        "position": {"kernel": np.array([[4.0, 1.0]], np.float32)},
    },
}
GRADS = [
    jax.tree.map(lambda x: np.float32(0.01) * np.cos(x, dtype=np.float32), PARAMS),
    jax.tree.map(lambda x: np.float32(3.0) * np.sin(x, dtype=np.float32), PARAMS),  # is clipped
]


def numpy_adamw(
    optimizer: AdamW, *, decoupled: bool = True, clipped: bool = True
) -> dict[str, np.ndarray]:
    """Return the parameters after GRADS by Loshchilov & Hutter's Algorithm 2, in float64."""
    params = {path: np.array(leaf, np.float64) for path, leaf in by_path(PARAMS).items()}
    moments: dict[str, list[Any]] = {path: [0.0, 0.0] for path in params}
    for step, tree in enumerate(GRADS):
        grads = {path: np.array(leaf, np.float64) for path, leaf in by_path(tree).items()}
        norm = np.sqrt(sum(np.sum(g**2) for g in grads.values()))
        scale = min(1.0, optimizer.clip_norm / norm) if clipped else 1.0
        peak, warmup = optimizer.learning_rate, optimizer.warmup_steps
        lr = peak * step / warmup if step < warmup else peak  # both steps precede the decay
        for path, p in params.items():
            decay = optimizer.weight_decay if path in ("embedding", "layers/query/kernel") else 0.0
            g = grads[path] * scale + (0.0 if decoupled else decay * p)
            m = moments[path][0] = optimizer.b1 * moments[path][0] + (1 - optimizer.b1) * g
            v = moments[path][1] = optimizer.b2 * moments[path][1] + (1 - optimizer.b2) * g**2
            m_hat, v_hat = (
                m / (1 - optimizer.b1 ** (step + 1)),
                v / (1 - optimizer.b2 ** (step + 1)),
            )
            update = m_hat / (np.sqrt(v_hat) + optimizer.epsilon)
            params[path] = p - lr * (update + (decay * p if decoupled else 0.0))
    return params


def test_two_steps_against_numpy():
    optimizer = AdamW(learning_rate=0.1, warmup_steps=1, weight_decay=0.1)
    transformation = optimizer.build(1000)
    params = jax.tree.map(jnp.float32, PARAMS)
    state = transformation.init(params)
    with jax.numpy_dtype_promotion("standard"):
        for grads in GRADS:
            updates, state = transformation.update(jax.tree.map(jnp.float32, grads), state, params)
            params = jax.tree.map(jnp.add, params, updates)

    def worst(**broken: bool) -> float:
        expected = numpy_adamw(optimizer, **broken)
        return max(np.abs(leaf - expected[path]).max() for path, leaf in by_path(params).items())

    assert worst() < 1e-6
    assert worst(decoupled=False) > 1e-3  # L2 in the gradient is another algorithm
    assert worst(clipped=False) > 1e-3
