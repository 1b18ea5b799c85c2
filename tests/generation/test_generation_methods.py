"""Greedy decoding, sampling and beam search against enumeration and the scorer."""

import functools
import importlib
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from environments import with_devices
from sample_decoders import filled

from fire_lm.errors import RunFailed, UserError
from fire_lm.generation import Beam, Greedy, Sample, generate
from fire_lm.generation.programs import continue_prompts
from fire_lm.hardware import memory
from fire_lm.models import ModelSize, build_decoder, token_losses
from fire_lm.positions.alibi import ALiBi
from fire_lm.positions.learned import Learned
from fire_lm.sharding import decoding_layout, mesh_of

module = importlib.import_module("fire_lm.generation.generate")
SIZE = ModelSize(1, hidden_size=16, num_heads=2, head_dim=8, mlp_size=16, init_std=0.5)
STOP = 5
PROMPTS = np.array([[0, 3, 2, 1], [0, 4, 0, 0], [0, 2, 3, 0]], np.int32)
LENGTHS = np.array([4, 2, 3], np.int32)


@functools.cache
def model_and_params():
    model = build_decoder(SIZE, ALiBi, 6, train_length=8, dtype="float32")
    return model, filled(model, std=0.6, seed=1)


def run(method, prompts=PROMPTS, lengths=LENGTHS, new_tokens=3, **settings):
    return generate(
        *model_and_params(), prompts, lengths, new_tokens=new_tokens, method=method, **settings
    )


def test_prompts_that_do_not_fit_are_refused_before_the_compilation(monkeypatch):
    """Keys and values of a layer: 2 x 3 prompts x (4 + 1000 tokens) x 16 float32."""
    monkeypatch.setattr(memory, "available_bytes", lambda: 385_535)
    with pytest.raises(
        memory.TooLarge, match=r"3 prompts of 4 \+ 1000 tokens needs at least 0.0 GiB"
    ):
        run(Greedy(), new_tokens=1000)
    monkeypatch.setattr(memory, "available_bytes", lambda: 385_536)
    compiles = type("Compiles", (), {"lower": lambda *_: 1 / 0})
    monkeypatch.setattr(module, "continue_prompts", compiles())
    with pytest.raises(ZeroDivisionError):
        run(Greedy(), new_tokens=1000)


@functools.cache
def log_probability(prompt, answer):
    """Return the log-probability of each token of an answer, from the scorer."""
    text = [*prompt[1:], *answer]
    row = np.zeros((1, 8), np.int32)
    row[0, : len(text)] = text
    return -np.asarray(scorer()(row))[0, len(prompt) - 1 : len(text)]


@functools.cache
def scorer():
    model, params = model_and_params()
    return jax.jit(lambda row: token_losses(model, params, row, jnp.arange(8)[None])[0])


def prompt_of(example):
    return tuple(int(token) for token in PROMPTS[example, : LENGTHS[example]])


def answer_of(found, example, continuation=0):
    length = found.lengths_BK[example, continuation]
    return tuple(int(token) for token in found.tokens_BKT[example, continuation, :length])


def test_greedy_takes_the_likeliest_and_its_log_probabilities_are_the_scorers():
    found = run(Greedy(), stop_ids=(STOP,))
    for example in range(3):
        prompt, answer = prompt_of(example), answer_of(found, example)
        for index, token in enumerate(answer):
            scores = [log_probability(prompt, (*answer[:index], v))[-1] for v in range(1, 6)]
            assert token == 1 + int(np.argmax(scores))
        logprobs = found.logprobs_BKT[example, 0]
        np.testing.assert_allclose(
            logprobs[: len(answer)], log_probability(prompt, answer), atol=1e-5
        )
        assert not logprobs[len(answer) :].any() and 0 not in answer
        assert found.stopped_BK[example, 0] == (answer[-1] == STOP)
        assert found.stopped_BK[example, 0] or len(answer) == 3


