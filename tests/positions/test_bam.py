"""BAM against its formula in float64, also with a negative shape, and its start at ALiBi."""

import functools

import jax
import jax.numpy as jnp
import layer_logits as reference
import numpy as np

from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.bam import BAM

OWN = reference.build(BAM)


def logits(params):
    scale, shape = (np.asarray(params[name])[:, None, None] for name in ("scale", "shape"))
    power = (np.abs(reference.distances())[None] + 1e-5) ** shape
    return reference.products() - np.exp(scale) * power


def test_the_bias_is_a_power_of_the_distance():
    params = {**reference.drawn(OWN), "shape": jnp.float32([0.4, 1.0, 1.7, -0.3])}
    reference.check(reference.logits(OWN, params), logits(params))
    reference.check_gradients(functools.partial(reference.logits, OWN), logits, params)


def test_it_starts_as_alibi():
    params, alibi = OWN.init(jax.random.key(0)), reference.build(ALiBi)
    found, expected = (reference.logits(*pair) for pair in ((OWN, params), (alibi, {})))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert list(OWN.learned_scalars(params)) == ["shape_0", "shape_1", "shape_2", "shape_3"]
