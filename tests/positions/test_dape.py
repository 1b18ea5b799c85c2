"""DAPE against its formula in float64, pair by pair, and where it cannot run."""

import functools

import jax
import jax.numpy as jnp
import layer_logits as reference
import numpy as np
import pytest

from fire_lm.attention import Layout, Terms, Tokens, attend
from fire_lm.errors import UserError
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.dape import DAPE
from fire_lm.positions.fox import FoX
from fire_lm.positions.together import Together

ALONE = reference.build(DAPE)
ON_ALIBI = reference.build(Together, first=ALiBi, second=DAPE)


def pair_by_pair(params, bias=0.0):
    """Return the logits, from the MLP of each query and key."""
    exact = {name: np.asarray(value, np.float64) for name, value in params.items()}
    products = reference.products()
    bias = bias + np.zeros(products.shape)
    logits = products + bias
    for i, j in np.ndindex(products.shape[1:]):
        both = [*products[:, i, j], *bias[:, i, j]]
        hidden = exact["W1"].T @ both + exact["b1"]
        hidden = np.where(hidden > 0, hidden, 0.01 * hidden)
        logits[:, i, j] += exact["W2"].T @ hidden + exact["b2"]
    return logits


def alibi():
    pos = jnp.arange(reference.LENGTH)[None]
    return np.asarray(reference.build(ALiBi).bias({}, pos, pos, reference.LENGTH), np.float64)[0]


def test_logits_are_corrected_by_the_mlp_of_all_heads():
    params = reference.drawn(ON_ALIBI)
    own = params["second"]
    reference.check(reference.logits(ON_ALIBI, params), pair_by_pair(own, alibi()))
    reference.check(reference.logits(ALONE, own), pair_by_pair(own))
    with pytest.raises(AssertionError):  # the order of q·k and the bias matters
        own["W1"] = jnp.roll(own["W1"], reference.HEADS, axis=0)
        reference.check(reference.logits(ON_ALIBI, params), pair_by_pair(reference.drawn(ALONE)))


@pytest.mark.ci
def test_gradients():
    ours = functools.partial(reference.logits, ALONE)
    reference.check_gradients(ours, pair_by_pair, reference.drawn(ALONE))


def test_forget_gates_are_added_to_the_corrected_logits():
    inner = functools.partial(Together, first=ALiBi, second=DAPE)
    gated = reference.build(Together, first=FoX, second=inner)
    params = reference.drawn(gated)
    gates = reference.logits(gated.first, params["first"]) - reference.products()
    expected = pair_by_pair(params["second"]["second"], alibi()) + gates
    reference.check(reference.logits(gated, params), expected)


def test_size_and_start():
    dape = DAPE(num_heads=12, head_dim=64, train_length=64, hidden_size=768)
    params = dape.init(jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 1_196
    for layer, inputs in (("1", 24), ("2", 32)):
        for name in "Wb":
            largest = np.max(np.abs(params[name + layer]))
            assert 0.6 / np.sqrt(inputs) < largest < 1 / np.sqrt(inputs)
    with pytest.raises(UserError, match="DAPE.hidden is 0"):
        reference.build(DAPE, hidden=0)


def test_the_kernel_refuses_it_with_the_reason():
    q, pos = jnp.ones((1, 128, reference.HEADS, 64)), jnp.arange(128)[None]
    terms = Terms(mix=functools.partial(ALONE.mix, ALONE.init(jax.random.key(0))))
    layout = Layout(in_order=True, consecutive=True, implementation="tpu")
    with pytest.raises(UserError, match="cannot mix the logits of heads: choose 'auto'"):
        attend(q, q, q, Tokens(pos), Tokens(pos), terms, layout=layout)
