"""FIRE with a limit on its normaliser, against the numpy reference, far beyond the limit."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fire_reference import (
    CAUSAL,
    FROZEN,
    HEADS,
    KEYS,
    QUERIES,
    bias,
    equation_4,
    init,
    named,
    numpy_gradient,
    variant,
)

from fire_lm.errors import UserError
from fire_lm.positions.fire import FIRE

CASES = pytest.mark.parametrize("case", FROZEN.values(), ids=FROZEN)
WEIGHTS = np.random.default_rng(0).uniform(1, 2, (HEADS, *CAUSAL.shape)) * CAUSAL
POSITIONS = (jnp.asarray(QUERIES)[None], jnp.asarray(KEYS)[None])


def by_mlp(fire: FIRE, params: Any) -> jax.Array:
    """Return the bias as FIRE computes it if the MLP has too many kinks for hinges."""
    prepared = fire.prepare(params)
    many = {"kinks": jnp.int32(10**6)} if "kinks" in prepared else {}
    return fire.bias({**prepared, **many}, *POSITIONS, 201)[0]


def by_tables(fire: FIRE, params: Any) -> jax.Array | None:
    tables = fire.common_bias(params, 201, 201)
    return None if tables is None else tables(*POSITIONS)[0]


@CASES
def test_values_are_the_references(case):
    """By hinges, by the MLP and by the tables, also at distances of up to three times the limit."""
    params = init(case.fire)
    wanted = equation_4(named(params), case)[:, CAUSAL]
    for form in (bias, by_mlp, by_tables):
        ours = form(case.fire, params)
        if ours is not None:
            np.testing.assert_allclose(
                np.asarray(ours)[:, CAUSAL], wanted, rtol=0, atol=3e-6, err_msg=form.__name__
            )
    unfrozen = equation_4(named(params), case._replace(limit=None))[:, CAUSAL]
    assert np.max(np.abs(wanted - unfrozen)) > 1e-3


@pytest.mark.ci
@CASES
def test_gradients_are_the_references(case):
    params = init(case.fire, c=0.13, L_multiplier=1.03)
    wanted = numpy_gradient(named(params), case, WEIGHTS)
    for form in (bias, by_mlp, by_tables):
        if form(case.fire, params) is None:
            continue

        def total(params: Any, form: Any = form) -> jax.Array:
            return jnp.sum(form(case.fire, params) * jnp.float32(WEIGHTS))

        ours = named(jax.jit(jax.grad(total))(params))
        assert ours.keys() == wanted.keys()
        for name, expected in wanted.items():
            scale = np.max(np.abs(expected))
            assert scale > 0, name
            np.testing.assert_allclose(
                ours[name], expected, atol=1e-4 * max(scale, 0.1), err_msg=f"{form.__name__} {name}"
            )


@CASES
def test_nothing_changes_up_to_the_limit_to_the_bit(case):
    params = init(case.fire)
    plain = dataclasses.replace(case.fire, normalizer_limit=None)
    near = (QUERIES < case.limit)[:, None] & CAUSAL
    # XLA fuses the multiplication and the addition of an affine MLP or not, as it likes.
    for form in (bias, by_mlp) if case.hidden_layers else (bias,):
        ours, paper = (np.asarray(form(fire, params)) for fire in (case.fire, plain))
        np.testing.assert_array_equal(ours[:, near], paper[:, near])


def test_a_limit_that_is_no_length_is_refused():
    for limit in (0, -1.0, 0.5, float("nan"), float("inf"), "train"):
        with pytest.raises(UserError, match=f"FIRE.normalizer_limit is {limit}: it must be"):
            variant(normalizer_limit=limit)
    with pytest.raises(UserError, match="normalizer_limit is 1: without a threshold, it must be"):
        variant(normalizer_limit=1, threshold=False)
    with pytest.raises(UserError, match="FIRE.init_L is 'train': it must be a number"):
        variant(init_L="train")


INVARIANT = {
    "L at T, limit at T": (True, {"learn_L": False, "init_L": 64.0, "normalizer_limit": 64}),
    "limit just above L": (False, {"learn_L": False, "init_L": 64.0, "normalizer_limit": 65.5}),
    "L is learned": (False, {"init_L": 64.0, "normalizer_limit": 64}),
    "no limit": (False, {"learn_L": False, "init_L": 64.0}),
    "limit at L": (True, {"normalizer_limit": 1}),
    "counted from 1": (True, {"normalizer_limit": 1, "query_index_offset": 1}),
    "no threshold": (False, {"threshold": False, "normalizer_limit": 8}),
    "always psi(1)": (True, {"threshold": False, "normalizer_limit": 1, "query_index_offset": 1}),
}


@pytest.mark.parametrize("invariant, settings", INVARIANT.values(), ids=INVARIANT)
def test_which_settings_make_it_a_function_of_the_distance(invariant, settings):
    """Declared exactly where all queries of any parameters have the same bias at a distance."""
    fire = variant(**settings)
    params = init(fire, L_multiplier=0.01)
    q_pos = jnp.array([[3, 70, 900]])
    at_distance_2 = np.asarray(fire.bias(params, q_pos, q_pos - 2, 1000))[0].diagonal(0, 1, 2)
    assert fire.translation_invariant == invariant
    assert np.array_equal(at_distance_2, at_distance_2[:, :1].repeat(3, axis=1)) == invariant


def test_fire_t_is_a_slab_for_each_head_whatever_f_is():
    """The kernel then needs no kinks, so a GeLU, too, can be used."""
    for activation in ("relu", "gelu"):
        fire = dataclasses.replace(FROZEN["fire_t"].fire, activation=activation)
        tables = fire.common_bias(init(fire), 201, 201)
        assert tables is not None and tables.slab_MP.shape == (HEADS, 201)
        assert tables.kink_K.size == 0 and fire.explain_nan({"fire_dense": 1.0}) is None
    assert variant(activation="gelu").common_bias(init(variant()), 201, 201) is None


def test_names_of_lengths_are_resolved():
    """Both spellings are the same encoding, so a sweep evaluates it once."""
    fire = variant(init_L="train_length", normalizer_limit="train_length")
    assert (fire.init_L, fire.normalizer_limit) == (64, 64)
    assert fire == variant(init_L=64.0, normalizer_limit=64.0)
    assert variant().normalizer_limit is None and variant().init_L == 16.0
