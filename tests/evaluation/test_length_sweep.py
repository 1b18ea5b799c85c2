"""The length sweep: same text at every length, the right loss, its error, and its result file.

Synthetic text and tiny models; `test_cli.py` has the sweep of real runs.
"""

import dataclasses
import functools
import importlib.util
import math
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath

from fire_lm import sharding
from fire_lm.data import NoText, ScoringText, TextData
from fire_lm.data.corpora.embedded import split_of, write_corpus
from fire_lm.errors import RunFailed, UserError
from fire_lm.evaluation import (
    Known,
    LengthSweep,
    Scored,
    measurements,
    score_checkpoint,
    scoring,
    text_choice,
)
from fire_lm.evaluation.position_losses import tokens_in_bins
from fire_lm.evaluation.protocols import Windows, windows
from fire_lm.models import Decoder, size_tiny
from fire_lm.positions.fire import FIRE
from fire_lm.positions.learned import Learned
from fire_lm.positions.resampling import RandomizedPositions
from fire_lm.results import (
    PositionLoss,
    ScoredText,
    SweepRow,
    Texts,
    ranked_steps,
    read_rows,
    write_rows,
)

module = importlib.import_module("fire_lm.evaluation.length_sweep")

VOCAB = 32
LONGEST = 32
BUDGET = 32 * LONGEST + 5  # read in rows of LONGEST
SCORE = scoring.score


SIZE = size_tiny(num_layers=2, hidden_size=16, num_heads=2, head_dim=8, mlp_size=32, init_std=1)
MODEL = Decoder(SIZE, (FIRE(2, 8, train_length=8, hidden_size=16),), VOCAB)
TOKEN_BT = np.zeros((1, 1), np.int32)


@functools.cache
def params() -> Any:
    """Not at import: every worker would compile it while it collects the tests."""
    return jax.jit(MODEL.init)(jax.random.key(0), TOKEN_BT, TOKEN_BT)["params"]


def full(length: int) -> Windows:
    return windows("full", length, LONGEST)


def random_text(rows: int, seed: int = 0) -> ScoringText:
    """Rows as `cut` makes them: some are padded at the end, one has a single token."""
    random = np.random.default_rng(seed)
    targets = random.integers(1, VOCAB, (rows, LONGEST)).astype(np.int32)
    tokens = random.integers(1, LONGEST + 1, rows)
    tokens[:3] = [LONGEST, LONGEST - 5, 1][:rows]
    targets[np.arange(LONGEST) >= tokens[:, None]] = 0
    byte_counts = random.integers(0, 8, targets.shape).astype(np.int32) * (targets != 0)
    return ScoringText(targets, byte_counts, skipped=0)


def mesh_of(data: int = 1, fsdp: int = 1, tensor: int = 1) -> jax.sharding.Mesh:
    devices = np.array(jax.devices()[: data * fsdp * tensor]).reshape(data, fsdp, tensor)
    return jax.sharding.Mesh(devices, sharding.AXES)


def reference_nll(text: ScoringText, length: int, pos: Any = None) -> np.ndarray:
    """Summed nats of each row in float64, where other tokens stand in for the padding."""
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
    """On one device and on four. 7 rows in batches of 4, so that the last batch is filled up; rows
    are padded too, and padding costs nothing."""
    text = random_text(7)
    mesh = mesh_of(**axes)
    placed = jax.device_put(params(), sharding.tree_shardings(params(), mesh))
    activations = jax.sharding.NamedSharding(mesh, sharding.ACTIVATIONS)
    model = MODEL.clone(activation_sharding=activations)
    scored_R = scoring.score(model, placed, text, full(length), 4 * length, mesh, "run")[:, 0]
    np.testing.assert_allclose(scored_R, reference_nll(text, length), rtol=1e-5)
    other_length = LONGEST + 8 - length
    assert not np.allclose(scored_R, reference_nll(text, other_length), rtol=1e-3)


@pytest.mark.ci
def test_tokens_stand_where_the_model_evaluates_them():
    """Evenly over 8 times the length, as RandomizedPositions.evaluation = 'even' says."""
    text, mesh = random_text(5), mesh_of()
    model = MODEL.clone(resampling=RandomizedPositions(8 * LONGEST, "even"))
    scored_R = scoring.score(model, params(), text, full(LONGEST), 4 * LONGEST, mesh, "run")[:, 0]
    even = np.arange(LONGEST) * (8 * LONGEST - 1) // (LONGEST - 1)
    np.testing.assert_allclose(scored_R, reference_nll(text, LONGEST, even), rtol=1e-5)
    assert not np.allclose(scored_R, reference_nll(text, LONGEST), rtol=1e-4)


