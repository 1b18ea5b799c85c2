"""Small decoders of every configuration in configs/positions, with parameters that matter."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gin_files import CONFIGS, layers

from fire_lm.experiment import load_experiment
from fire_lm.generation import Beam, generate
from fire_lm.generation.cache import prefill, read_token
from fire_lm.models import Decoder, ModelSize
from fire_lm.sharding import path_name

SIZE = ModelSize(4, hidden_size=48, num_heads=6, head_dim=8, mlp_size=48, init_std=0.3)
TRAINED = 16

PROMPT, NEW = 14, 10  # the prefill width exceeds the prompts
LENGTHS = np.array([12, 5, 9], np.int32)
TOKENS = np.random.default_rng(0).integers(1, 32, (3, PROMPT + NEW)).astype(np.int32)


@functools.cache
def configured(name: str, *more: str, dtype: str = "float32") -> Decoder:
    """Return the decoder of configs/positions/NAME.gin, small; `more` are files or bindings."""
    files = ["runs/quickstart", f"positions/{name}", *(f for f in more if "=" not in f)]
    bindings = ["Learned.max_length = 64"] if name == "learned" else []
    bindings += [b for b in more if "=" in b]
    config = load_experiment([str(CONFIGS / f"{file}.gin") for file in files], bindings)
    size = dataclasses.replace(SIZE, num_layers=layers(name))
    changed: dict[str, Any] = {"size": size, "vocab_size": 32, "train_length": TRAINED}
    return config.model_with(**changed, dtype=dtype)


def shapes_of(model: Decoder) -> Any:
    """Return the abstract parameters of a model."""
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(model.init, jax.random.key(0), token, token)["params"]


def filled(model: Decoder, std: float = 0.3, seed: int = 0) -> Any:
    """Return parameters of a size at which every hook has an effect."""
    rng = np.random.default_rng(seed)
    draw = lambda leaf: jnp.float32(rng.normal(0, std, leaf.shape))  # noqa: E731
    return jax.tree.map(draw, shapes_of(model))


def by_path(tree: Any) -> dict[str, Any]:
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def deviation(model: Decoder, lengths: np.ndarray = LENGTHS, cached: int | None = None) -> float:
    """Return teacher-forced decoding's largest error, in standard deviations of the full logits.

    `cached` is the context length used in decoding; by default, that of the full pass.
    """
    params, context = filled(model), int(lengths.max()) + NEW
    pos_C = model.resampling.evaluation_positions(context)
    padded = jnp.pad(pos_C[0], (0, PROMPT + NEW - context), mode="edge")
    told = context if cached is None else cached

    @jax.jit
    def decoded(params: Any) -> jax.Array:
        prompts = jnp.where(np.arange(PROMPT)[None] < lengths[:, None], TOKENS[:, :PROMPT], 0)
        first_BV, cache = prefill(
            *(model, params, prompts, jnp.asarray(lengths), padded, NEW),
            continuations=1,
            context_length=told,
        )

        def one(cache: Any, index: jax.Array) -> Any:
            token_BK = jnp.take_along_axis(jnp.asarray(TOKENS), lengths[:, None] + index, axis=1)
            logits_BKV, cache = read_token(
                model, params, cache, token_BK, index, jnp.asarray(lengths), padded, told
            )
            return cache, logits_BKV[:, 0]

        _, rest_TBV = jax.lax.scan(one, cache, jnp.arange(NEW - 1))
        return jnp.concatenate([first_BV[:, None], jnp.swapaxes(rest_TBV, 0, 1)], axis=1)

    whole = jax.jit(model.apply)({"params": params}, jnp.asarray(TOKENS[:, :context]), pos_C)
    rows = np.asarray(lengths)[:, None] - 1 + np.arange(NEW)[None]
    expected = np.take_along_axis(np.asarray(whole), rows[..., None], axis=1)
    return float(np.max(np.abs(decoded(params) - expected)) / np.std(expected))


def logprobs(model: Decoder, params: Any, continuations_BT: np.ndarray) -> np.ndarray:
    """Return the log-probability of each token that follows the prompts, in one full pass."""
    whole = np.zeros((len(LENGTHS), PROMPT + NEW), np.int32)
    for row, (prompt, length) in enumerate(zip(TOKENS, LENGTHS, strict=True)):
        whole[row, : length + NEW] = [*prompt[:length], *continuations_BT[row]]
    pos = jnp.arange(PROMPT + NEW)[None]
    logits = jax.jit(model.apply)({"params": params}, jnp.asarray(whole), pos)
    logprobs_BTV = np.asarray(jax.nn.log_softmax(jnp.asarray(logits)))
    places = LENGTHS[:, None] - 1 + np.arange(NEW)[None]
    return logprobs_BTV[np.arange(len(LENGTHS))[:, None], places, continuations_BT]


def deviation_of_beams(model: Decoder) -> float:
    """Return the largest error of the best hypotheses' log-probabilities, against one full pass."""
    params = filled(model)
    found = generate(model, params, TOKENS[:, :PROMPT], LENGTHS, new_tokens=NEW, method=Beam(3))
    expected = logprobs(model, params, found.tokens_BKT[:, 0])
    return float(np.max(np.abs(found.logprobs_BKT[:, 0] - expected)))