def test_top_1_is_greedy():
    greedy, drawn = run(Greedy()), run(Sample(top_k=1, temperature=3.0, samples=2))
    np.testing.assert_array_equal(np.repeat(greedy.tokens_BKT, 2, axis=1), drawn.tokens_BKT)


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_a_wide_beam_finds_the_best_of_all_answers(alpha):
    found = run(Beam(64, alpha), stop_ids=(STOP,))
    answers = [
        answer
        for length in (1, 2, 3)
        for answer in itertools.product(range(1, 6), repeat=length)
        if answer[-1] == STOP and STOP not in answer[:-1]
    ]
    for example in range(3):
        scores = {
            answer: log_probability(prompt_of(example), answer).sum()
            / ((5 + len(answer)) / 6) ** alpha
            for answer in answers
        }
        best = max(answers, key=lambda answer: scores[answer])  # noqa: B023
        assert answer_of(found, example) == best
        np.testing.assert_allclose(found.scores_BK[example, 0], scores[best], atol=1e-5)
        assert found.stopped_BK[example, 0]


def plain_beam_search(prompt, beams, alpha, new_tokens, stops):
    """Run Wu et al.'s search with the scorer as the model; return (score, answer), best first."""

    def penalised(score, length):
        return score / ((5 + length) / 6) ** alpha

    live, ended = [(0.0, ())], []
    for length in range(1, new_tokens + 1):
        longer = [
            (score + log_probability(prompt, (*answer, token))[-1], (*answer, token))
            for score, answer in live
            for token in range(1, 6)
        ]
        candidates = sorted(longer, reverse=True)[: (1 + len(stops)) * beams]
        ended += [(penalised(s, length), a) for s, a in candidates if a[-1] in stops]
        ended = sorted(ended, reverse=True)[:beams]
        live = [(s, a) for s, a in candidates if a[-1] not in stops][:beams]
        if len(ended) == beams and penalised(live[0][0], new_tokens) <= ended[-1][0]:
            break
    return ended or [(penalised(score, new_tokens), answer) for score, answer in live]


@pytest.mark.parametrize(
    "beams, alpha, stops",
    [
        (2, 2.0, (2, 4)),
        pytest.param(2, 0.6, (STOP,), marks=pytest.mark.ci),
        pytest.param(3, 2.0, (STOP,), marks=pytest.mark.ci),
    ],
)
def test_a_narrow_beam_is_beam_search_written_plainly(beams, alpha, stops):
    found = run(Beam(beams, alpha), stop_ids=stops, new_tokens=4)
    for example in range(3):
        expected = plain_beam_search(prompt_of(example), beams, alpha, 4, stops)
        count = len(expected)
        assert [answer_of(found, example, k) for k in range(count)] == [a for _, a in expected]
        np.testing.assert_allclose(
            found.scores_BK[example, :count], [score for score, _ in expected], atol=1e-5
        )
        assert not found.lengths_BK[example, count:].any()


@pytest.mark.ci
def test_one_beam_without_a_penalty_is_greedy():
    np.testing.assert_array_equal(run(Beam(1, 0.0)).tokens_BKT, run(Greedy()).tokens_BKT)


def test_sampling_follows_the_distribution():
    """A chi-squared test of 4000 first tokens, with a temperature and top-k."""
    method = Sample(temperature=1.5, top_k=4, samples=4000)
    drawn = run(method, PROMPTS[:1], LENGTHS[:1], new_tokens=1).tokens_BKT[0, :, 0]
    logits = np.array([log_probability(prompt_of(0), (v,))[0] for v in range(1, 6)]) / 1.5
    expected = np.where(logits >= np.sort(logits)[1], np.exp(logits), 0)
    expected *= 4000 / expected.sum()
    counts = np.bincount(drawn, minlength=6)[1:]
    kept = expected > 0
    assert counts[~kept].sum() == 0
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    assert statistic < 16.27  # 3 degrees of freedom, p = 0.001


