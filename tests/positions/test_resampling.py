"""Resampled positions: their distribution, those of training and evaluation, and refusals."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_decoders import filled
from sample_run import tiny_run

from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.models import build_decoder
from fire_lm.models.sizes import ModelSize
from fire_lm.positions.fire import FIRE
from fire_lm.positions.learned import Learned
from fire_lm.positions.resampling import (
    BetaPositions,
    ExponentialPositions,
    RandomizedPositions,
    Resampling,
    UniformPositions,
)
from fire_lm.positions.t5 import T5
from fire_lm.sharding import MeshShape, make_mesh, put_batch, with_shardings
from fire_lm.training import Pretraining
from fire_lm.training.loop import compiled_for, fresh_state
from fire_lm.training.optimizer import AdamW
from fire_lm.training.step import init_state, train_step

SIZE = ModelSize(2, hidden_size=32, num_heads=4, head_dim=8, mlp_size=64, init_std=0.3)


def draws(resampling, length, number=400):
    """Return the positions that are drawn for `number` sequences of a step."""
    return np.asarray(resampling.training_positions(jax.random.key(0), number, length))


def test_without_resampling_positions_count():
    plain = np.arange(7)[None]
    np.testing.assert_array_equal(Resampling().training_positions(jax.random.key(0), 3, 7), plain)
    np.testing.assert_array_equal(Resampling().evaluation_positions(7), plain)


def test_randomized_positions_are_a_sorted_sample_without_replacement():
    """Each of 0 ... 19 occurs equally often; the means are those of order statistics."""
    drawn = draws(RandomizedPositions(max_length=20), 5, 4000)
    assert drawn.dtype == np.int32 and np.all(np.diff(drawn, axis=1) > 0)
    counts = np.bincount(drawn.ravel(), minlength=20) / 4000
    np.testing.assert_allclose(counts, 5 / 20, atol=0.03)
    assert len(counts) == 20
    np.testing.assert_allclose(drawn.mean(axis=0), np.arange(1, 6) * 21 / 6 - 1, atol=0.2)
    whole = draws(RandomizedPositions(max_length=5), 5, 3)
    np.testing.assert_array_equal(whole, np.arange(5)[None].repeat(3, axis=0))


def test_uniform_positions_are_sorted_real_numbers_that_differ():
    """Their means are those of order statistics; equal positions would see each other."""
    drawn = draws(UniformPositions(20), 5, 4000)
    assert drawn.dtype == np.float32 and np.any(drawn % 1 > 0)
    np.testing.assert_allclose(drawn.mean(axis=0), 19 * np.arange(1, 6) / 6, atol=0.2)
    for length, of in ((2048, 2048), (8192, 131_072)):
        many = draws(UniformPositions(of), length, 3)
        assert np.all(np.diff(many, axis=1) > 0) and 0 <= many.min() < many.max() <= of - 1
    even = UniformPositions(20, "even").evaluation_positions(5)
    np.testing.assert_array_equal(even, RandomizedPositions(20, "even").evaluation_positions(5))


@pytest.mark.parametrize(
    "kind",
    [
        RandomizedPositions,
        pytest.param(ExponentialPositions, marks=pytest.mark.ci),
        pytest.param(functools.partial(BetaPositions, 512), marks=pytest.mark.ci),
        pytest.param(UniformPositions, marks=pytest.mark.ci),
    ],
)
def test_sequences_have_draws_of_their_own_or_share_one(kind):
    """A sequence's draw does not depend on how many there are; older runs shared one draw."""
    key = jax.random.key(1)
    own, fewer = (kind().training_positions(key, number, 6) for number in (4, 3))
    assert len(np.unique(own, axis=0)) == 4
    np.testing.assert_array_equal(own[:3], fewer)
    shared = kind(draw="batch").training_positions(key, 4, 6)
    assert shared.shape == (1, 6) and np.all(np.diff(shared) > 0)
    if kind is RandomizedPositions:
        expected = jnp.sort(jax.random.permutation(key, 8192)[:6])[None]
        np.testing.assert_array_equal(shared, expected)


