"""Exported folders opened by transformers: every encoding computes what our decoder computes.

No test here loads TensorFlow, because a process that has done so cannot load triton, which comes
with the CUDA build of torch.
"""

import functools
from typing import Any

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gin_files import CLASSES
from safetensors.numpy import load_file
from sample_decoders import configured, filled
from test_export import CONTEXT, DATA, ENCODER, EXPORTABLE, FIXED, exported
from test_import import GOLDEN, gpt2_folder, our_logits
from test_import import IDS as GPT2_IDS

from fire_lm.data.hub_vocabulary import EXPORTED
from fire_lm.generation import generate
from fire_lm.interop.export import export
from fire_lm.interop.own_exports import read_own
from fire_lm.interop.weights import Weights, read_config

pytestmark = pytest.mark.interop("torch", "transformers")

NEW_TOKENS = 64
LENGTH = 80  # room for a prompt of 9 tokens and these
TOKENS = np.random.default_rng(1).integers(1, 32, (2, 24)).astype(np.int32)


@functools.cache
def reference(case: tuple[str, ...]) -> Any:
    """Return logits of full passes, and greedy continuations of two prompts of 9 and 5 tokens."""
    model = configured(*case)
    params = filled(model)
    padded = jnp.pad(jnp.asarray(TOKENS), ((0, 0), (0, LENGTH - TOKENS.shape[1])))
    logits = jax.jit(model.apply)({"params": params}, padded, jnp.arange(LENGTH)[None])
    prompts = np.where(np.arange(9)[None] < [[9], [5]], TOKENS[:, :9], 0)
    prompts[:, 0] = 0
    found = generate(
        *(model, params, prompts, np.array([9, 5])), new_tokens=NEW_TOKENS, context_length=LENGTH
    )
    return np.asarray(logits)[:, : TOKENS.shape[1]], prompts, found


