"""Losses by position: bins against brute force, their file, and their relation to sweep rows.

The synthetic text, the tiny model and the `sweep` are those of sample_scoring.py.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath
from sample_scoring import (
    LONGEST,
    MODEL,
    SCORE,
    Sweep,
    mesh_of,
    module,
    packed_text,
    params,
    random_text,
    sweep,
)

from fire_lm.data import ScoringText
from fire_lm.errors import UserError
from fire_lm.measures import RunModel
from fire_lm.measures.length_sweep import known_in, write_result
from fire_lm.measures.position_losses import number_of_bins, position_losses, tokens_in_bins
from fire_lm.measures.protocols import windows
from fire_lm.results import PositionLoss, SweepRow, merge_table, read_table

__all__ = ["sweep"]  # a fixture
PLACE = ("run", "fire", "", 7, "c4", "validation", "concat", LONGEST)


def losses_by_brute_force(text: ScoringText, length: int) -> tuple[np.ndarray, ...]:
    """Return each token's row, index in its document's part, and nats in float64."""
    found = []
    for row, targets in enumerate(text.targets):
        segments = np.ones(LONGEST) if text.segment_ids is None else text.segment_ids[row]
        for start in range(0, LONGEST, length):
            part, ids = targets[start : start + length], segments[start : start + length]
            for segment in set(ids[part != 0]):
                alone = part[(ids == segment) & (part != 0)]
                read = np.concatenate([[0], np.resize(alone, length - 1)])[
                    None
                ]  # later tokens do not matter
                pos = np.arange(length, dtype=np.int32)[None]
                logits = APPLY({"params": params()}, read.astype(np.int32), pos)
                logits_TV = np.asarray(logits, np.float64)[0, : len(alone)]
                log_z_T = np.log(np.exp(logits_TV).sum(axis=1))
                nll_T = log_z_T - logits_TV[np.arange(len(alone)), alone]
                found += [(row, place, nll) for place, nll in enumerate(nll_T)]
    return tuple(np.array(column) for column in zip(*found, strict=True))


APPLY = jax.jit(MODEL.apply)


@pytest.mark.ci
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("length, bins", [(LONGEST, 8), (16, 4)])
def test_bins_by_brute_force(packed, length, bins):
    """The bins equal means from dumped logits and errors over rows; padding has no weight."""
    text, width = packed_text() if packed else random_text(6), length // bins
    laid = windows("full", length, LONGEST)
    nll_RP = SCORE(MODEL, params(), text, laid, 4 * length, mesh_of(), "run", bins)
    found = position_losses((*PLACE[:-1], length), nll_RP, tokens_in_bins(text, laid, bins))
    row_N, place_N, nll_N = losses_by_brute_force(text, length)
    expected = []
    for first in range(0, length, width):
        inside = (place_N >= first) & (place_N < first + width)
        if not inside.any():
            continue
        mean, rows = nll_N[inside].mean(), len(text.targets)
        excess_R = np.bincount(row_N[inside], nll_N[inside] - mean, minlength=rows)
        error = np.sqrt(rows / (rows - 1) * (excess_R**2).sum()) / inside.sum()
        expected.append((first, first + width - 1, inside.sum(), mean, error))
    assert [(one.first, one.last, one.tokens) for one in found] == [one[:3] for one in expected]
    for one, (*_, mean, error) in zip(found, expected, strict=True):
        assert (one.nll, one.nll_stderr) == (pytest.approx(mean, 1e-5), pytest.approx(error, 1e-4))
    assert sum(one.tokens for one in found) == np.count_nonzero(text.targets)


@pytest.mark.ci
def test_one_device_and_four_agree():
    laid, text = windows("full", LONGEST, LONGEST), random_text(7)
    arguments = (MODEL, params(), text, laid, 4 * LONGEST)
    one = SCORE(*arguments, mesh_of(), "run", 8)
    four = SCORE(*arguments, mesh_of(data=2, tensor=2), "run", 8)
    np.testing.assert_allclose(four, one, rtol=1e-5)
    assert one.shape == (7, 8) and len(np.unique(one.round(3))) > 20


@pytest.mark.ci
def test_bins_together_are_the_row(sweep, monkeypatch):
    """The bins cover the longest length under `full`, and their number does not change its row."""
    monkeypatch.setattr(module, "row_losses", SCORE)
    rows = sweep(position_bins=8, lengths=(16, LONGEST))
    assert {row.length for row in sweep.positions} == {LONGEST} and len(sweep.positions) == 8
    tokens = sum(row.tokens for row in sweep.positions)
    mean = sum(row.nll * row.tokens for row in sweep.positions) / tokens
    assert (tokens, mean) == (rows[1].tokens, pytest.approx(rows[1].nll, rel=1e-12))
    for bins in (0, 1):
        other = Sweep()
        (again,) = other(lengths=(LONGEST,), position_bins=bins)
        assert len(other.positions) == bins and again.nll == pytest.approx(rows[1].nll, 1e-6)
    with pytest.raises(UserError, match="length_sweep.position_bins is -1: it must be 0 or more"):
        sweep(position_bins=-1)


class Killed(Exception):
    """Simulates kill -9: no message and no cleanup."""


def test_killed_between_the_files(sweep, tmp_path, monkeypatch):
    """Text and positions were written but their row was not: it is added, and they remain."""
    folder = epath.Path(tmp_path) / "run"
    folder.mkdir()
    run_model = RunModel(folder, "fire", "", MODEL)

    def die(path: epath.Path, kind: type, rows: list[SweepRow], **settings: Any) -> None:
        if kind is SweepRow and rows[0].length == LONGEST:
            raise Killed
        merge_table(path, kind, rows, **settings)

    def again() -> None:
        sweep(
            lengths=(8, LONGEST),
            known=known_in(run_model),
            on_scored=lambda scored: write_result(folder, scored, lambda: None),
        )

    with monkeypatch.context() as patched:
        patched.setattr(module, "merge_table", die)
        with pytest.raises(Killed):
            again()
    whole = (folder / "position_losses.csv").read_text()
    assert whole.count("\n") == 1 + LONGEST and sweep.computed == [8, LONGEST]
    again()
    assert [row.length for row in read_table(folder / "length_sweep.csv", SweepRow)] == [8, LONGEST]
    assert (folder / "position_losses.csv").read_text() == whole
    assert len(set(known_in(run_model).texts.values())) == 1
    again()
    assert sweep.computed == [8, LONGEST, LONGEST]


def test_a_file_that_lacks_them_gets_them(sweep, capsys):
    """Only the longest length is scored again, with one message; no row is written twice."""
    sweep(position_bins=0)
    assert sweep.positions == []
    sweep.computed.clear()
    assert sweep() == [] and sweep.computed == [LONGEST] and len(sweep.positions) == LONGEST
    told = capsys.readouterr().out
    assert told.count("run@7 at length 32 is scored again to write position_losses.csv\n") == 1
    assert sweep(position_bins=4) == [] and sweep.computed == [LONGEST], "they stay in their bins"


def test_those_of_another_text_are_refused(sweep):
    """This happens if only length_sweep.csv was moved away."""
    sweep()
    sweep.rows.clear()
    with pytest.raises(
        UserError, match="position_losses.csv has run@7 at length 32, scored on another"
    ):
        sweep(tokens=33 * LONGEST)


def test_other_protocols_have_none(sweep):
    sweep(protocols=("sliding",), stride=8)
    assert sweep.positions == []


def bin_rows(bins: int, step: int = 7) -> list[PositionLoss]:
    random = np.random.default_rng(bins)
    nll = random.random((3, bins))
    place = (*PLACE[:3], step, *PLACE[4:])
    return position_losses(place, nll, np.full(nll.shape, LONGEST // bins))


def test_two_writers_of_other_bins(tmp_path):
    """The bins written first remain complete; rows are ordered by step, whoever writes later."""
    path = epath.Path(tmp_path) / "position_losses.csv"
    merge_table(path, PositionLoss, bin_rows(4, step=20))
    merge_table(path, PositionLoss, bin_rows(8, step=20))
    assert merge_table(path, PositionLoss, bin_rows(2, step=10)) == [
        *bin_rows(2, step=10),
        *bin_rows(4, step=20),
    ]
    other = [dataclasses.replace(row, variant="yarn-4x") for row in bin_rows(4, step=20)]
    assert len(merge_table(path, PositionLoss, other)) == 10


def test_bins_divide_the_length():
    cases = [(8192, 128, 128), (64, 128, 64), (3000, 128, 125), (127, 64, 1), (12, 5, 4)]
    for length, most, bins in cases:
        assert number_of_bins(length, most) == bins and length % bins == 0