def test_a_shared_draw_covers_the_longest_row():
    """Otherwise, the last tokens of a longer row would share a position with padding."""
    tokens_B1 = jnp.array([[4], [12], [7]])
    (pos_T,) = RandomizedPositions(64, draw="batch").training_positions(
        jax.random.key(0), 3, 16, tokens_B1
    )
    assert np.all(np.diff(pos_T[:12]) > 0) and np.all(pos_T[12:] == 63)


def test_evaluation_of_randomized_positions():
    plain, even, random = (
        np.asarray(RandomizedPositions(100, mode).evaluation_positions(12))[0]
        for mode in ("plain", "even", "random")
    )
    np.testing.assert_array_equal(plain, np.arange(12))
    np.testing.assert_array_equal(even, np.arange(12) * 9)
    assert np.all(np.diff(random) > 0) and random[-1] < 100 and np.ptp(np.diff(random)) > 0
    by_default = RandomizedPositions(100).evaluation_positions(12)[0]
    np.testing.assert_array_equal(by_default, random)  # as in Ruoss et al., who have no other mode
    for length in (99, 100):
        crowded = np.asarray(RandomizedPositions(100, "even").evaluation_positions(length))[0]
        assert np.all(np.diff(crowded) > 0) and crowded[-1] == 99


@pytest.mark.parametrize(
    "max_length, length", [(32_768, 32_767), (65_536, 65_535), (131_072, 130_940), (8, 1)]
)
def test_no_two_tokens_stand_on_one_even_position(max_length, length):
    """Two tokens on one position would see each other's target. Rounded floats do tie."""
    even = np.asarray(RandomizedPositions(max_length, "even").evaluation_positions(length))[0]
    assert np.all(np.diff(even) > 0) and even[-1] == (max_length - 1 if length > 1 else 0)
    tied = np.round(np.linspace(0, max_length - 1, length, dtype=np.float32))
    assert length == 1 or np.any(np.diff(tied) == 0)


@pytest.mark.ci
@pytest.mark.parametrize(
    "resampling", [RandomizedPositions(50), UniformPositions(50)], ids=["integers", "floats"]
)
def test_no_token_sees_a_later_one(resampling):
    """Changing the last token changes only its logits; two tokens on one position would leak."""
    model = build_decoder(SIZE, FIRE, 32, 8, dtype="float32", resampling=resampling)
    tokens = jnp.arange(1, 9)[None]
    pos = resampling.training_positions(jax.random.key(1), 1, 8)
    params, apply = filled(model), jax.jit(model.apply)

    def changed(pos):
        outs = [apply({"params": params}, t, pos) for t in (tokens, tokens.at[0, -1].set(20))]
        return np.max(np.abs(outs[0] - outs[1]), axis=(0, 2)) > 0

    np.testing.assert_array_equal(changed(pos), np.arange(8) == 7)
    tied = pos.at[0, 6].set(pos[0, 7])
    assert changed(tied)[6]


@pytest.mark.ci
@pytest.mark.parametrize("resampling", [ExponentialPositions(), BetaPositions(512, 2.0)])
def test_equal_mean_positions_extend_as_far_as_the_sequence_on_average(resampling):
    drawn = draws(resampling, 65, 4000)
    extent = drawn[:, -1].astype(np.float64)
    assert drawn.dtype == np.float32 and np.all(np.diff(drawn, axis=1) > 0)
    np.testing.assert_allclose(drawn, np.linspace(0, 1, 65) * extent[:, None], rtol=1e-5)
    # The standard deviations of an exponential and of 512 Beta(2, 2 (512 / 65 - 1)).
    a, b = 2.0, 2.0 * (512 / 65 - 1)
    deviation = {
        ExponentialPositions: 65.0,
        BetaPositions: 512 * np.sqrt(a * b / (a + b) ** 2 / (a + b + 1)),
    }[type(resampling)]
    assert extent.mean() == pytest.approx(65, abs=4 * deviation / np.sqrt(4000))
    assert extent.std() == pytest.approx(deviation, rel=0.1)
    np.testing.assert_array_equal(resampling.evaluation_positions(9), np.arange(9)[None])


