"""Masked rows: which tokens are hidden, and that the choice is a function of seed and place."""

import itertools

import numpy as np
import pytest
from sample_blocks import blocks, data_dir, whole  # noqa: F401 (fixtures)

from fire_lm.data import Blocks, MaskedText, train_iterator
from fire_lm.data.kinds.masked_text import masked
from fire_lm.errors import UserError

MASK = 259
ROW = np.arange(1, 257).astype(np.int32)


def hidden(rows: int, rate: float = 0.15, padded: int = 0):
    """Return what `masked` makes of `rows` equal rows of 256 distinct tokens, `[rows, T]` each."""
    targets = np.where(np.arange(256) < 256 - padded, ROW, 0)
    weights = targets != 0
    pairs = [
        masked(targets, weights, np.random.default_rng(row), rate, MASK) for row in range(rows)
    ]
    return targets, np.stack([p.inputs for p in pairs]), np.stack([p.chosen for p in pairs])


def test_rates_are_berts():
    """15 % of the tokens are chosen; 80 % of these are masked, 10 % random and 10 % kept."""
    targets, inputs, chosen = hidden(1500)
    assert inputs.dtype == np.int32 and chosen.dtype == np.int8
    count = chosen.sum()
    assert count / chosen.size == pytest.approx(0.15, abs=0.003)  # five standard errors
    in_chosen = inputs[chosen == 1]
    kept = inputs[chosen == 1] == np.broadcast_to(targets, inputs.shape)[chosen == 1]
    assert np.mean(in_chosen == MASK) == pytest.approx(0.8, abs=0.01)
    assert np.mean(kept) == pytest.approx(0.1 + 0.1 / 258, abs=0.008)
    random = in_chosen[(in_chosen != MASK) & ~kept]
    assert set(np.unique(random)) <= set(range(1, MASK)) and len(np.unique(random)) > 250


def test_other_tokens_are_read_as_they_are_and_padding_is_never_chosen():
    targets, inputs, chosen = hidden(50, rate=0.5, padded=100)
    where = chosen == 0
    np.testing.assert_array_equal(inputs[where], np.broadcast_to(targets, inputs.shape)[where])
    assert not chosen[:, 156:].any() and chosen[:, :156].any()


def test_the_draws_of_a_token_do_not_depend_on_what_follows():
    rng = [np.random.default_rng(5) for _ in range(2)]
    short = masked(ROW[:100], np.ones(100), rng[0], 0.3, MASK)
    whole_row = masked(ROW, np.ones(256), rng[1], 0.3, MASK)
    np.testing.assert_array_equal(short.inputs, whole_row.inputs[:100])


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_rate_without_effect_is_refused(rate):
    with pytest.raises(UserError, match="between 0 and 1"):
        MaskedText(Blocks("x"), rate)


@pytest.mark.ci
def test_batches_resume_and_do_not_depend_on_the_number_of_hosts(blocks):  # noqa: F811
    data = MaskedText(Blocks(str(blocks), construction="packed"))
    assert data.vocabulary_size() == MASK + 1 and data.packed and data.unshifted and data.any_hosts

    def batches(size: int, index: int = 0, count: int = 1, seed: int = 3):
        return train_iterator(
            data, length=64, batch_size=size, seed=seed, shard_index=index, shard_count=count
        )

    one = batches(8)
    expected = [next(one) for _ in range(6)]
    for batch in expected:
        is_hidden = batch["inputs"] != batch["targets"]
        assert is_hidden.any() and not np.any(is_hidden & (batch["weights"] == 0))
        np.testing.assert_array_equal(batch["tokens"][:, 0], (batch["targets"] != 0).sum(axis=1))
    assert any(np.any(a["weights"] != b["weights"]) for a, b in itertools.pairwise(expected))

    halves = [batches(4, index, 2) for index in range(2)]
    for batch in expected[:3]:
        parts = [next(half) for half in halves]
        for name in batch:
            np.testing.assert_array_equal(np.concatenate([p[name] for p in parts]), batch[name])

    resumed, later = batches(8), batches(8)
    for _ in range(4):
        next(later)
    assert later.is_after(4) and not later.is_after(5), "so a batch that cannot be read costs none"
    resumed.set_state(later.get_state())
    for name, array in next(resumed).items():
        np.testing.assert_array_equal(array, expected[4][name])
    assert np.any(next(batches(8, seed=4))["inputs"] != expected[0]["inputs"])
    with pytest.raises(UserError, match="does not belong to masked text"):
        resumed.set_state(b'{"samples": 8}')
