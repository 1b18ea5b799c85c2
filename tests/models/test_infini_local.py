"""Local attention of Infini-attention: with the TPU kernel, interpreted on a CPU, and in chunks."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_attention import LENGTH, assert_close, documents

from fire_lm.attention import Implementation
from fire_lm.models import InfiniAttention, Layers, ModelSize, build_decoder
from fire_lm.models.positions_of_layers import runs_in_kernel
from fire_lm.models.segments import segment_positions
from fire_lm.positions.fire import FIRE
from fire_lm.positions.rope import RoPE

build = functools.partial(build_decoder, dtype="float32")
SIZE = ModelSize(1, hidden_size=16, num_heads=2, head_dim=64, mlp_size=8, init_std=0.3)
FIRE_G = functools.partial(FIRE, init_L=60.0, init_gamma=0.7, hidden_layers=1)


def measured(encoding: Any, mixer: InfiniAttention, attention: Implementation, segment: Any) -> Any:
    """Return a model's logits, and gradients of their weighted sum to all parameters."""
    model = build(SIZE, encoding, 32, LENGTH, attention=attention, mixer=mixer)
    assert runs_in_kernel(model, model.turns[0], LENGTH) == (
        attention == "tpu" and encoding != RoPE
    )
    token = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), token, token)["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: jnp.float32(rng.normal(0, 0.3, x.shape)), shapes)
    params["layers"] |= jax.tree.map(
        lambda x: x[None], {"position": model.encodings[0].init(jax.random.key(1))}
    )
    tokens = jnp.asarray(rng.integers(1, 32, (2, LENGTH)), jnp.int32)
    weights = jnp.float32(rng.normal(0, 1, (2, LENGTH, 32)))
    pos = jnp.arange(LENGTH)[None]
    pos = pos if segment is None else segment_positions(pos, segment)

    def loss(params: Any) -> tuple[jax.Array, Any]:
        logits = model.apply({"params": params}, tokens, pos, segment)
        return jnp.sum(weights * logits), logits

    return jax.jit(jax.grad(loss, has_aux=True))(params)


@pytest.mark.parametrize(
    "encoding, mixer, packed",
    [
        pytest.param(FIRE_G, InfiniAttention(128), False, marks=pytest.mark.ci),
        pytest.param(FIRE_G, InfiniAttention(70, "delta"), True, marks=pytest.mark.slow),
        pytest.param(RoPE, InfiniAttention(100), True, marks=pytest.mark.ci),
    ],
)
def test_the_kernel_computes_attention_within_segments(encoding, mixer, packed):
    """Logits agree to 1e-5 of the largest and gradients to 1e-4, as for plain attention."""
    segment = documents() if packed else None
    ours, out = measured(encoding, mixer, "tpu", segment)
    wanted, oracle = measured(encoding, mixer, "dense", segment)
    assert_close(out, oracle, 1e-5)
    assert_close(ours, wanted, 1e-4)


@pytest.mark.ci
def test_local_attention_is_attention_in_chunks_at_the_positions_of_the_row():
    """Unlike ALiBi's, FIRE's bias depends on where a segment is in the row."""
    tokens = jnp.asarray(np.random.default_rng(1).integers(1, 32, (2, 60)), jnp.int32)
    fire = functools.partial(FIRE, init_L=10.0)  # the threshold is within the row
    infini = build(SIZE, fire, 32, LENGTH, mixer=InfiniAttention(25))
    chunks = build(SIZE, Layers(fire, chunk=25), 32, LENGTH)
    params = infini.init(jax.random.key(0), tokens, jnp.arange(60)[None])["params"]
    params["layers"] |= {"mixer_gate": jnp.full((1, 2), -jnp.inf)}
    plain = {name: x for name, x in params["layers"].items() if name != "mixer_gate"}

    def logits(model: Any, layers: Any, start: int) -> np.ndarray:
        apply = jax.jit(model.apply)
        pos = jnp.arange(60 - start)[None]
        return np.asarray(apply({"params": params | {"layers": layers}}, tokens[:, start:], pos))

    expected = logits(chunks, plain, 0)
    np.testing.assert_allclose(logits(infini, params["layers"], 0), expected, atol=1e-5)
    assert np.abs(logits(chunks, plain, 25)[:, 1:25] - expected[:, 26:50]).max() > 1e-3
