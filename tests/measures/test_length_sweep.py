"""The length sweep: the same text at every length, correct losses and errors, and its result file.

Uses synthetic text and tiny models; `test_cli.py` sweeps real runs.
"""

import dataclasses
import importlib.util
import math
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath
from sample_scoring import (
    LONGEST,
    MODEL,
    VOCAB,
    full,
    mesh_of,
    module,
    packed_text,
    params,
    random_text,
)

from fire_lm import sharding
from fire_lm.data import ScoringText, TextData
from fire_lm.data.corpora.embedded import split_of, write_corpus
from fire_lm.measures import LengthSweep, RunModel, measurements, scoring, text_choice
from fire_lm.measures.measurements import Known
from fire_lm.measures.protocols import windows
from fire_lm.positions.resampling import RandomizedPositions, Resampling


def reference_nll(text: ScoringText, length: int, pos: Any = None) -> np.ndarray:
    """Return the summed nats of each row in float64, with other tokens in place of padding."""
    targets_BT = text.targets.reshape(-1, length)
    scored_BT = targets_BT != 0
    filled_BT = np.where(scored_BT, targets_BT, np.arange(1, length + 1) % (VOCAB - 1) + 1)
    inputs_BT = np.concatenate([np.zeros((len(filled_BT), 1)), filled_BT[:, :-1]], axis=1)
    pos_BT = np.arange(length, dtype=np.int32)[None] if pos is None else pos[None]
    logits = jax.jit(MODEL.apply)({"params": params()}, inputs_BT.astype(np.int32), pos_BT)
    logits_BTV = np.asarray(logits, np.float64)
    log_z_BT = np.log(np.exp(logits_BTV).sum(axis=2))
    target_BT = np.take_along_axis(logits_BTV, filled_BT[:, :, None], axis=2)[:, :, 0]
    return ((log_z_BT - target_BT) * scored_BT).reshape(len(text.targets), -1).sum(axis=1)


@pytest.mark.parametrize(
    "length, axes",
    [
        (8, {}),
        *(
            pytest.param(*case, marks=pytest.mark.ci)
            for case in ((LONGEST, {}), (8, {"data": 4}), (LONGEST, {"fsdp": 2, "tensor": 2}))
        ),
    ],
)
def test_score_is_the_loss_of_each_part_alone(length, axes):
    """Each part is scored as if it were by itself, on one device and on four.

    7 rows in batches of 4 require the last batch to be filled up. Some rows are padded as well, and
    padding adds nothing.
    """
    text = random_text(7)
    mesh = mesh_of(**axes)
    placed = jax.device_put(params(), sharding.tree_shardings(params(), mesh))
    activations = jax.sharding.NamedSharding(mesh, sharding.ACTIVATIONS)
    model = MODEL.clone(activation_sharding=activations)
    scored_R = scoring.row_losses(model, placed, text, full(length), 4 * length, mesh, "run")[:, 0]
    np.testing.assert_allclose(scored_R, reference_nll(text, length), rtol=1e-5)
    other_length = LONGEST + 8 - length
    assert not np.allclose(scored_R, reference_nll(text, other_length), rtol=1e-3)


@pytest.mark.ci
def test_tokens_stand_where_the_model_evaluates_them():
    """The setting 'even' spreads positions evenly over 8 times the length."""
    text, mesh = random_text(5), mesh_of()
    model = MODEL.clone(resampling=RandomizedPositions(8 * LONGEST, "even"))
    scored_R = scoring.row_losses(model, params(), text, full(LONGEST), 4 * LONGEST, mesh, "run")[
        :, 0
    ]
    even = np.arange(LONGEST) * (8 * LONGEST - 1) // (LONGEST - 1)
    np.testing.assert_allclose(scored_R, reference_nll(text, LONGEST, even), rtol=1e-5)
    assert not np.allclose(scored_R, reference_nll(text, LONGEST), rtol=1e-4)


