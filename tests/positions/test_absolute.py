"""Absolute encodings, learned and sinusoidal: what they do to the embeddings."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.errors import UserError
from fire_lm.positions.learned import Learned
from fire_lm.positions.sinusoidal import Sinusoidal

WIDTH = 24
SIZE = {"num_heads": 3, "head_dim": 8, "train_length": 64, "hidden_size": WIDTH}
LEARNED, SINUSOIDAL = Learned(**SIZE), Sinusoidal(**SIZE)


def embeddings(length: int, dtype: Any = jnp.float32) -> jax.Array:
    x = np.random.default_rng(length).normal(0, 0.02, (2, length, WIDTH))
    return jnp.asarray(x, dtype)


def waves(pos: Any, base: float = 10_000.0) -> np.ndarray:
    """Return PE of section 3.5, computed number by number."""
    out = np.empty((len(pos), WIDTH))
    for row, p in enumerate(np.asarray(pos, np.float64)):
        for k in range(WIDTH // 2):
            angle = p / base ** (2 * k / WIDTH)
            out[row, 2 * k], out[row, 2 * k + 1] = np.sin(angle), np.cos(angle)
    return out


@pytest.mark.parametrize("start, length", [(0, 1), (0, 2), (0, 17), (8175, 17), (131_000, 72)])
def test_sinusoids_are_vaswanis(start, length):
    x, pos = embeddings(length), start + np.arange(length)
    ours = SINUSOIDAL.embed({}, x, jnp.asarray(pos)[None])
    scaled = np.sqrt(WIDTH) * np.asarray(x, np.float64)
    np.testing.assert_allclose(ours, scaled + waves(pos)[None], rtol=0, atol=3e-6)
    halves = waves(pos)[:, np.r_[0:WIDTH:2, 1:WIDTH:2]]  # [sines, cosines], as in tensor2tensor
    for broken in (scaled + halves[None], np.asarray(x) + waves(pos)[None]):
        assert np.max(np.abs(ours - broken)) > 0.01


def test_sinusoids_by_example_between_integers_and_with_another_base():
    x, pos = embeddings(5), np.float32([[0.5, 1, 1.25, 70, 99], [3, 2, 1, 0, 8191.5]])
    ours = Sinusoidal(**SIZE, base=50.0).embed({}, x, jnp.asarray(pos))
    paper = np.stack([waves(row, 50.0) for row in pos]) + np.sqrt(WIDTH) * np.float64(x)
    np.testing.assert_allclose(ours, paper, rtol=0, atol=3e-6)


@pytest.mark.parametrize("encoding", [LEARNED, SINUSOIDAL], ids=["learned", "sinusoidal"])
def test_bfloat16_is_rounded_once_at_the_end(encoding):
    """Neighbours at large positions thus differ as far as bfloat16 can distinguish their values."""
    x, pos = embeddings(64, jnp.bfloat16), jnp.arange(64)[None]
    params = encoding.init(jax.random.key(0))
    rounded = encoding.embed(params, x, pos)
    whole = encoding.embed(params, x.astype(jnp.float32), pos)
    assert rounded.dtype == jnp.bfloat16 and np.any(np.float32(rounded) != whole)
    np.testing.assert_array_equal(rounded, whole.astype(jnp.bfloat16))
    assert not encoding.translation_invariant


def test_a_learned_row_is_added_to_each_position():
    """Each example uses its own positions, and the gradient reaches the rows that were used."""
    params = LEARNED.init(jax.random.key(0))
    table, x = params["embedding"], embeddings(4)
    pos = np.array([[0, 63, 5, 5], [1, 2, 3, 4]])
    ours = LEARNED.embed(params, x, jnp.asarray(pos))
    np.testing.assert_array_equal(ours, np.asarray(x) + np.asarray(table)[pos])
    gradient = jax.grad(lambda p: jnp.sum(LEARNED.embed(p, x, jnp.asarray(pos))))(params)
    times = np.bincount(pos.ravel(), minlength=64)
    np.testing.assert_array_equal(gradient["embedding"], np.repeat(times[:, None], WIDTH, axis=1))


def test_the_table_starts_as_gpt2s():
    table = Learned(**{**SIZE, "hidden_size": 256}).init(jax.random.key(1))["embedding"]
    assert table.shape == (64, 256) and table.dtype == jnp.float32
    assert np.std(table) == pytest.approx(0.02, rel=0.02)
    assert abs(np.mean(table)) < 5e-4
    assert Learned(**SIZE, max_length=200).init(jax.random.key(1))["embedding"].shape == (
        200,
        WIDTH,
    )


def test_positions_beyond_the_table_are_refused_and_never_anothers_row():
    """They are refused with a message before anything runs; if used anyway, they give NaN.

    If they were clamped, they would have row 63.
    """
    LEARNED.check_length(64, 64)
    Learned(**SIZE, max_length=65).check_length(65, 65)
    SINUSOIDAL.check_length(10**6, 10**6)
    with pytest.raises(UserError, match="65 is beyond the 64 .*\n.*Learned.max_length"):
        LEARNED.check_length(65, 65)
    params, x = LEARNED.init(jax.random.key(0)), embeddings(4)
    pos = jnp.array([[63, 64, 100_000, -1]])
    for embed in (LEARNED.embed, jax.jit(LEARNED.embed)):
        known = np.all(np.isfinite(embed(params, x, pos)), axis=-1)
        np.testing.assert_array_equal(known, [[True, False, False, False]] * 2)
    clamped = jnp.take(params["embedding"], pos, axis=0, mode="clip")
    np.testing.assert_array_equal(clamped[0, 1], params["embedding"][63])


def test_an_interpolated_table():
    """Columns are interpolated as by numpy; the last row is that of the last learned position."""
    longer = Learned(**SIZE, interpolation=2.5)
    params, x = LEARNED.init(jax.random.key(0)), embeddings(158)
    assert longer.rows == 158 and longer.init(jax.random.key(0)).keys() == params.keys()
    longer.check_length(158, 158)
    table = np.asarray(params["embedding"], np.float64)
    expected = np.stack(
        [np.interp(np.arange(158) / 2.5, np.arange(64), column) for column in table.T], axis=1
    )
    added = longer.embed(params, x, jnp.arange(158)[None]) - x
    np.testing.assert_allclose(added[0], expected, atol=1e-7)
    with pytest.raises(UserError, match="159 is beyond the 158"):
        longer.check_length(159, 159)


def test_a_table_has_no_rows_between_integers():
    assert LEARNED.integer_positions and not SINUSOIDAL.integer_positions
    with pytest.raises(UserError, match="integer"):
        LEARNED.embed(LEARNED.init(jax.random.key(0)), embeddings(1), jnp.array([[0.0]]))


@pytest.mark.parametrize(
    "kind, changed, match",
    [
        (Sinusoidal, {"hidden_size": 25}, "hidden_size 25 must be even"),
        (Sinusoidal, {"base": 0.5}, "Sinusoidal.base"),
        (Learned, {"max_length": 0}, "Learned.max_length"),
        (Learned, {"interpolation": 0.5}, "Learned.interpolation is 0.5"),
    ],
)
def test_settings_that_make_no_sense(kind, changed, match):
    with pytest.raises(UserError, match=match):
        kind(**{**SIZE, **changed})