def packed_text() -> ScoringText:
    """Rows of three to five documents, some rows padded."""
    text, random = random_text(6), np.random.default_rng(1)
    segments = np.cumsum(random.random(text.targets.shape) < 0.1, axis=1).astype(np.int32) + 1
    return dataclasses.replace(text, segment_ids=segments * (text.targets != 0))


def test_padding_is_counted(monkeypatch, capsys):
    """Where there is any; the table has no column for it."""
    targets = np.ones((5, 40), np.int32)
    for padding, told in (
        (0, ""),
        (30, "30 of the 200 places in the rows of mine are padding (15.0%)"),
    ):
        targets.ravel()[:padding] = 0
        text = ScoringText(targets, targets, skipped=0)
        monkeypatch.setattr(text_choice, "read_scoring_text", lambda *_, text=text, **__: text)
        module.read_text(TextData("here"), "mine", (40,), 200, "validation")
        said = capsys.readouterr().out
        assert said.startswith(told) and said.count("\n") == bool(told)


@pytest.mark.parametrize("length", [8, pytest.param(LONGEST, marks=pytest.mark.ci)])
def test_packed_rows_score_each_document_alone(length):
    """What of a document lies in a part of a row is scored as a row of its own."""
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
        scoring.score(MODEL, params(), rows, full(length), 4 * length, mesh_of(), "run")[:, 0]
        for rows in (text, dataclasses.replace(text, segment_ids=None))
    )
    np.testing.assert_allclose(scored_R, expected_R, rtol=1e-5)
    assert not np.allclose(blind_R, expected_R, rtol=1e-3)


@dataclasses.dataclass
class Sweep:
    """A sweep over synthetic text; collects what it finds and the lengths that it computed."""

    rows: list[SweepRow] = dataclasses.field(default_factory=list)
    texts: list[ScoredText] = dataclasses.field(default_factory=list)
    computed: list[int] = dataclasses.field(default_factory=list)
    positions: list[PositionLoss] = dataclasses.field(default_factory=list)

    def known(self) -> Known:
        texts = Texts(self.texts)
        return Known(
            {row.key: row for row in self.rows},
            texts.of_rows(self.rows),
            texts.of_all_positions(self.positions),
        )

    def __call__(self, **changes) -> list[SweepRow]:
        """The rows that this call adds."""
        new: list[SweepRow] = []

        def add(scored: Scored) -> None:
            new.extend([scored.row] if scored.row.key not in self.known().rows else [])
            self.texts.extend([scored.text] if scored.text else [])
            self.positions.extend(scored.positions)

        call: dict[str, Any] = {
            "step": 7,
            "run": "run",
            "variant": "",
            "finished": self.known(),
            "on_scored": add,
        }
        settings: dict[str, Any] = {
            "model": MODEL,
            "encoding": "fire",
            "data": TextData("nowhere"),
            "lengths": (LONGEST, 8, 16),
            "tokens": BUDGET,
            "tokens_per_batch": 64,
        }
        for name, value in changes.items():
            (call if name in call else settings)[name] = value
        score_checkpoint(LengthSweep(**settings), "", **call)
        self.rows += new
        return new


@pytest.fixture
def sweep(monkeypatch) -> Sweep:
    """In place of the model, 2 nats for every token."""
    sweep = Sweep()

    def text(data, *, length, num_sequences, split):
        assert length == LONGEST
        return random_text(num_sequences, seed=num_sequences)

    def two_nats(model, params, text, laid, batch, mesh, name, bins):
        sweep.computed.append(laid.length)
        return 2.0 * tokens_in_bins(text, laid, bins)

    monkeypatch.setattr(text_choice, "read_scoring_text", text)
    monkeypatch.setattr(module, "read_params", lambda *_: params())
    monkeypatch.setattr(module, "score", two_nats)
    return sweep


