"""T5's bias against its formula in numpy, and its buckets against those of transformers."""

import math
from collections.abc import Sequence

import golden_numbers as golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.errors import UserError
from fire_lm.positions.t5 import T5, _looked_up, _multiplied, bucket_starts

HEADS = 12
SIZES = [(64, 128), (32, 128), (16, 20), (2, 2), (8, 1000)]
# First query and number of queries; keys are some of those before the last query.
BLOCKS = [(0, 1), (0, 2), (0, 17), (0, 512), (8192, 64), (131_072, 64)]


def bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    """Return the bucket of a distance by the formula, with its logarithms."""
    exact = num_buckets // 2
    if distance < exact:
        return distance
    ratio = math.log(distance / exact) / math.log(max_distance / exact)
    return min(num_buckets - 1, exact + int(ratio * (num_buckets - exact)))


def t5(num_buckets: int = 64, max_distance: int = 128) -> T5:
    return T5(HEADS, 8, 64, 96, num_buckets, max_distance)


def block(first: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    q_pos = first + np.arange(length)
    far = np.linspace(0, first, 50).astype(int)
    return q_pos, np.unique(np.concatenate([far, q_pos, np.maximum(q_pos - 130, 0)]))


def transformers_buckets(num_buckets: int, max_distance: int) -> list[int]:
    """Return transformers' buckets of the distances up to three times `max_distance`."""
    import torch
    from transformers.models.t5 import modeling_t5 as modeling

    numbers = modeling.T5Attention._relative_position_bucket(
        -torch.arange(3 * max_distance)[None],
        bidirectional=False,
        num_buckets=num_buckets,
        max_distance=max_distance,
    )
    return numbers[0].tolist()


def first_of_each(numbers: Sequence[int]) -> dict[str, int]:
    """Return the smallest distance of each bucket that has any."""
    return {str(number): list(numbers).index(number) for number in sorted(set(numbers))}


@pytest.mark.parametrize("num_buckets, max_distance", SIZES)
def test_buckets_are_the_formula_and_those_of_transformers(num_buckets, max_distance):
    """The stored first distances determine all, because buckets only grow with the distance."""
    kept = golden.of("transformers_t5.json")[f"{num_buckets} buckets to {max_distance}"]
    distance, starts = np.arange(3 * max_distance), bucket_starts(num_buckets, max_distance)
    ours = np.sum(distance[:, None] >= starts, axis=1)
    np.testing.assert_array_equal(ours, [bucket(d, num_buckets, max_distance) for d in distance])
    assert starts.shape == (num_buckets - 1,) and np.all(np.diff(starts) >= 0)
    assert np.all(np.diff(ours) >= 0) and first_of_each(ours.tolist()) == kept


@pytest.mark.interop("torch", "transformers")
def test_transformers_still_has_these_buckets():
    """UPDATE_GOLDEN=1, with torch and transformers installed, writes what the test above reads."""
    found = {}
    for num_buckets, max_distance in SIZES:
        numbers = transformers_buckets(num_buckets, max_distance)
        assert numbers == sorted(numbers)
        found[f"{num_buckets} buckets to {max_distance}"] = first_of_each(numbers)
    assert golden.updated("transformers_t5.json", found, "torch", "transformers") == found


@pytest.mark.parametrize("first, length", BLOCKS)
def test_values_are_the_tables(first, length):
    """They agree to the last bit: the product with 0s and 1s selects a number without rounding."""
    q_pos, k_pos = block(first, length)
    params = t5().init(jax.random.key(0))
    ours = t5().bias(params, jnp.asarray(q_pos)[None], jnp.asarray(k_pos)[None], 64)[0]
    distance = q_pos[:, None] - k_pos
    numbers = np.vectorize(lambda d: bucket(abs(d), 64, 128))(distance)
    expected = np.moveaxis(np.asarray(params["table"])[numbers], -1, 0)
    np.testing.assert_array_equal(ours, expected)
    if length > 1:
        assert np.any(ours != np.roll(expected, 1, axis=-1))


@pytest.mark.parametrize("branch", [_looked_up, _multiplied])
@pytest.mark.parametrize(
    "num_buckets, max_distance",
    [size if size in SIZES[:2] else pytest.param(*size, marks=pytest.mark.ci) for size in SIZES],
)
def test_both_branches_at_every_edge_of_a_bucket(num_buckets, max_distance, branch):
    """`bias` runs only one of them here; the other is for TPUs and GPUs."""
    starts = bucket_starts(num_buckets, max_distance)
    far = [3 * max_distance, 2**30]
    distance = np.unique(np.concatenate([[0], starts - 1, starts, starts + 1, far])).astype(int)
    numbers = [bucket(d, num_buckets, max_distance) for d in distance]
    table, weights = np.random.default_rng(0).normal(size=(2, num_buckets + len(distance), HEADS))
    table, weights = np.float32(table[:num_buckets]), np.float32(weights[: len(distance)])

    def values(table):
        return branch(table, jnp.int32(distance)[None, None], starts_K=starts)[0, :, 0].T

    np.testing.assert_array_equal(values(table), table[numbers])
    gradient = jax.grad(lambda table: jnp.sum(values(table) * weights))(jnp.asarray(table))
    expected = np.zeros((num_buckets, HEADS))
    np.add.at(expected, numbers, weights)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("platform, gathers", [("cpu", True), ("tpu", False), ("cuda", False)])
def test_each_platform_gets_its_branch(platform, gathers):
    """A gather is fast on CPUs only; the program is lowered, not compiled."""
    pos, params = jnp.arange(9)[None], t5().init(jax.random.key(0))
    traced = jax.jit(lambda params: t5().bias(params, pos, pos, 64)).trace(params)
    program = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("gather" in program, "dot_general" in program) == (gathers, not gathers)


def test_table_starts_as_in_t5x():
    """The table is uniform with variance 2 / (buckets + heads)."""
    tables = np.stack([t5().init(jax.random.key(seed))["table"] for seed in range(16)])
    assert tables.shape == (16, 64, HEADS) and tables.dtype == np.float32
    assert np.var(tables) == pytest.approx(2 / (64 + HEADS), rel=0.03)
    assert np.max(np.abs(tables)) == pytest.approx((6 / (64 + HEADS)) ** 0.5, rel=0.01)
    assert abs(np.mean(tables)) < 0.01


def test_mistakes_are_told():
    for wrong in (0, 1, 33):
        with pytest.raises(UserError, match=r"T5\.num_buckets"):
            t5(num_buckets=wrong)
    with pytest.raises(UserError, match=r"T5\.max_distance"):
        t5(64, 32)
    params = t5(64, 33).init(jax.random.key(0))
    fractions = jnp.linspace(0, 1, 3)[None]
    with pytest.raises(UserError, match="integer"):
        t5().bias(params, fractions, fractions, 64)
