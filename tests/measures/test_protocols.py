"""Which tokens a protocol scores and what they see, against brute force with the model itself."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_scoring import LONGEST, MODEL, mesh_of, packed_text, params, random_text

from fire_lm.errors import UserError
from fire_lm.hardware import memory
from fire_lm.measures import measurements, protocols, scoring
from fire_lm.measures.protocols import named, windows
from fire_lm.models import segment_positions, token_losses
from fire_lm.positions.alibi import ALiBi

module = importlib.import_module("fire_lm.measures.length_sweep")

LOSSES = jax.jit(lambda *arrays: token_losses(MODEL, *arrays)[0])


@pytest.fixture
def last_4(monkeypatch) -> str:
    """Return the name of `last256` adapted to rows of 32 tokens."""
    monkeypatch.setattr(protocols, "_LAST", 4)
    return "last4"


def nll_of(targets_T: np.ndarray, segments_T: np.ndarray | None) -> np.ndarray:
    """Return the nats of each token of one window in a batch of its own; 0 for padding."""
    rows = [jnp.asarray(x)[None] for x in (targets_T, segments_T) if x is not None]
    pos_1T = jnp.arange(len(targets_T), dtype=jnp.int32)[None]
    if segments_T is not None:
        pos_1T = segment_positions(pos_1T, rows[1])
    nll_BT = LOSSES(params(), rows[0], pos_1T, *rows[1:])
    return np.where(targets_T == 0, 0.0, np.asarray(nll_BT, np.float64)[0])


@pytest.mark.parametrize(
    "length, packed",
    [
        (8, False),
        pytest.param(16, True, marks=pytest.mark.ci),
        pytest.param(LONGEST, True, marks=pytest.mark.ci),
    ],
)
def test_sliding_windows_by_brute_force(length, packed):
    """Each token is scored once, in the first window of the sequence that contains it."""
    text, stride = packed_text() if packed else random_text(3), 4
    laid = windows("sliding", length, LONGEST, stride)
    scored_R = scoring.row_losses(MODEL, params(), text, laid, 4 * length, mesh_of(), "run")[:, 0]
    for row, targets_T in enumerate(text.targets):
        segments_T = None if text.segment_ids is None else text.segment_ids[row]
        total = 0.0
        for place in range(LONGEST):
            end = length if place < length else (place // stride + 1) * stride
            part = slice(end - length, end)
            cut = None if segments_T is None else segments_T[part]
            total += nll_of(targets_T[part], cut)[place - (end - length)]
        assert scored_R[row] == pytest.approx(total, rel=1e-5)
    assert (
        measurements.count(text, laid)[1:]
        == measurements.count(text, windows("full", 8, LONGEST))[1:]
    )


@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.ci)])
def test_the_last_part_of_a_row_is_shorter_where_the_length_does_not_divide_it(packed):
    """12 does not divide 32: parts of 12, 12 and 8 tokens are each scored by themselves."""
    text = packed_text() if packed else random_text(3)
    laid = windows("full", 12, LONGEST)
    scored_R = scoring.row_losses(MODEL, params(), text, laid, 48, mesh_of(), "run")[:, 0]
    for row, targets_T in enumerate(text.targets):
        parts = [slice(0, 12), slice(12, 24), slice(24, 32)]
        segments = [None if text.segment_ids is None else text.segment_ids[row, p] for p in parts]
        alone = [nll_of(targets_T[p], s).sum() for p, s in zip(parts, segments, strict=True)]
        assert scored_R[row] == pytest.approx(sum(alone), rel=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize("bins", [1, 3])
def test_a_shorter_part_is_an_input_of_its_own_length(bins):
    """ALiBi-PI divides its slopes by the length of the input, here 12, 12 and 8 tokens."""
    model = MODEL.with_encodings((ALiBi(2, 8, 8, 16, interpolate=True),))
    text, mesh = random_text(3), mesh_of()
    weights = jax.jit(model.init)(jax.random.key(0), *[np.zeros((1, 1), np.int32)] * 2)["params"]
    losses = jax.jit(lambda *arrays: token_losses(model, weights, *arrays)[0])
    found_RP = scoring.row_losses(
        model, weights, text, windows("full", 12, LONGEST), 48, mesh, "run", bins
    )
    expected_RP = np.zeros((3, bins))
    for row, targets_T in enumerate(text.targets):
        for part in (slice(0, 12), slice(12, 24), slice(24, 32)):
            targets_1T = targets_T[None, part]
            pos_1T = np.arange(targets_1T.shape[1], dtype=np.int32)[None]
            nll_T = np.where(targets_1T == 0, 0.0, losses(targets_1T, pos_1T))[0]
            expected_RP[row] += np.pad(nll_T, (0, 12 - len(nll_T))).reshape(bins, -1).sum(axis=1)
    np.testing.assert_allclose(found_RP, expected_RP, rtol=1e-5)


@pytest.mark.parametrize("protocol, stride", [("full", 4), ("sliding", 4), ("sliding", 3)])
def test_every_length_scores_every_token_once(protocol, stride):
    """This is so for lengths that do not divide a row and for strides that do not."""
    text = packed_text()
    for length in range(2 * stride, LONGEST + 1, stride):
        laid = windows(protocol, length, LONGEST, stride)
        scored_T = np.zeros(LONGEST + length, int)
        for start, first in zip(laid.starts, laid.scored_from, strict=True):
            scored_T[start + first : start + length] += 1
        assert np.all(scored_T[:LONGEST] == 1), length
        assert measurements.count(text, laid)[1] == np.count_nonzero(text.targets)
        assert measurements.count(text, laid)[2] == text.byte_counts.sum()


@pytest.mark.parametrize("length", [4, pytest.param(LONGEST, marks=pytest.mark.ci)])
def test_the_last_tokens_by_brute_force(length, last_4):
    """The last four tokens of each row are scored, the same at every length."""
    text = random_text(5)
    laid = windows(last_4, length, LONGEST)
    scored_R = scoring.row_losses(MODEL, params(), text, laid, 4 * length, mesh_of(), "run")[:, 0]
    expected_R = [nll_of(row[-length:], None)[-4:].sum() for row in text.targets]
    np.testing.assert_allclose(scored_R, expected_R, rtol=1e-5)
    sequences, tokens, text_bytes = measurements.count(text, laid)
    assert tokens == (text.targets[:, -4:] != 0).sum()
    assert text_bytes == text.byte_counts[:, -4:].sum()
    assert sequences == (text.targets[:, -4:] != 0).any(axis=1).sum()


@pytest.mark.ci
def test_losses_are_those_of_the_logits_token_by_token():
    """An independent float64 log-softmax of dumped logits agrees to 1e-6 of the mean."""
    text = random_text(7)
    for length in (8, LONGEST):
        laid = windows("full", length, LONGEST)
        targets = laid.of(text.targets)
        read = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
        pos = np.arange(length, dtype=np.int32)[None]
        logits = np.asarray(MODEL.apply({"params": params()}, read, pos), np.float64)
        top = logits.max(axis=2, keepdims=True)
        log_z = np.log(np.exp(logits - top).sum(axis=2)) + top[:, :, 0]
        nll = log_z - np.take_along_axis(logits, targets[:, :, None], axis=2)[:, :, 0]
        scored = targets != 0
        scored_R = scoring.row_losses(MODEL, params(), text, laid, 4 * length, mesh_of(), "run")[
            :, 0
        ]
        assert scored_R.sum() / scored.sum() == pytest.approx(nll[scored].mean(), rel=1e-6)


@pytest.mark.ci
def test_one_device_and_four_agree():
    text = random_text(6)
    laid = windows("sliding", 16, LONGEST, 8)
    one = scoring.row_losses(MODEL, params(), text, laid, 64, mesh_of(), "run")[:, 0]
    four = scoring.row_losses(MODEL, params(), text, laid, 64, mesh_of(data=2, tensor=2), "run")[
        :, 0
    ]
    np.testing.assert_allclose(four, one, rtol=1e-5)


@pytest.mark.ci
def test_a_batch_that_is_too_much_is_halved(monkeypatch, capsys):
    text, laid = random_text(6), windows("full", 8, LONGEST)
    batch_results, tried = scoring.batch_results, []

    def little_memory(program, params, arrays, batch_size, *rest):
        tried.append(batch_size)
        if batch_size > 3:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return batch_results(program, params, arrays, batch_size, *rest)

    expected = scoring.row_losses(MODEL, params(), text, laid, 64, mesh_of(), "run")[:, 0]
    monkeypatch.setattr(scoring, "batch_results", little_memory)
    monkeypatch.setattr(scoring, "_fitting", {})
    found = scoring.row_losses(MODEL, params(), text, laid, 64, mesh_of(), "run")[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert (
        tried == [8, 4, 2]
        and "4 sequences of 8 tokens do not fit into memory" in capsys.readouterr().out
    )
    scoring.row_losses(MODEL, params(), text, laid, 64, mesh_of(), "run")[:, 0]
    assert tried[3:] == [2], "what fits is remembered"
    monkeypatch.setattr(scoring, "_fitting", {})
    monkeypatch.setattr(scoring, "sequences_at_a_time", lambda *_: 4)
    with pytest.raises(jax.errors.JaxRuntimeError):
        scoring.row_losses(MODEL, params(), text, laid, 64, mesh_of(), "run")[:, 0]


@pytest.mark.ci
def test_rows_that_do_not_fit_one_at_a_time_are_refused(monkeypatch, capsys):
    """The compiler's estimate is compared with the free memory, before anything runs."""
    text, laid = random_text(6), windows("full", 8, LONGEST)
    monkeypatch.setattr(memory, "available_bytes", lambda: 100)
    monkeypatch.setattr(scoring, "_fitting", {})
    with pytest.raises(memory.TooLarge, match="the loss of 1 x 8 tokens at a time needs 0.0 GiB"):
        scoring.row_losses(MODEL, params(), text, laid, 16, mesh_of(), "run")
    assert "2 sequences of 8 tokens do not fit into memory: trying 1" in capsys.readouterr().out


def test_protocols_that_cannot_be(last_4):
    for protocol, length, stride, words in (
        ("whole", 8, 4, "there is no protocol 'whole': choose from full, last256"),
        ("last4", 2, 4, "needs lengths of 4 tokens or more"),
        ("sliding", 8, 3, "does not divide the evaluation length 8"),
    ):
        with pytest.raises(UserError, match=words):
            windows(protocol, length, LONGEST, stride)
    assert [named("full", 8), named("sliding", 256), named("sliding", 8)] == [
        *("full", "sliding", "sliding-8"),
    ]