@pytest.mark.ci
def test_every_length_scores_the_same_text(sweep, monkeypatch):
    """Shown with a model that ignores its input: its loss, error and budget are equal at every
    length, and are what numpy makes of the same tokens. (The text itself: 32 whole rows.)"""
    bias_D = jax.random.normal(jax.random.key(1), (16,)) / 4
    blind = params() | {"final_norm": {"scale": jax.numpy.zeros(16), "bias": bias_D}}
    monkeypatch.setattr(module, "read_params", lambda *_: blind)
    monkeypatch.setattr(module, "score", SCORE)
    short, middle, long = sweep()
    assert [short.length, middle.length, long.length] == [8, 16, LONGEST]

    text = random_text(32, seed=32)
    logits_V = np.asarray(params()["embedding"], np.float64) @ np.asarray(bias_D, np.float64)
    nll_V = np.log(np.exp(logits_V).sum()) - logits_V
    tokens = text.targets[text.targets != 0]
    assert long.nll == pytest.approx(nll_V[tokens].mean(), rel=1e-5)
    for row in (short, middle):
        assert (row.tokens, row.bytes) == (long.tokens, long.bytes)
        assert (row.nll, row.nll_stderr) == pytest.approx((long.nll, long.nll_stderr), rel=1e-4)
    assert (long.tokens, long.bytes) == (len(tokens), text.byte_counts.sum())
    parts = [text.targets.reshape(-1, n).any(axis=1).sum() for n in (8, 16, LONGEST)]
    assert [short.sequences, middle.sequences, long.sequences] == parts


def test_finished_rows_are_not_computed_again(sweep):
    first = sweep(lengths=(8, LONGEST))
    assert sweep(lengths=(8, 16, LONGEST)) and sweep.computed == [8, LONGEST, 16]
    assert sweep(lengths=(8, 16, LONGEST)) == [] and sweep.computed == [8, LONGEST, 16]
    again = sweep(lengths=(8, LONGEST), step=8)
    assert [row.nll for row in again] == [row.nll for row in first]


def test_rows_of_another_budget_are_refused(sweep):
    """Also those at lengths that are not asked for again, and before anything is computed."""
    sweep(lengths=(16, LONGEST))
    for again in ({}, {"lengths": (8,)}, {"step": 8}, {"variant": "yarn"}):
        with pytest.raises(UserError, match="run@7 at length 16 over another text"):
            sweep(tokens=33 * LONGEST, **again)
    assert sweep.computed == [16, LONGEST]
    assert sweep(tokens=33 * LONGEST, lengths=(8,), protocols=("sliding",), stride=8)
    assert sweep(tokens=33 * LONGEST, lengths=(8,), run="other")


def test_equal_counts_do_not_make_a_text_the_same(sweep, monkeypatch):
    """As with the quick start's text, of which two lengths gave rows of equal tokens and bytes."""
    (first,) = sweep(lengths=(8,))

    def other_text(data, *, length, num_sequences, split):
        text = random_text(num_sequences, seed=num_sequences)
        return dataclasses.replace(text, targets=text.targets % (VOCAB - 1) + (text.targets > 0))

    monkeypatch.setattr(text_choice, "read_scoring_text", other_text)
    other = Sweep()(lengths=(16,))[0]
    assert (other.tokens, other.bytes) == (first.tokens, first.bytes), "counts cannot tell them"
    with pytest.raises(UserError, match="over another text"):
        sweep(lengths=(16,))


def test_rows_that_do_not_say_their_text_stay_and_are_told_once(sweep, capsys):
    old = sweep(lengths=(8,))
    sweep.texts.clear()
    sweep.positions.clear()
    module.say_once.cache_clear()
    for length in (16, LONGEST):
        (new,) = sweep(lengths=(length,))
        assert Texts(sweep.texts).of(new) and not Texts(sweep.texts).of(old[0])
    told = capsys.readouterr().out
    assert told.count("1 rows in length_sweep.csv of run do not say which text they are of") == 1


@pytest.mark.parametrize("setting", ["tokens", "tokens_per_batch"])
def test_a_budget_of_nothing_is_refused(sweep, setting):
    with pytest.raises(UserError, match=f"length_sweep.{setting} is 0: it must be 1 or more"):
        sweep(**{setting: 0})


@pytest.mark.parametrize("lengths", [(), (1,), (8, 2 * LONGEST)])
def test_lengths_that_cannot_be_scored(sweep, lengths):
    with pytest.raises(UserError, match="EVAL_LENGTHS"):
        sweep(lengths=lengths)