def test_padding_is_counted(monkeypatch, capsys):
    """Padding is reported if there is any; the table has no column for it."""
    targets = np.ones((5, 40), np.int32)
    for padding, told in (
        (0, ""),
        (30, "30 of the 200 positions in the rows of mine are padding (15.0%)"),
    ):
        targets.ravel()[:padding] = 0
        text = ScoringText(targets, targets, skipped=0)
        monkeypatch.setattr(text_choice, "read_scoring_text", lambda *_, text=text, **__: text)
        module.read_text(TextData("here"), "mine", (40,), 160, "validation")
        said = capsys.readouterr().out
        assert said.startswith(told) and said.count("\n") == bool(told)


def test_padding_is_not_part_of_the_budget(monkeypatch, capsys):
    targets = np.eye(5, 40, dtype=np.int32)
    text = ScoringText(targets, targets, skipped=0)
    monkeypatch.setattr(text_choice, "read_scoring_text", lambda *_, **__: text)
    module.read_text(TextData("here"), "mine", (40,), 200, "validation")
    assert "mine has only 5 tokens, fewer than length_sweep.tokens = 200" in capsys.readouterr().out


@pytest.mark.parametrize(
    "resampling, read", [(Resampling(), {12}), (RandomizedPositions(64, "even"), {8, 12})]
)
def test_only_windows_with_scored_tokens_are_computed(monkeypatch, resampling, read):
    """A window at the end of a row has its own length if the model depends on the length."""
    text, laid, computed = random_text(5), windows("full", 12, LONGEST), []

    def run_fitting(program, params, arrays, batch_size, mesh, name, tokens):
        computed.append((tokens, len(arrays[0])))
        assert arrays[1].any(axis=1).all() and not arrays[1][:, tokens:].any()
        return (arrays[0] * arrays[1]).sum(axis=1, keepdims=True)

    monkeypatch.setattr(scoring, "run_fitting", run_fitting)
    model = MODEL.clone(resampling=resampling)
    scored_R = scoring.row_losses(model, None, text, laid, 48, mesh_of(), "run")[:, 0]
    np.testing.assert_array_equal(scored_R, text.targets.sum(axis=1))
    assert {tokens for tokens, _ in computed} == read
    windows_B = laid.of(text.targets).any(axis=1)
    assert sum(count for _, count in computed) == windows_B.sum() < windows_B.size


def test_padding_at_the_end_of_a_window_is_not_read(monkeypatch):
    """The rows have 32, 27 and 1 tokens; 27 is padded to 32, and 1 to 2."""
    monkeypatch.setattr(scoring, "_SHORTEST", 2)
    text, laid, read = random_text(3), full(LONGEST), []
    run_fitting = scoring.run_fitting

    def recorded(*arguments):
        read.append(arguments[-1])
        return run_fitting(*arguments)

    monkeypatch.setattr(scoring, "run_fitting", recorded)
    scored_R = scoring.row_losses(MODEL, params(), text, laid, 4 * LONGEST, mesh_of(), "run")[:, 0]
    assert set(read) == {2, LONGEST}
    np.testing.assert_allclose(scored_R, reference_nll(text, LONGEST), rtol=1e-5)