@functools.cache
def spied_step(resampling):
    """Return a training step (state, seed) -> state, and the list of positions it has used."""
    seen = []

    class Spy(FIRE):
        def bias(self, params, q_pos_BT, k_pos_BS, context_length):
            jax.debug.callback(lambda pos: seen.append(np.asarray(pos)), q_pos_BT)
            return super().bias(params, q_pos_BT, k_pos_BS, context_length)

    model = build_decoder(SIZE, Spy, 32, 8, dtype="float32", resampling=resampling)
    optimizer = AdamW(warmup_steps=0).build(10)
    shapes = jax.eval_shape(functools.partial(init_state, model, optimizer), jax.random.key(0))
    fixed = {"model": model, "optimizer": optimizer, "z_loss": 0.0, "microbatches": 2}
    batch = {"targets": jnp.ones((4, 8), jnp.int32), "weights": jnp.ones((4, 8), jnp.int8)}
    step = jax.jit(lambda state, seed: train_step(state, batch, seed=seed, **fixed)[0])
    return step, jax.tree.map(jnp.zeros_like, shapes), seen


def positions_of_steps(resampling, seed, steps):
    """Return the positions `[B or 1, T]` of both microbatches in each of the first steps."""
    step, state, seen = spied_step(resampling)
    found = []
    for _ in range(steps):
        seen.clear()
        state = step(state, seed)
        jax.effects_barrier()
        found.append(np.unique(np.concatenate(seen), axis=0))
    return found


@pytest.mark.ci
@pytest.mark.parametrize("draw, rows", [("sequence", 4), ("batch", 1)])
def test_a_step_draws_for_each_sequence_or_once_and_the_next_step_anew(draw, rows):
    """Both microbatches draw by seed and step only, so that a restart repeats the draws."""
    resampling = RandomizedPositions(50, draw=draw)
    first, second = positions_of_steps(resampling, seed=3, steps=2)
    assert first.shape == second.shape == (rows, 8)
    assert np.any(first != second) and np.any(first != np.arange(8))
    np.testing.assert_array_equal(first, positions_of_steps(resampling, 3, 1)[0])
    assert np.any(first != positions_of_steps(resampling, 4, 1)[0])
    rng = jax.random.fold_in(jax.random.key(3), 0)
    expected = np.unique(resampling.training_positions(rng, 4, 8), axis=0)
    np.testing.assert_array_equal(first, expected)


@pytest.mark.ci
def test_runs_that_differ_in_their_seed_share_a_program_and_draw_other_positions(monkeypatch):
    """Otherwise, each seed of a grid would compile the training step again."""
    programs, compiled = [], Pretraining.compile
    monkeypatch.setattr(
        Pretraining, "compile", lambda *args: programs.append(compiled(*args)) or programs[-1]
    )
    plain, mesh = tiny_run(), make_mesh(MeshShape())
    run = dataclasses.replace(plain, model=plain.model.clone(resampling=RandomizedPositions(50)))
    state = fresh_state(run, mesh, with_shardings(run.abstract_state(), mesh))
    targets = np.arange(128, dtype=np.int32).reshape(8, 16)
    batch = put_batch({"targets": targets, "weights": np.ones((8, 16), np.int8)}, mesh)

    def first_loss(seed: int) -> float:
        step = compiled_for([16], dataclasses.replace(run, seed=seed), mesh)
        return float(step(jax.tree.map(jnp.copy, state), batch)[1]["loss"])

    assert first_loss(2**32 - 1) != first_loss(2)
    one, other = (re.findall(r"^ .* = \w.*?(?=, metadata|$)", p.as_text(), re.M) for p in programs)
    assert len(one) > 100 and one == other


