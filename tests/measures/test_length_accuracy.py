"""Accuracy by length equals that of unpadded rows, whatever the padding and the batches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.errors import RunFailed, UserError
from fire_lm.measures import exercise_answers
from fire_lm.measures.exercise_answers import generated_answers, slot_answers
from fire_lm.measures.length_accuracy import at_test, length_accuracies
from fire_lm.models import build_decoder, padded_length, size_tiny
from fire_lm.positions.fire import FIRE
from fire_lm.positions.learned import Learned
from fire_lm.positions.nope import NoPE
from fire_lm.positions.resampling import RandomizedPositions, Resampling
from fire_lm.positions.rope import RoPE
from fire_lm.tasks.synthetic import ReverseString
from fire_lm.tasks.synthetic.exercises import fixed_samples
from fire_lm.tasks.synthetic.layouts import FIRST_SYMBOL, answers, lay_out, prompt
from fire_lm.tasks.synthetic.scoring import tally

SMALL = size_tiny(num_layers=1, hidden_size=16, num_heads=2, head_dim=8, mlp_size=16, init_std=0.5)
LARGER = dataclasses.replace(SMALL, num_layers=2, init_std=1.0)


def initial(model, seed=0):
    token = jnp.zeros((1, 1), int)
    return jax.jit(model.init)(jax.random.key(seed), token, token)["params"]


@pytest.mark.ci
def test_a_length_scores_the_same_whatever_the_padding_and_the_batches(monkeypatch):
    model = build_decoder(
        SMALL, FIRE, vocab_size=4, train_length=16, dtype="float32",
        resampling=RandomizedPositions(64),
    )  # fmt: skip
    params = initial(model)
    # Since the head is tied, a fresh model would otherwise answer with the slots' own id.
    params["embedding"] = params["embedding"] * jnp.array([0.01, 0.01, 1, 1])[:, None]
    even = model.clone(resampling=at_test(model.resampling, "even"))
    task, found = ReverseString(), []
    for width, batch_size in ((16, 7), (24, 20)):
        monkeypatch.setattr(exercise_answers, "readable_length", lambda *_, width=width: width)
        answering = slot_answers(even, params, task)
        found.append(
            dict(length_accuracies(task, [5, 8], answering, sequences=20, batch_size=batch_size))
        )
    assert found[0] == found[1]
    samples = fixed_samples(task, 5, 0, range(20))
    positions = even.resampling.evaluation_positions(10)
    logits = model.apply({"params": params}, lay_out(task, "slots", samples, 10).inputs, positions)
    said = answers(task, "slots", np.asarray(jnp.argmax(logits, axis=-1)), 5)
    assert found[0][5] == tally(task, np.stack([s.answer for s in samples]), said)
    assert 0 < found[0][5].accuracy < 100


def test_the_tokens_of_a_forward_pass_are_limited(monkeypatch):
    model = build_decoder(SMALL, RoPE, vocab_size=4, train_length=16, dtype="float32")
    params, samples = initial(model), fixed_samples(ReverseString(), 5, 0, range(20))
    together = slot_answers(model, params, ReverseString())(samples, 5)
    shapes, predicted = [], exercise_answers.predicted

    def watched(model):
        def ids(params, inputs_BT, *tokens):
            shapes.append(inputs_BT.shape)
            return predicted(model)(params, inputs_BT, *tokens)

        return ids

    monkeypatch.setattr(exercise_answers, "predicted", watched)
    for tokens, expected in ((100, (6, 16)), (15, (1, 16))):
        monkeypatch.setattr(exercise_answers, "_TOKENS_AT_A_TIME", tokens)
        shapes.clear()
        assert (slot_answers(model, params, ReverseString())(samples, 5) == together).all()
        assert set(shapes) == {expected}
        assert len(shapes) == -(-20 // expected[0])


@pytest.mark.ci
@pytest.mark.parametrize(
    "resampling", [Resampling(), RandomizedPositions(64, evaluation="even")], ids=["plain", "even"]
)
def test_generated_answers_depend_neither_on_padding_nor_on_batches(monkeypatch, resampling):
    model = build_decoder(
        LARGER, RoPE, vocab_size=4, train_length=16, dtype="float32", resampling=resampling
    )
    params = initial(model, seed=9)
    # Since the head is tied, opposite embeddings of the two symbols make one of them most likely.
    embedding = params["embedding"].at[:2].multiply(0.01)
    params["embedding"] = embedding.at[3].set(-embedding[2])
    task, found = ReverseString(), []
    for more, batch_size in ((0, 7), (3, 20)):
        padded = lambda length, least, more=more: padded_length(length, least) + more  # noqa: E731
        monkeypatch.setattr(exercise_answers, "padded_length", padded)
        answering = generated_answers(model, params, task)
        found.append(
            dict(length_accuracies(task, [5], answering, sequences=20, batch_size=batch_size))
        )
    assert found[0] == found[1]
    samples = fixed_samples(task, 5, 0, range(20))
    said = generated_answers(model, params, task)(samples, 5)
    assert found[0][5] == tally(task, np.stack([s.answer for s in samples]), said)
    assert len(np.unique(said, axis=0)) > 2  # Otherwise, answers might not depend on the exercise.
    # Greedy decoding: each symbol is the most likely one after the unpadded tokens before it.
    prompts = np.stack([prompt("autoregressive", sample) for sample in samples])
    tokens = np.concatenate([prompts, said + FIRST_SYMBOL], axis=1)
    positions = model.resampling.evaluation_positions(tokens.shape[1])[:, :-1]
    logits = model.apply({"params": params}, tokens[:, :-1], positions)
    assert (jnp.argmax(logits[:, prompts.shape[1] - 1 :], axis=-1) == said + FIRST_SYMBOL).all()
    assert 0 < found[0][5].accuracy < 100


@pytest.mark.ci
def test_a_learned_table_needs_no_rows_for_padding():
    """Rows of 20 tokens would be padded to 32, but the table has only 20 rows."""
    model = build_decoder(
        SMALL, Learned, vocab_size=4, train_length=20, dtype="float32", share_position=True
    )
    params = initial(model)
    answering = slot_answers(model, params, ReverseString())
    found = dict(length_accuracies(ReverseString(), [9, 10], answering, sequences=2))
    assert {length: counted.symbols for length, counted in found.items()} == {9: 18, 10: 20}


@pytest.mark.parametrize("layout", ["slots", "autoregressive"])
def test_a_model_that_returns_nan_has_no_accuracy(layout):
    model = build_decoder(SMALL, NoPE, vocab_size=4, train_length=20, dtype="float32")
    params = initial(model)
    params["embedding"] = params["embedding"].at[2].set(jnp.nan)
    answering = {"slots": slot_answers, "autoregressive": generated_answers}[layout]
    found = length_accuracies(
        ReverseString(), [5], answering(model, params, ReverseString()), sequences=2
    )
    with pytest.raises(RunFailed, match="the model returns NaN: training may have diverged"):
        next(found)


def test_positions_are_those_of_the_test():
    assert at_test(RandomizedPositions(64), "plain") == Resampling()
    assert at_test(RandomizedPositions(64), "random").evaluation_positions(9).max() > 9
    with pytest.raises(UserError, match="use --positions=plain"):
        at_test(Resampling(), "even")
