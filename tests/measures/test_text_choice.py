"""The text that a sweep scores: the budget decides its rows, which are shorter in a short text."""

import dataclasses

import numpy as np
import pytest

from fire_lm.data import NoText, ScoringText, TextData
from fire_lm.errors import UserError
from fire_lm.measures import text_choice
from fire_lm.measures.masked_accuracy import SETTINGS as OF_MASKED
from fire_lm.measures.text_choice import (
    OF_SWEEP,
    check_reach,
    choose_text,
    read_text,
    row_length,
    text_hash,
)


@pytest.mark.parametrize(
    "tokens, construction, row",
    [
        (131_072, "concat", 4096),
        (2**21, "packed", 65_536),
        (2**21, "cut", 16_384),
        (131_072, "long_documents", 1024),
        (2080, "concat", 64),
        (5, "concat", 2),
    ],
)
def test_a_row_is_a_power_of_two_by_the_budget(tokens, construction, row):
    assert row_length(tokens, construction) == row


@pytest.fixture
def text_of(monkeypatch):
    """Return a function that sets the size of the split and returns a log of the lengths tried."""
    tried: list[int] = []

    def of(total: int) -> list[int]:
        def read(data, *, length, num_sequences, split):
            tried.append(length)
            rows = min(total // length, num_sequences)
            if not rows:
                return NoText(f"no row of {length}")
            return ScoringText(*[np.ones((rows, length), np.int32)] * 2, skipped=0)

        monkeypatch.setattr(text_choice, "read_scoring_text", read)
        return tried

    return of


@pytest.mark.parametrize(
    "total, shape, attempts",
    [
        (10**6, (32, 4096), 1),
        (50_000, (12, 4096), 1),
        (20_000, (9, 2048), 2),
        (3000, (11, 256), 3),
        (1000, (15, 64), 5),
        (100, (1, 64), 7),
    ],
)
def test_a_short_text_has_shorter_rows(text_of, total, shape, attempts):
    """There are at least eight rows, if the text has enough tokens."""
    tried = text_of(total)
    text = choose_text(TextData("here"), 131_072, "validation")
    assert text.targets.shape == shape and len(tried) == attempts


@pytest.mark.parametrize(
    "construction, there, rows",
    [("cut", 10**6, 1337), ("cut", 500, 500), ("packed", 10**6, 336), ("concat", 10**6, 32)],
)
def test_padding_does_not_count_towards_the_budget(monkeypatch, construction, there, rows):
    """Every tenth position holds a token; `concat` never asks for more rows."""
    tried = []

    def read(data, *, length, num_sequences, split):
        tried.append(num_sequences)
        targets = np.zeros((min(there, num_sequences), length), np.int32)
        targets[:, ::10] = 1
        return ScoringText(targets, targets, skipped=0)

    monkeypatch.setattr(text_choice, "read_scoring_text", read)
    text = choose_text(TextData("here", construction=construction), 131_072, "validation")
    assert len(text.targets) == rows and len(tried) <= 2
    enough = np.count_nonzero(text.weights) >= 131_072
    assert enough == (there > 500 and construction != "concat")


def test_no_text_is_told(text_of):
    text_of(1)
    with pytest.raises(NoText, match="no row of"):
        choose_text(TextData("here"), 131_072, "validation")


def test_a_length_beyond_the_rows_names_the_budget_that_reaches_it():
    data = TextData("here")
    check_reach((64, 4096), 131_072, data)
    with pytest.raises(UserError, match="longer than a row of text.* rows of 4,096") as error:
        check_reach((64, 6144), 131_072, data)
    assert "--gin.length_sweep.tokens=262144 or more" in str(error.value)
    check_reach((64, 6144), 262_144, data)


@pytest.mark.parametrize("settings, flag", [(OF_SWEEP, "EVAL_LENGTHS"), (OF_MASKED, "--lengths")])
def test_lengths_beyond_all_rows_name_the_flag_that_sets_them(monkeypatch, settings, flag):
    ids = np.ones((5, 40), np.int32)
    text = ScoringText(ids, ids, skipped=0)
    monkeypatch.setattr(text_choice, "read_scoring_text", lambda *_, **__: text)
    with pytest.raises(UserError, match=f"set {flag} to 40 or less"):
        read_text(TextData("here"), "mine", (80,), 200, "validation", settings)


def test_the_identity_is_of_ids_rows_and_segments():
    ids = np.arange(1, 65, dtype=np.int32).reshape(2, 32)
    text = ScoringText(ids, ids, skipped=0)
    other = [
        dataclasses.replace(text, targets=ids.reshape(4, 16)),
        dataclasses.replace(text, targets=ids[::-1]),
        dataclasses.replace(text, targets=ids * (ids != 64)),
        dataclasses.replace(text, segment_ids=ids // 8),
        dataclasses.replace(text, segment_ids=ids // 16),
    ]
    assert len({text_hash(one) for one in (text, *other)}) == 6
    assert text_hash(dataclasses.replace(text, skipped=3, unknown=0.5)) == text_hash(text)
    assert text_hash(dataclasses.replace(text, targets=ids.astype(np.int64))) == text_hash(text)