def test_files_of_resampling_say_what_they_are_called():
    files = ["configs/runs/quickstart.gin", "configs/positions/fire.gin"]

    def resampling(name):
        config = load_experiment([*files, f"configs/resampling/{name}.gin"], ["DATA_DIR=data"])
        return config.model.resampling

    for name in ("random", "even", "plain"):
        assert resampling(name) == RandomizedPositions(8192, name)
    assert resampling("uniform") == UniformPositions()
    assert resampling("randomized") == RandomizedPositions(8192, "plain", draw="batch")


@pytest.mark.parametrize("kind", [T5, Learned])
@pytest.mark.parametrize(
    "resampling", [ExponentialPositions(), BetaPositions(), UniformPositions()]
)
def test_tables_and_buckets_refuse_positions_between_integers(kind, resampling):
    with pytest.raises(UserError, match=f"between integers, which {kind.__name__} cannot encode"):
        build_decoder(SIZE, kind, 32, 8, resampling=resampling, share_position=True)


def test_a_table_must_hold_all_positions_that_are_drawn():
    with pytest.raises(UserError, match="Learned.max_length"):
        build_decoder(SIZE, Learned, 32, 8, resampling=RandomizedPositions(50), share_position=True)


def test_a_range_shorter_than_the_sequence_is_refused():
    for resampling in (RandomizedPositions(7), BetaPositions(8), UniformPositions(7)):
        with pytest.raises(UserError, match=f"{type(resampling).__name__}.max_length is"):
            build_decoder(SIZE, FIRE, 32, 8, resampling=resampling)
    with pytest.raises(UserError, match="too small for 12 tokens"):
        RandomizedPositions(8, "even").evaluation_positions(12)


def test_a_range_without_enough_real_positions_is_refused():
    """Neighbours that float32 can tell apart would leave a small part of a larger range."""
    last = UniformPositions(2**20).training_positions(jax.random.key(0), 1, 4096)[0, -1]
    assert last > 0.7 * 2**20
    with pytest.raises(UserError, match="UniformPositions.max_length is 1048577: it must be"):
        UniformPositions(2**20 + 1)


@pytest.mark.ci
@pytest.mark.parametrize("draw", ["sequence", "batch"])
@pytest.mark.parametrize(
    "kind", [RandomizedPositions, ExponentialPositions, BetaPositions, UniformPositions]
)
def test_rows_before_their_padding_are_drawn_for_their_own_length(kind, draw):
    """For any width, the tokens have the positions of a row of them only, and padding follows."""
    resampling = kind(draw=draw)
    tokens_B1 = jnp.full((4, 1), 5, jnp.int32)
    key = jax.random.key(2)
    narrow, wide = (
        np.asarray(resampling.training_positions(key, 4, width, tokens_B1)) for width in (5, 9)
    )
    assert wide.shape == (4 if draw == "sequence" else 1, 9) and wide.dtype == narrow.dtype
    np.testing.assert_allclose(wide[:, :5], narrow, rtol=1e-6)
    assert (np.diff(wide[:, :5]) > 0).all() and (wide[:, 5:] > wide[:, 4:5]).all()


@pytest.mark.ci
def test_drawn_rows_of_five_spread_over_all_positions_whatever_their_width():
    """If the padding were drawn as well, the tokens would be in the first half of the positions."""
    tokens_B1 = jnp.full((500, 1), 5, jnp.int32)
    drawn = RandomizedPositions(100).training_positions(jax.random.key(0), 500, 10, tokens_B1)
    means = np.asarray(drawn)[:, :5].mean(axis=0)
    np.testing.assert_allclose(means, 100 * np.arange(1, 6) / 6, atol=3)
    mean = ExponentialPositions().training_positions(jax.random.key(0), 500, 10, tokens_B1)[:, 4]
    assert abs(float(mean.mean()) - 5) < 1


def test_a_row_that_takes_all_positions_leaves_none_for_padding():
    RandomizedPositions(11).training_positions(jax.random.key(0), 2, 10, jnp.full((2, 1), 3))
    with pytest.raises(UserError, match="too small for 11 tokens"):
        RandomizedPositions(10).training_positions(jax.random.key(0), 2, 10, jnp.full((2, 1), 3))
