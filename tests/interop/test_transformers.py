"""Exported folders opened by transformers: every encoding computes what our decoder computes.

Where torch and transformers are installed, which is in no tier's environment. Apart from tests that
load TensorFlow: a process that has done so cannot load triton, which comes with torch.
"""

import functools
from typing import Any

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gin_files import NAMES
from safetensors.numpy import load_file
from sample_decoders import configured, filled
from test_export import CONTEXT, FIXED, exported
from test_import import GOLDEN, gpt2_folder, our_logits
from test_import import IDS as GPT2_IDS

from fire_lm.generation import generate

TOKENS = np.random.default_rng(1).integers(1, 32, (2, 24)).astype(np.int32)


@functools.cache
def reference(case: tuple[str, ...]) -> Any:
    """Logits of full passes, and greedy continuations of two prompts of 9 and 5 tokens."""
    model = configured(*case)
    params = filled(model)
    padded = jnp.pad(jnp.asarray(TOKENS), ((0, 0), (0, CONTEXT - TOKENS.shape[1])))
    logits = jax.jit(model.apply)({"params": params}, padded, jnp.arange(CONTEXT)[None])
    prompts = np.where(np.arange(9)[None] < [[9], [5]], TOKENS[:, :9], 0)
    prompts[:, 0] = 0
    found = generate(
        *(model, params, prompts, np.array([9, 5])), new_tokens=12, context_length=CONTEXT
    )
    return np.asarray(logits)[:, : TOKENS.shape[1]], prompts, found


CASES = [
    *((name,) for name in NAMES),
    *((name, binding) for name, binding in FIXED.items()),
    ("fire", "log_n/inference_both"),
    ("rope", "log_n/training"),
]


@pytest.mark.ci
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_transformers_computes_the_same(case, tmp_path):
    """Logits of a full pass; greedy decoding of prompts padded on the left, with dynamic and
    static caches, and its log-probabilities; saved and loaded again."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    exported(tmp_path / "model", *case)
    expected, prompts, found = reference(case)
    opened = functools.partial(
        transformers.AutoModelForCausalLM.from_pretrained, trust_remote_code=True
    )
    model = opened(str(tmp_path / "model")).eval()
    with torch.no_grad():
        logits = model(torch.tensor(TOKENS, dtype=torch.long)).logits.numpy()
    assert np.max(np.abs(logits - expected)) < 1e-5 * np.std(expected)

    ids = torch.zeros(2, 9, dtype=torch.long)
    for row, length in enumerate((9, 5)):
        ids[row, 9 - length :] = torch.tensor(prompts[row, :length])
    mask = torch.tensor([[1] * 9, [0] * 4 + [1] * 5])
    for caches in ({}, {"cache_implementation": "static"}):
        out = model.generate(
            *(ids,),
            attention_mask=mask,
            max_new_tokens=12,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
            **caches,
        )
        tokens = out.sequences[:, 9:].numpy()
        np.testing.assert_array_equal(tokens, found.tokens_BKT[:, 0])
        logprobs = torch.stack(out.logits, 1).log_softmax(-1).numpy()
        chosen = np.take_along_axis(logprobs, tokens[..., None], axis=2)[..., 0]
        np.testing.assert_allclose(chosen, found.logprobs_BKT[:, 0], atol=1e-5)

    model.save_pretrained(tmp_path / "again")
    before, after = (
        load_file(tmp_path / name / "model.safetensors") for name in ("model", "again")
    )
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.ci
def test_gpt2_beside_transformers(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder = gpt2_folder(tmp_path / "folder")
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    with torch.no_grad():
        theirs = model(torch.tensor(GPT2_IDS)).logits.numpy()
    np.testing.assert_allclose(our_logits(folder), theirs, atol=1e-5)
    numbers = np.round(theirs.astype(float), 6).tolist()
    kept = golden_numbers.updated(GOLDEN, numbers, "torch", "transformers")
    np.testing.assert_allclose(kept, theirs, atol=1e-5)
