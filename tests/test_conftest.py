"""The strict settings are on: without them, each broken input here would pass."""

import warnings

import jax
import jax.numpy as jnp
import pytest


def test_four_fake_cpu_devices():
    assert [d.platform for d in jax.devices()] == ["cpu"] * 4


def test_dtypes_are_not_promoted():
    with pytest.raises(ValueError, match="implicit dtype promotion"):
        jnp.ones(2, jnp.float32) + jnp.ones(2, jnp.bfloat16)


def test_ranks_are_not_promoted():
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones((2, 2)) + jnp.ones(2)


def test_warnings_are_errors():
    with pytest.raises(DeprecationWarning):
        warnings.warn("old", DeprecationWarning, stacklevel=1)