def test_lengths_need_not_divide_a_row(sweep):
    """24 and 12 beside 32, as 24,576 and 3,072 beside 32,768: the same tokens and bytes."""
    rows = sweep(lengths=(12, 24, LONGEST))
    assert len({(row.tokens, row.bytes, Texts(sweep.texts).of(row)) for row in rows}) == 1
    text = random_text(32, seed=32)
    assert rows[0].tokens == np.count_nonzero(text.targets)
    assert sum(row.tokens for row in sweep.positions) == rows[0].tokens


def test_a_row_of_before_that_left_tokens_out_stays_and_says_so(sweep, capsys):
    """An older version scored the first 24 of 32 tokens at length 12."""
    module.say_once.cache_clear()
    (whole,) = sweep(lengths=(12,))
    tokens = np.count_nonzero(random_text(32, seed=32).targets[:, :24])
    sweep.rows[:] = [dataclasses.replace(whole, tokens=tokens)]
    assert sweep(lengths=(12,)) == []
    left = whole.tokens - tokens
    told = capsys.readouterr().out
    assert f"full at length 12 leaves out {left} of {whole.tokens} tokens" in told


LEARNED = MODEL.clone(encodings=(Learned(2, 8, train_length=8, hidden_size=16),))


def test_lengths_that_the_model_cannot_read_are_left_out(sweep, capsys):
    """Its text is that of all others: rows of the longest length asked for, equal tokens, bytes."""
    others = {row.length: row for row in sweep(run="fire")}
    capsys.readouterr()
    (learned,) = sweep(run="learned", model=LEARNED)
    told = capsys.readouterr().out
    assert told.startswith("learned is not scored at length 16, 32: length 16 is beyond the 8")
    assert dataclasses.replace(learned, run="fire") == others[8] and learned.tokens > 100
    assert {(row.run, row.length) for row in sweep.positions} == {("fire", LONGEST), ("learned", 8)}
    with pytest.raises(UserError, match="(?s)run at length 16: .*lower EVAL_LENGTHS, or leave"):
        sweep(model=LEARNED, lengths=(16, LONGEST))


@pytest.fixture
def short_text(sweep, monkeypatch) -> Sweep:
    """Text that has rows of 16 tokens, none of 32."""

    def text(data, *, length, **_):
        if length > 16:
            return NoText(f"no row of {length}")
        whole = random_text(12)
        return ScoringText(whole.targets[:, :length], whole.byte_counts[:, :length], skipped=0)

    monkeypatch.setattr(text_choice, "read_scoring_text", text)
    return sweep


def test_a_length_without_text_has_a_row_without_numbers(short_text, capsys):
    rows = short_text()
    assert "the validation split of c4 has too little text for length 32: left blank" in (
        capsys.readouterr().out
    )
    assert [(row.length, row.tokens > 100) for row in rows] == [(8, True), (16, True), (32, False)]
    assert rows[0].tokens == rows[1].tokens and short_text.computed == [8, 16]
    gap = rows[-1]
    assert (gap.sequences, gap.tokens, gap.bytes) == (0, 0, 0)
    assert np.isnan([gap.nll, gap.nll_stderr, gap.perplexity, gap.bits_per_byte]).all()
    assert {row.length for row in short_text.positions} == {16}
    assert short_text() == [] and short_text.computed == [8, 16], "nor is it tried again"
    with pytest.raises(UserError, match="too little text for length 32: it gives rows of 16"):
        short_text(lengths=(LONGEST,))


def test_a_gap_is_read_back_and_does_not_rank(short_text, path):
    write_rows(path, rows := short_text())
    assert [row.key for row in read_rows(path)] == [row.key for row in rows]
    found = read_rows(path)
    assert math.isnan(found[-1].nll) and found[:-1] == rows[:-1]
    short_text.rows = found
    assert short_text() == []
    better = [dataclasses.replace(row, step=9, nll=row.nll - 1) for row in found]
    assert ranked_steps([*found, *better]) == [9, 7] and ranked_steps([found[-1]]) == []