# Layers that see 3 tokens, blocks of 7, and all tokens; 24 tokens are read.
WINDOWED = (
    *("fire", "POSITION = [@near/Layers(), @block/Layers(), @FIRE, @far/Layers()]"),
    *("near/Layers.encoding = @RoPE", "near/Layers.window = 3", "near/Layers.log_n = @LogN()"),
    *("block/Layers.encoding = @ALiBi", "block/Layers.chunk = 7", "block/Layers.window = 5"),
    *("far/Layers.encoding = @NoPE", "far/Layers.log_n = @LogN()", "LogN.clipped = True"),
)
CASES = [
    *((name,) for name in EXPORTABLE if name != "learned"),
    ("learned", f"Learned.max_length = {LENGTH}"),
    *((name, binding) for name, binding in FIXED.items()),
    # Distances of up to 79 and a limit of 20 make the argument of f exceed 1.
    ("fire_gelu", "FIRE.normalizer_limit = 20"),
    ("fire_g", "FIRE.normalizer_limit = 20"),
    ("fire", "log_n/inference_both"),
    ("rope", "log_n/training"),
    WINDOWED,
]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_transformers_computes_the_same(case, tmp_path):
    """transformers computes the same in every way in which it can run an exported model.

    The test compares the logits of a full pass with torch's two implementations of attention;
    greedy decoding of left-padded prompts with dynamic and static caches, and its
    log-probabilities; and a model that was saved and loaded again.
    """
    import torch
    import transformers

    exported(tmp_path / "model", *case, context=LENGTH)
    expected, prompts, found = reference(case)
    opened = functools.partial(
        transformers.AutoModelForCausalLM.from_pretrained, trust_remote_code=True
    )
    for attention in ("eager", "sdpa"):
        model = opened(str(tmp_path / "model"), attn_implementation=attention).eval()
        with torch.no_grad():
            logits = model(torch.tensor(TOKENS, dtype=torch.long)).logits.numpy()
        assert np.max(np.abs(logits - expected)) < 1e-5 * np.std(expected), attention

    ids = torch.zeros(2, 9, dtype=torch.long)
    for row, length in enumerate((9, 5)):
        ids[row, 9 - length :] = torch.tensor(prompts[row, :length])
    mask = torch.tensor([[1] * 9, [0] * 4 + [1] * 5])
    for caches in ({}, {"cache_implementation": "static"}):
        out = model.generate(
            *(ids,),
            attention_mask=mask,
            max_new_tokens=NEW_TOKENS,
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


ENCODERS = [
    *((name,) for name in CLASSES if name in EXPORTABLE and name not in ("learned", "xpos")),
    ("learned", f"Learned.max_length = {LENGTH}"),
    ("fire_g", "FIRE.normalizer_limit = 20"),
    ("fire", "log_n/inference_both"),
    ("rope", "log_n/training"),
    WINDOWED,
]


@pytest.mark.parametrize("case", ENCODERS, ids=" ".join)
def test_transformers_computes_the_same_encoder(case, tmp_path):
    """It does so for whole rows, and for a shorter row that is padded on either side."""
    import torch
    import transformers

    model = configured(*case, *ENCODER)
    params = filled(model)
    export(model, params, DATA, tmp_path / "model", "#", LENGTH, mask_id=259)
    apply = jax.jit(lambda *row: model.apply({"params": params}, *row))

    def ours(tokens: int) -> np.ndarray:
        """Return the logits of the first tokens of rows that are padded to LENGTH."""
        row = np.pad(TOKENS[:, :tokens], ((0, 0), (0, LENGTH - tokens)))
        segment = (np.arange(LENGTH) < tokens).astype(np.int32)
        logits = apply(row, np.arange(LENGTH)[None], np.tile(segment, (2, 1)))
        return np.asarray(logits)[:, :tokens]

    expected, alone = ours(24), ours(15)
    padded = np.stack([np.pad(TOKENS[0, :15], (0, 9)), np.pad(TOKENS[1, :15], (9, 0))])
    opened = transformers.AutoModelForMaskedLM.from_pretrained
    for attention in ("eager", "sdpa"):
        theirs = opened(
            str(tmp_path / "model"), trust_remote_code=True, attn_implementation=attention
        ).eval()
        ids, padded_ids = (torch.tensor(each, dtype=torch.long) for each in (TOKENS, padded))
        with torch.no_grad():
            whole = theirs(ids, labels=ids)
            shorter = theirs(padded_ids, attention_mask=(padded_ids != 0).long()).logits.numpy()
        tolerance = 1e-5 * np.std(expected)
        assert np.max(np.abs(whole.logits.numpy() - expected)) < tolerance, attention
        for row, place in enumerate((slice(0, 15), slice(9, 24))):
            assert np.max(np.abs(shorter[row, place] - alone[row])) < tolerance, (attention, row)
    logprobs = whole.logits.log_softmax(-1)
    loss = -logprobs.gather(-1, ids[..., None]).mean()
    torch.testing.assert_close(whole.loss, loss)
    found = read_own(model, read_config(tmp_path / "model"), Weights(tmp_path / "model"))
    jax.tree.map(np.testing.assert_array_equal, found, params)


@pytest.mark.parametrize(
    "case", [("fire",), ("fire", *ENCODER), ("rope", "log_n/training"), WINDOWED]
)
def test_documents_of_a_packed_row_do_not_see_each_other(case, tmp_path):
    """Positions that restart are all that DataCollatorWithFlattening passes for packed rows."""
    import torch
    import transformers

    model = configured(*case)
    export(model, filled(model), DATA, tmp_path / "model", "#", LENGTH, mask_id=259)
    kind = "AutoModelForCausalLM" if model.causal else "AutoModelForMaskedLM"
    theirs = (
        getattr(transformers, kind)
        .from_pretrained(str(tmp_path / "model"), trust_remote_code=True)
        .eval()
    )
    ids = torch.tensor(TOKENS[:1], dtype=torch.long)
    pieces = (slice(0, 9), slice(9, 10), slice(10, 24))  # a document may have one token
    restarting = torch.cat([torch.arange(piece.stop - piece.start) for piece in pieces])[None]
    with torch.no_grad():
        packed = theirs(ids, position_ids=restarting).logits
        alone = torch.cat([theirs(ids[:, piece]).logits for piece in pieces], 1)
        whole = theirs(ids, position_ids=torch.arange(24)[None]).logits
        torch.testing.assert_close(packed, alone)
        torch.testing.assert_close(whole, theirs(ids).logits)
        for mask in ([1] * 9 + [0] * 2 + [1] * 13, [0] * 3 + [1] * 18 + [0] * 3):
            mask = torch.tensor([mask])
            places = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)  # as in generate
            masked = theirs(ids, attention_mask=mask, position_ids=places).logits
            expected = theirs(ids, attention_mask=mask).logits
            torch.testing.assert_close(masked[mask == 1], expected[mask == 1])


