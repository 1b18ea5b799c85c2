"""The embedding on meshes of four devices: as on one, with one exchange of its gradient."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fire_lm.models import tied_embedding
from fire_lm.models.layouts import slices_of
from fire_lm.models.tied_embedding import copies_of_table, logits_of, look_up
from fire_lm.preflight.hlo import Program
from fire_lm.sharding import MeshShape, make_mesh, of_activations, of_rows

VOCAB, WIDTH, BATCH_SIZE, LENGTH = 16, 8, 8, 6
MESHES = [(2, 2, 1), (1, 2, 2), (4, 1, 1), (1, 4, 1), (1, 2, 1, 2)]  # the last splits rows


def given(vocab: int = VOCAB) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, vocab, (BATCH_SIZE, LENGTH))
    weights = rng.normal(size=(BATCH_SIZE, LENGTH, vocab))
    table = rng.normal(size=(vocab, WIDTH))
    return jnp.float32(table), jnp.int32(tokens), jnp.float32(weights)


def loss(layout: Any, table: jax.Array, tokens: jax.Array, weights: jax.Array) -> jax.Array:
    copies = copies_of_table(layout, tokens.shape, jnp.float32, table)
    x = jnp.tanh(look_up(layout, copies, tokens))
    return jnp.sum(logits_of(copies, x, slices_of(layout, LENGTH)) * weights)


def compiled(axes: tuple[int, ...], vocab: int = VOCAB) -> tuple[Any, Any]:
    """Value and gradient on a mesh, and what they are given there."""
    mesh = make_mesh(MeshShape(*axes))
    layout, rows = of_activations(mesh), of_rows(mesh, LENGTH).spec
    specs = (PartitionSpec("tensor", "fsdp"), rows, rows)
    placed = [
        jax.device_put(x, NamedSharding(mesh, spec))
        for x, spec in zip(given(vocab), specs, strict=True)
    ]
    function = jax.value_and_grad(lambda *inputs: loss(layout, *inputs))
    jitted = jax.jit(function, out_shardings=(None, placed[0].sharding))
    return jitted.lower(*placed).compile(), placed


def summed(program: Any) -> float:
    """Bytes that are summed over the mesh, in tables."""
    found = Program(program.as_text()).collectives()
    kinds = ("all-reduce", "reduce-scatter")
    sums = [each.bytes for each in found if each.kind in kinds and len(each.group) > 1]
    return sum(sums) / (VOCAB * WIDTH * 4)


on_one_device = jax.jit(jax.value_and_grad(functools.partial(loss, None)))


@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_as_on_one_device(axes):
    """Also with rows that fsdp cannot split."""
    for vocab in (VOCAB, VOCAB - 2):
        program, placed = compiled(axes, vocab)
        value, gradient = program(*placed)
        wanted, oracle = on_one_device(*given(vocab))
        np.testing.assert_allclose(value, wanted, rtol=1e-5)
        np.testing.assert_allclose(gradient, oracle, rtol=1e-5, atol=1e-5)


def test_the_gradient_is_summed_once(monkeypatch):
    """The table, then its part on a device; two tables where both uses share one copy."""
    assert summed(compiled((2, 2, 1))[0]) < 1.6
    monkeypatch.setattr(tied_embedding, "_ways", lambda layout, batch: 1)
    assert summed(compiled((2, 2, 1))[0]) >= 2
