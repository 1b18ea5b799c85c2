"""Log-likelihoods of continuations equal those of unpadded passes, whatever shares the batch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_decoders import configured, filled

from fire_lm.measures.continuation_scores import continuation_scores
from fire_lm.measures.exercise_answers import predicted
from fire_lm.measures.scoring import target_scorer
from fire_lm.models import keeps_positions
from fire_lm.positions.log_n import LogN
from fire_lm.positions.resampling import RandomizedPositions
from fire_lm.sharding import mesh_of

RNG = np.random.default_rng(0)
# (context tokens, continuation tokens) in two padded widths, and more than one batch of them
SIZES = [(1, 1), (1, 4), (3, 30), (9, 1), (20, 25), (2, 3)]
ROWS = [(RNG.integers(1, 32, a).tolist(), RNG.integers(1, 32, b).tolist()) for a, b in SIZES]
EVEN = ("resampling/even", "RandomizedPositions.max_length=64")


def alone(model, params, row):
    """Score one row by itself: its log-likelihood, whether it is greedy, and the logits."""
    context, continuation = row
    ids = np.array([*context, *continuation], np.int32)[None]
    read, targets = ids[:, :-1], ids[0, 1:]
    positions = model.resampling.evaluation_positions(read.shape[1])
    logits = np.asarray(model.apply({"params": params}, read, positions))[0]
    logprobs = np.asarray(jax.nn.log_softmax(logits))[np.arange(len(targets)), targets]
    count = len(continuation)
    return logprobs[-count:].sum(), bool((logits.argmax(-1) == targets)[-count:].all()), logits


@pytest.mark.ci
@pytest.mark.parametrize(
    "case",
    [("fire",), pytest.param(("alibi_pi",), marks=pytest.mark.slow), ("rope", *EVEN)],
    ids=" ".join,
)
def test_each_row_scores_what_it_scores_alone(case):
    model = configured(*case)
    params = filled(model)
    # Greedy decoding would write the first continuation, so only this row counts as greedy.
    likeliest = int(alone(model, params, ROWS[0])[2][-1].argmax())
    rows = [(ROWS[0][0], [likeliest]), *ROWS]
    mesh = mesh_of((2, 1, 1), jax.devices()[:2])
    found = {
        index: (logprob, greedy)
        for index, logprob, greedy in continuation_scores(model, params, rows, mesh, 80)
    }
    assert sorted(found) == list(range(len(rows)))
    for index, row in enumerate(rows):
        logprob, greedy, _ = alone(model, params, row)
        assert found[index][0] == pytest.approx(logprob, abs=1e-4)
        assert found[index][1] == greedy
    assert found[0][1] and not all(greedy for _, greedy in found.values())
    assert jnp.isfinite(jnp.array([logprob for logprob, _ in found.values()])).all()


def test_a_learned_table_needs_no_rows_for_padding():
    """A row of 40 tokens would be padded to 64, but the table has only 48 rows."""
    model = configured("learned", "Learned.max_length=48")
    mesh = mesh_of((1, 1, 1), jax.devices()[:1])
    row = (RNG.integers(1, 32, 39).tolist(), RNG.integers(1, 32, 2).tolist())
    ((_, logprob, _),) = continuation_scores(model, filled(model), [row], mesh)
    assert np.isfinite(logprob)


def test_rows_share_the_bias_although_log_n_scales_it(monkeypatch):
    """A number of keys for each row would make attention build the bias for each row."""
    model, seen, scales = configured("fire", "log_n/inference_both"), [], LogN.scales

    def recorded(self, logit_scale_BT, seen_BT, train_length):
        seen.append(seen_BT.shape)
        return scales(self, logit_scale_BT, seen_BT, train_length)

    params, mesh = filled(model), mesh_of((1, 1, 1), jax.devices()[:1])
    monkeypatch.setattr(LogN, "scales", recorded)
    rows_BT = jax.ShapeDtypeStruct((4, 32), jnp.int32)
    row_1T = jax.ShapeDtypeStruct((1, 32), jnp.int32)
    target_scorer(model, mesh).lower(params, *[rows_BT] * 4)
    predicted(model).lower(params, rows_BT, row_1T, row_1T)
    assert set(seen) == {(1, 32)}


@pytest.mark.parametrize("length", [1, 2, 3, 20])
def test_positions_that_follow_the_length_are_seen_at_any_length(length):
    """The first of two even positions is 0 for every length, but rows are padded to 32 tokens."""
    assert keeps_positions(configured("rope"), length)
    for evaluation in ("even", "random"):
        rule = RandomizedPositions(max_length=20, evaluation=evaluation)
        assert not keeps_positions(configured("rope").clone(resampling=rule), length)
    rule = dataclasses.replace(rule, evaluation="plain")
    assert keeps_positions(configured("rope").clone(resampling=rule), length)
