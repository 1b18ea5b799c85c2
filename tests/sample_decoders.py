"""Small decoders of every configuration in configs/positions, with parameters that matter."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gin_files import CONFIGS

from fire_lm.config.bindings import Scoped
from fire_lm.experiment import load_config
from fire_lm.models import Decoder, ModelSize

SIZE = ModelSize(4, hidden_size=48, num_heads=6, head_dim=8, mlp_size=48, init_std=0.3)
TRAINED = 16


@functools.cache
def configured(name: str, *more: str, dtype: str = "float32") -> Decoder:
    """Return the decoder of configs/positions/NAME.gin, small; `more` are files or bindings."""
    files = ["runs/quickstart", f"positions/{name}", *(f for f in more if "=" not in f)]
    bindings = ["Learned.max_length = 64"] if name == "learned" else []
    bindings += [b for b in more if "=" in b]
    config = load_config([str(CONFIGS / f"{file}.gin") for file in files], bindings)
    changed: dict[str, Any] = {"size": SIZE, "vocab_size": 32, "train_length": TRAINED}
    return config.call_scoped(Scoped((), "build_decoder"), **changed, dtype=dtype)


def filled(model: Decoder) -> Any:
    """Return parameters of a size at which every hook has an effect."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.float32(rng.normal(0, 0.3, leaf.shape)), shapes)