def test_a_loss_that_is_not_finite_is_no_result(sweep, monkeypatch):
    monkeypatch.setattr(module, "score", lambda *_: np.full((32, 1), np.nan))
    written = []
    with pytest.raises(RunFailed, match="run@7: the loss at length 8 is nan"):
        sweep(on_scored=written.append)
    assert written == []


def test_summary_by_hand():
    """Two rows of 4 and 2 tokens: mean 8/6; residuals +-2/3; error sqrt(2 (4/9 + 4/9)) / 6."""
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
    """Rows of unequal length whose tokens go together (an error over tokens would be 5x less)."""
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
# SWIG's types warn as sentencepiece is first imported; as an error it crashes the interpreter.
@pytest.mark.filterwarnings("ignore:builtin type :DeprecationWarning")
def test_bytes_are_those_of_the_text_not_of_the_tokens(tmp_path, monkeypatch):
    """SentencePiece, every document scored: the bytes are the documents' own, to the byte."""
    words = "Bäume Häuser größer   \t straßen über 東京 naïve\n".split(" ")
    random = np.random.default_rng(0)
    documents = [(f"doc/{i}", " ".join(random.choice(words, 80)).encode()) for i in range(60)]
    data_dir = str(tmp_path / "data")
    write_corpus(data_dir, documents, lambda _: None)
    held_out = sum(len(text) for path, text in documents if split_of(path) == "validation")
    seqio = pathlib.Path(importlib.util.find_spec("seqio").origin).parent
    spm = seqio / "test_data" / "sentencepiece" / "sentencepiece.model"
    monkeypatch.setattr(module, "read_params", lambda *_: None)
    monkeypatch.setattr(module, "score", lambda *given: given[2].targets.sum(1, keepdims=True) / 9)
    rows = []
    data = TextData(data_dir, vocabulary=str(spm), construction="cut")
    score_checkpoint(
        LengthSweep(MODEL, "fire", data, lengths=(16, 64), position_bins=1),
        "",
        1,
        run="run",
        variant="",
        finished=Known({}, {}, {}),
        on_scored=lambda scored: rows.append(scored.row),
    )
    assert len(rows) == 2
    for row in rows:
        assert row.bytes == held_out > row.tokens > 0
        assert row.bits_per_byte == pytest.approx(row.nll * row.tokens / math.log(2) / held_out)
        assert row.perplexity == pytest.approx(math.exp(row.nll))
        assert (row.dataset, row.construction, row.protocol) == ("embedded", "cut", "full")


COLUMNS = (
    "run,encoding,variant,step,dataset,split,construction,protocol,length,sequences,tokens,bytes,"
    "nll,nll_stderr,perplexity,bits_per_byte"
)
ROW = SweepRow(
    *("a, b", "fire", "", 100, "c4", "validation", "concat", "full", 64),
    *(8, 512, 500, 1 / 3, 1e-17, math.exp(1 / 3), 2e300),
)
ROWS = [ROW, dataclasses.replace(ROW, run='say "x"', length=128)]


@pytest.fixture
def path(tmp_path) -> epath.Path:
    return epath.Path(tmp_path) / "length_sweep.csv"


def test_result_file_has_the_columns_of_the_contract_and_reads_back_exactly(path):
    assert read_rows(path) == []
    write_rows(path, ROWS)
    assert path.read_text().splitlines()[0] == COLUMNS
    assert read_rows(path) == ROWS
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert ROWS[0].key == ("a, b", "fire", "", 100, "c4", "validation", "concat", "full", 64)


def test_a_last_line_cut_short_is_left_out(path):
    """Wherever it was cut; no cut value may be taken for a whole one."""
    write_rows(path, ROWS)
    whole = path.read_text()
    for end in range(len(whole)):
        path.write_text(whole[:end])
        complete = whole[:end].count("\n")
        assert read_rows(path) == ROWS[: max(0, complete - 1)]


@pytest.mark.parametrize(
    "whole, damaged, message",
    [
        ("nll_stderr", "stderr", "other columns"),
        ("bits_per_byte", "bits_per_byte,more", "other columns"),
        (",512,", ",many,", "damaged"),
        (",512,", ",", "damaged"),
    ],
)
def test_a_foreign_or_damaged_result_file_is_not_read(path, whole, damaged, message):
    write_rows(path, ROWS)
    path.write_text(path.read_text().replace(whole, damaged))
    with pytest.raises(RunFailed, match=message):
        read_rows(path)
