"""Which rows a sweep computes, keeps, refuses and skips."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from etils import epath
from sample_scoring import LONGEST, MODEL, SCORE, VOCAB, Sweep, module, params, random_text, sweep

from fire_lm.data import NoText, ScoringText, TextData
from fire_lm.errors import RunFailed, UserError
from fire_lm.measures import text_choice
from fire_lm.measures.readable_lengths import check_rows
from fire_lm.models import Decoder
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.learned import Learned
from fire_lm.positions.resampling import RandomizedPositions
from fire_lm.positions.rope import RoPE
from fire_lm.positions.rope_scaling import YaRN
from fire_lm.positions.xpos import XPos
from fire_lm.results import SweepRow, Texts, ranked_steps, read_table, write_table

__all__ = ["sweep"]  # fixtures


@pytest.mark.ci
def test_every_length_scores_the_same_text(sweep, monkeypatch):
    """A model that ignores its input has the same loss, error and budget at every length.

    They equal those that numpy computes from the same tokens. The text itself is 32 complete rows.
    """
    bias_D = jax.random.normal(jax.random.key(1), (16,)) / 4
    blind = params() | {"final_norm": {"scale": jax.numpy.zeros(16), "bias": bias_D}}
    sweep.weights = blind
    monkeypatch.setattr(module, "row_losses", SCORE)
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
    """They are refused even at lengths not requested again, and before anything is computed."""
    sweep(lengths=(16, LONGEST))
    for again in ({}, {"lengths": (8,)}, {"step": 8}, {"variant": "yarn"}):
        with pytest.raises(UserError, match="run@7 at length 16, scored on another text"):
            sweep(tokens=33 * LONGEST, **again)
    assert sweep.computed == [16, LONGEST]
    assert sweep(tokens=33 * LONGEST, lengths=(8,), protocols=("sliding",), stride=8)
    assert sweep(tokens=33 * LONGEST, lengths=(8,), run="other")


def test_equal_counts_do_not_make_a_text_the_same(sweep, monkeypatch):
    """Two lengths of the quick start's text once gave rows of equal counts of tokens and bytes."""
    (first,) = sweep(lengths=(8,))

    def other_text(data, *, length, num_sequences, split):
        text = random_text(num_sequences, seed=num_sequences)
        return dataclasses.replace(text, targets=text.targets % (VOCAB - 1) + (text.targets > 0))

    monkeypatch.setattr(text_choice, "read_scoring_text", other_text)
    other = Sweep()(lengths=(16,))[0]
    assert (other.tokens, other.bytes) == (first.tokens, first.bytes), "counts cannot tell them"
    with pytest.raises(UserError, match="scored on another text"):
        sweep(lengths=(16,))


def test_rows_that_do_not_say_their_text_stay(sweep):
    old = sweep(lengths=(8,))
    sweep.texts.clear()
    sweep.positions.clear()
    for length in (16, LONGEST):
        (new,) = sweep(lengths=(length,))
        assert Texts(sweep.texts).of(new) and not Texts(sweep.texts).of(old[0])


@pytest.mark.parametrize("setting", ["tokens", "tokens_per_batch"])
def test_a_budget_of_nothing_is_refused(sweep, setting):
    with pytest.raises(UserError, match=f"length_sweep.{setting} is 0: it must be 1 or more"):
        sweep(**{setting: 0})


@pytest.mark.parametrize("lengths", [(), (1,), (8, 2 * LONGEST)])
def test_lengths_that_cannot_be_scored(sweep, lengths):
    with pytest.raises(UserError, match="EVAL_LENGTHS"):
        sweep(lengths=lengths)


def test_lengths_need_not_divide_a_row(sweep):
    """24 and 12 do not divide 32, but score the same tokens and bytes.

    The same is true of 24,576 and 3,072 in 32,768.
    """
    rows = sweep(lengths=(12, 24, LONGEST))
    assert len({(row.tokens, row.bytes, Texts(sweep.texts).of(row)) for row in rows}) == 1
    text = random_text(32, seed=32)
    assert rows[0].tokens == np.count_nonzero(text.targets)
    assert sum(row.tokens for row in sweep.positions) == rows[0].tokens


def test_positions_that_depend_on_the_length_are_refused_in_packed_rows(sweep):
    """A document would have the first positions of the row, instead of some over the full range."""
    packed = TextData("nowhere", construction="packed")
    for evaluation in ("even", "random"):
        model = MODEL.clone(resampling=RandomizedPositions(64, evaluation))
        with pytest.raises(UserError, match="run: in packed rows, documents cannot have positions"):
            sweep(model=model, data=packed)
        assert sweep(model=model, run=evaluation)
    plain = MODEL.clone(resampling=RandomizedPositions(64, "plain"))
    assert sweep(model=plain, data=packed, run="plain")