@pytest.mark.parametrize("name", ["kerple_log", "kerple_power"])
def test_kerple_is_clipped_at_each_use_and_its_gradient_is_not(name, tmp_path):
    """After training in torch, parameters outside their range mean what they mean in our model."""
    import torch
    import transformers

    model, *_ = exported(tmp_path / "model", name)
    ours = {"p": jnp.float32([-1, 0.5, 3, 0.3, 1, 2.5]), "a": jnp.float32([0.5, -1, 0, 1, 2, -3])}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        str(tmp_path / "model"), trust_remote_code=True
    ).model.position_of(0)
    with torch.no_grad():
        for part, value in ours.items():
            getattr(theirs, part).copy_(torch.tensor(np.array(value)))

    def bias(parameters):
        pos_BT = jnp.arange(8)[None]
        return jnp.tril(model.encodings[0].bias(parameters, pos_BT, pos_BT, 8))

    found = theirs.bias(torch.arange(8)[None], torch.arange(8)[None]).tril()
    np.testing.assert_allclose(found.detach().numpy(), bias(ours), rtol=1e-6)
    found.sum().backward()
    for part, gradient in jax.grad(lambda parameters: bias(parameters).sum())(ours).items():
        np.testing.assert_allclose(getattr(theirs, part).grad.numpy(), gradient, rtol=1e-5)
        assert (gradient != 0).all()


def test_the_loss_of_microbatches_sums_to_that_of_the_batch(tmp_path):
    """Without a number of targets, the loss is the mean over the microbatch.

    The Trainer omits its division by the number of microbatches if `forward` takes **kwargs, and
    passes the number of targets of the whole batch instead, as a tensor.
    """
    import torch
    import transformers

    exported(tmp_path / "model", "fire")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(tmp_path / "model"), trust_remote_code=True
    )
    ids = torch.tensor(TOKENS, dtype=torch.long)
    labels = ids.clone()
    labels[1, 5:] = -100  # the microbatches have 23 and 4 targets
    with torch.no_grad():
        logprobs = model(ids).logits[:, :-1].log_softmax(-1)
        nll = -logprobs.gather(-1, ids[:, 1:, None])[..., 0]
        kept = labels[:, 1:] != -100
        count = kept.sum()
        parts = [
            model(ids[[row]], labels=labels[[row]], num_items_in_batch=count).loss for row in (0, 1)
        ]
        means = [model(ids[[row]], labels=labels[[row]]).loss for row in (0, 1)]
        whole = model(ids, labels=labels).loss
    torch.testing.assert_close(whole, nll[kept].mean())
    torch.testing.assert_close(sum(parts), whole)
    torch.testing.assert_close(means, [nll[row][kept[row]].mean() for row in (0, 1)])


def test_gpt2_beside_transformers(tmp_path):
    import torch
    import transformers

    folder = gpt2_folder(tmp_path / "folder")
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    with torch.no_grad():
        theirs = model(torch.tensor(GPT2_IDS)).logits.numpy()
    np.testing.assert_allclose(our_logits(folder), theirs, atol=1e-5)
    numbers = np.round(theirs.astype(float), 6).tolist()
    kept = golden_numbers.updated(GOLDEN, numbers, "torch", "transformers")
    np.testing.assert_allclose(kept, theirs, atol=1e-5)


@pytest.mark.slow
def test_gpt2_of_the_real_size(tmp_path):
    """GPT-2's 124 million weights are random, so that every bias and norm matters.

    The input has as many tokens as GPT-2 can read.
    """
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    ids = np.random.default_rng(3).integers(0, 50257, (1, 1024))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight += 0.1 * torch.randn_like(weight)
        theirs = model(torch.tensor(ids)).logits.numpy()
    model.save_pretrained(tmp_path / "gpt2")
    ours = our_logits(tmp_path / "gpt2", ids)
    assert ours.shape == theirs.shape == (1, 1024, 50257) and np.std(theirs) > 0.3
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert np.max(np.abs(our_logits(tmp_path / "gpt2", ids[:, ::-1]) - theirs)) > 0.1


@pytest.mark.parametrize("name", ["fire", "learned", "rope"])
def test_a_model_that_transformers_has_saved_comes_back(name, tmp_path):
    """The configuration of the run is kept as well, as after training in transformers."""
    import transformers

    model = configured(name)
    params, lines = filled(model), "# one\n# two"
    export(model, params, DATA, tmp_path / "model", "#", CONTEXT, configuration=lines)
    transformers.AutoModelForCausalLM.from_pretrained(
        str(tmp_path / "model"), trust_remote_code=True
    ).save_pretrained(tmp_path / "again")
    config = read_config(tmp_path / "again")
    assert config[EXPORTED] == lines.splitlines()
    found = read_own(model, config, Weights(tmp_path / "again"))
    jax.tree.map(np.testing.assert_array_equal, found, params)