@pytest.mark.parametrize("length", [8, pytest.param(LONGEST, marks=pytest.mark.ci)])
def test_packed_rows_score_each_document_alone(length):
    """The part of a document within a part of a row is scored as a row of its own."""
    text = packed_text()
    assert text.segment_ids is not None
    rows, pieces = [], []
    parts = zip(text.targets.reshape(-1, length), text.segment_ids.reshape(-1, length), strict=True)
    for number, (targets, segments) in enumerate(parts):
        for segment in set(segments[segments != 0]):
            piece = targets[segments == segment]
            pieces.append(np.pad(piece, (0, length - len(piece))))
            rows.append(number * length // LONGEST)
    alone = dataclasses.replace(text, targets=np.array(pieces), segment_ids=None)
    expected_R = np.bincount(rows, reference_nll(alone, length), minlength=len(text.targets))
    scored_R, blind_R = (
        scoring.row_losses(MODEL, params(), rows, full(length), 4 * length, mesh_of(), "run")[:, 0]
        for rows in (text, dataclasses.replace(text, segment_ids=None))
    )
    np.testing.assert_allclose(scored_R, expected_R, rtol=1e-5)
    assert not np.allclose(blind_R, expected_R, rtol=1e-3)


def test_summary_by_hand():
    """Two rows of 4 and 2 tokens: mean 8/6, residuals +-2/3, error sqrt(2 (4/9 + 4/9)) / 6."""
    targets = np.array([[5, 5, 5, 5], [5, 5, 0, 0]], np.int32)
    text = ScoringText(targets, np.array([[3, 0, 3, 4], [1, 0, 0, 0]], np.int32), skipped=0)
    counts = measurements.count(text, windows("full", 4, 4))
    assert counts == (2, 6, 11) and measurements.count(text, windows("full", 2, 4))[0] == 3
    tokens_R = measurements.scored_tokens(text, windows("full", 4, 4))
    nll, stderr, perplexity, bits = module.summarize(np.array([6.0, 2.0]), tokens_R, counts)
    assert nll == pytest.approx(4 / 3) and stderr == pytest.approx(2 / 9)
    assert perplexity == pytest.approx(math.exp(4 / 3))
    assert bits == pytest.approx(8 / math.log(2) / 11)


def test_standard_error_is_that_of_resampled_rows():
    """Rows differ in length, with correlated tokens: an error over tokens would be 5x smaller."""
    random = np.random.default_rng(0)
    tokens_R = random.integers(1, 65, 300)
    nll_R = tokens_R * random.normal(3, 1, 300)
    targets = (np.arange(64) < tokens_R[:, None]).astype(np.int32)
    text = ScoringText(targets, targets, skipped=0)
    counts = measurements.count(text, windows("full", 64, 64))
    stderr = module.summarize(nll_R, tokens_R, counts)[1]

    without_R = (nll_R.sum() - nll_R) / (tokens_R.sum() - tokens_R)
    jackknife = math.sqrt(299 * without_R.var())
    chosen = random.integers(0, 300, (4000, 300))
    bootstrap = (nll_R[chosen].sum(axis=1) / tokens_R[chosen].sum(axis=1)).std()
    assert stderr == pytest.approx(jackknife, rel=0.02)
    assert stderr == pytest.approx(bootstrap, rel=0.06)


@pytest.mark.ci
# SWIG's types warn when sentencepiece is first imported; as an error, it crashes the interpreter.
@pytest.mark.filterwarnings("ignore:builtin type :DeprecationWarning")
def test_bytes_are_those_of_the_text_not_of_the_tokens(tmp_path, monkeypatch):
    """With SentencePiece and every document scored, the byte count equals the documents' size."""
    words = "Bäume Häuser größer   \t straßen über 東京 naïve\n".split(" ")
    random = np.random.default_rng(0)
    documents = [(f"doc/{i}", " ".join(random.choice(words, 80)).encode()) for i in range(60)]
    data_dir = str(tmp_path / "data")
    write_corpus(data_dir, documents, lambda _: None)
    held_out = sum(len(text) for path, text in documents if split_of(path) == "validation")
    seqio = pathlib.Path(importlib.util.find_spec("seqio").origin).parent
    spm = seqio / "test_data" / "sentencepiece" / "sentencepiece.model"
    monkeypatch.setattr(
        module, "row_losses", lambda *given: given[2].targets.sum(1, keepdims=True) / 9
    )
    data = TextData(data_dir, vocabulary=str(spm), construction="cut")
    sweep = LengthSweep(MODEL, "fire", data, lengths=(16, 64), position_bins=1)
    (cell,) = sweep.plan(RunModel(epath.Path("run"), "fire", "", MODEL), 1)
    found = sweep.missing_results(
        cell, Known({}, {}, {}), lambda: None, sharding.make_mesh(sweep.mesh)
    )
    rows = [scored.row for scored in found]
    assert len(rows) == 2
    for row in rows:
        assert row.bytes == held_out > row.tokens > 0
        assert row.bits_per_byte == pytest.approx(row.nll * row.tokens / math.log(2) / held_out)
        assert row.perplexity == pytest.approx(math.exp(row.nll))
        assert (row.dataset, row.construction, row.protocol) == ("embedded", "cut", "full")


@pytest.fixture
def path(tmp_path) -> epath.Path:
    return epath.Path(tmp_path) / "length_sweep.csv"