def test_short_documents_are_not_stretched_by_their_rows(sweep):
    """Interpolation is by the length of the input, which is that of the row."""

    def model(encoding: PositionalEncoding) -> Decoder:
        return MODEL.with_encodings((encoding,))

    sizes = {"num_heads": 2, "head_dim": 8, "train_length": 8, "hidden_size": 16}
    followed = model(RoPE(**sizes, scaling=YaRN()))
    packed, cut = (TextData("nowhere", construction=name) for name in ("packed", "cut"))
    with pytest.raises(UserError, match="run: RoPE follows the length of the input, but rows"):
        sweep(model=followed, data=packed)
    assert sweep(model=model(RoPE(**sizes, scaling=YaRN(factor=2.0))), data=packed, run="fixed")
    assert sweep(model=model(XPos(**sizes)), data=packed, run="xpos")
    with pytest.raises(UserError, match="contain shorter documents with CONSTRUCTION=cut"):
        check_rows(followed, cut, 9, "run")
    check_rows(followed, cut, 8, "run")
    assert sweep(model=followed, run="concat")


LEARNED = MODEL.with_encodings((Learned(2, 8, train_length=8, hidden_size=16),))


def test_lengths_that_the_model_cannot_read_are_left_out(sweep, capsys):
    """The text stays that of all other runs: rows of the longest requested length."""
    others = {row.length: row for row in sweep(run="fire")}
    capsys.readouterr()
    (learned,) = sweep(run="learned", model=LEARNED)
    told = capsys.readouterr().out
    assert told.startswith("learned is not scored at lengths 16, 32: length 16 is beyond the 8")
    assert dataclasses.replace(learned, run="fire") == others[8] and learned.tokens > 100
    assert {(row.run, row.length) for row in sweep.positions} == {("fire", LONGEST), ("learned", 8)}
    with pytest.raises(UserError, match="(?s)run at length 16: .*lower EVAL_LENGTHS or exclude"):
        sweep(model=LEARNED, lengths=(16, LONGEST))


@pytest.fixture
def short_text(sweep, monkeypatch) -> Sweep:
    """Return a sweep whose text has rows of 16 tokens but none of 32."""

    def text(data, *, length, **_):
        if length > 16:
            return NoText(f"no row of {length}")
        whole = random_text(12)
        return ScoringText(whole.targets[:, :length], whole.byte_counts[:, :length], skipped=0)

    monkeypatch.setattr(text_choice, "read_scoring_text", text)
    return sweep


def test_a_length_without_text_has_a_row_without_numbers(short_text, capsys):
    rows = short_text()
    assert "the validation split of c4 has too little text for length 32: the results are left" in (
        capsys.readouterr().out
    )
    assert [(row.length, row.tokens > 100) for row in rows] == [(8, True), (16, True), (32, False)]
    assert rows[0].tokens == rows[1].tokens and short_text.computed == [8, 16]
    gap = rows[-1]
    assert (gap.sequences, gap.tokens, gap.bytes) == (0, 0, 0)
    assert np.isnan([gap.nll, gap.nll_stderr, gap.perplexity, gap.bits_per_byte]).all()
    assert {row.length for row in short_text.positions} == {16}
    assert short_text() == [] and short_text.computed == [8, 16], "nor is it tried again"
    with pytest.raises(UserError, match="too little text for length 32: it yields rows of 16"):
        short_text(lengths=(LONGEST,))


def test_a_gap_is_read_back_and_does_not_rank(short_text, path):
    write_table(path, SweepRow, rows := short_text())
    assert [row.key for row in read_table(path, SweepRow)] == [row.key for row in rows]
    found = read_table(path, SweepRow)
    assert math.isnan(found[-1].nll) and found[:-1] == rows[:-1]
    short_text.rows = found
    assert short_text() == []
    better = [dataclasses.replace(row, step=9, nll=row.nll - 1) for row in found]
    assert ranked_steps([*found, *better]) == [9, 7] and ranked_steps([found[-1]]) == []


def test_a_loss_that_is_not_finite_is_no_result(sweep, monkeypatch):
    monkeypatch.setattr(module, "row_losses", lambda *_: np.full((32, 1), np.nan))
    written = []
    with pytest.raises(RunFailed, match="run@7: the loss at length 8 is nan"):
        sweep(on_scored=written.append)
    assert written == []


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
    assert read_table(path, SweepRow) == []
    write_table(path, SweepRow, ROWS)
    assert path.read_text().splitlines()[0] == COLUMNS
    assert read_table(path, SweepRow) == ROWS
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert ROWS[0].key == ("a, b", "fire", "", 100, "c4", "validation", "concat", "full", 64)


def test_a_last_line_cut_short_is_left_out(path):
    """No truncated value is taken for a complete one, wherever the line is cut."""
    write_table(path, SweepRow, ROWS)
    whole = path.read_text()
    for end in range(len(whole)):
        path.write_text(whole[:end])
        complete = whole[:end].count("\n")
        assert read_table(path, SweepRow) == ROWS[: max(0, complete - 1)]


@pytest.mark.parametrize(
    "whole, damaged, message",
    [
        ("nll_stderr", "stderr", "does not have the columns"),
        ("bits_per_byte", "bits_per_byte,more", "does not have the columns"),
        (",512,", ",many,", "damaged"),
        (",512,", ",", "damaged"),
    ],
)
def test_a_foreign_or_damaged_result_file_is_not_read(path, whole, damaged, message):
    write_table(path, SweepRow, ROWS)
    path.write_text(path.read_text().replace(whole, damaged))
    with pytest.raises(RunFailed, match=message):
        read_table(path, SweepRow)