def test_batch_mates_and_padding_change_nothing():
    """Each example has its own random key, and a wider prefill changes nothing."""
    keys = jax.random.split(jax.random.key(7), 3)
    method = Sample(samples=3)
    together = run(method, keys_B=keys)
    wide = np.pad(PROMPTS[1:2], ((0, 0), (0, 5)))
    alone = run(method, wide, LENGTHS[1:2], keys_B=keys[1:2])
    np.testing.assert_array_equal(alone.tokens_BKT[0], together.tokens_BKT[1])
    np.testing.assert_allclose(alone.logprobs_BKT[0], together.logprobs_BKT[1], atol=1e-5)
    other = run(method, wide, LENGTHS[1:2], keys_B=keys[:1])
    assert np.any(other.tokens_BKT != alone.tokens_BKT)


def test_one_program_serves_all_lengths_of_a_bucket():
    before = continue_prompts._cache_size()
    for lengths in ([4, 2, 3], [2, 2, 2], [1, 4, 4]):
        run(Greedy(), lengths=np.array(lengths, np.int32), new_tokens=2)
    assert continue_prompts._cache_size() == before + 1


@pytest.mark.ci
def test_tokens_are_shown_while_they_come():
    """Generating in chunks gives the same result, and each shown text extends the one before."""
    shown = []
    method = Sample(samples=2)
    found = run(method, new_tokens=20, on_tokens=shown.append)
    np.testing.assert_array_equal(found.tokens_BKT, run(method, new_tokens=20).tokens_BKT)
    assert [int((tokens[0, 0] != 0).sum()) for tokens in shown] == [1, 9, 17, 20]
    for tokens in shown:
        there = tokens != 0
        np.testing.assert_array_equal(tokens[there], found.tokens_BKT[there])


def check_mesh(axes):
    """Check that three prompts on a mesh give the results of one device.

    The prompts are divided over data x fsdp, the heads over tensor.
    """
    model, params = model_and_params()
    mesh = mesh_of(axes, jax.devices()[: math.prod(axes)])
    like = decoding_layout(params, mesh)
    laid = jax.tree.map(lambda leaf, s: jax.device_put(leaf, s.sharding), params, like)
    for method in (Sample(samples=2), Beam(2)):
        alone = run(method, stop_ids=(STOP,))
        shared = generate(
            *(model, laid, PROMPTS, LENGTHS),
            new_tokens=3,
            method=method,
            stop_ids=(STOP,),
            mesh=mesh,
        )
        np.testing.assert_array_equal(alone.tokens_BKT, shared.tokens_BKT)
        np.testing.assert_allclose(alone.logprobs_BKT, shared.logprobs_BKT, atol=1e-5)


@pytest.mark.ci
def test_a_mesh_changes_nothing():
    check_mesh((1, 2, 2))


@pytest.mark.ci
def test_nor_does_one_with_all_axes():
    code = "import test_generation_methods; test_generation_methods.check_mesh((2, 2, 2))"
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = with_devices(8) | {"PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=240)


@pytest.mark.parametrize(
    "settings, told",
    [
        ({"new_tokens": 0}, "new_tokens is 0"),
        (
            {"context_length": 6},
            "context_length is 6, but the longest prompt and new tokens need 7 tokens",
        ),
        ({"lengths": np.array([0, 1, 1])}, "from 1 "),
    ],
)
def test_what_does_not_fit_is_refused(settings, told):
    with pytest.raises(UserError, match=told):
        run(Greedy(), **settings)


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"top_k": 0}, {"top_p": 0.0}])
def test_settings_without_a_meaning(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        Sample(**wrong)


def test_a_learned_table_that_is_too_short_is_refused():
    model = build_decoder(SIZE, Learned, 6, train_length=6, dtype="float32", share_position=True)
    with pytest.raises(UserError, match="beyond the 6 positions"):
        generate(model, {}, PROMPTS, LENGTHS, new_tokens=3)


@pytest.mark.ci
@pytest.mark.parametrize("method", [Greedy(), Sample(), Beam(2)], ids=lambda one: one.label)
def test_nan_is_an_error(method):
    model, params = model_and_params()
    broken = params | {"embedding": params["embedding"] * jnp.nan}
    with pytest.raises(RunFailed, match="NaN"):
        generate(model, broken, PROMPTS, LENGTHS, new_tokens=3, stop_ids=(STOP,), method=method)
