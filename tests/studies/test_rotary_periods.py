"""Rotary periods compared with the training length, and the report's section on them."""

import dataclasses

import numpy as np
import pytest
from rotary_periods import dims_that_fit, sections
from sample_results import facts

from fire_lm.positions.rope import RoPE
from fire_lm.positions.rope_scaling import PositionInterpolation
from fire_lm.positions.xpos import XPos
from fire_lm.reporting.page import Picture, Table
from fire_lm.results.folder import Results
from fire_lm.results.tables import RotaryPeriod

LLAMA_2 = {"num_heads": 40, "head_dim": 128, "train_length": 4096, "hidden_size": 5120}


@pytest.mark.parametrize("base, fit", [(10_000.0, 92), (500.0, 128)])
def test_dims_whose_period_fits_as_the_source_counts_them(base, fit):
    periods = RoPE(**LLAMA_2, base=base).periods()
    np.testing.assert_allclose(periods, [2 * np.pi * base ** (2 * i / 128) for i in range(64)])
    assert dims_that_fit(periods, 4096) == fit


def test_xpos_rotates_as_rope_does():
    np.testing.assert_allclose(XPos(**LLAMA_2).periods(), RoPE(**LLAMA_2).periods())


def test_interpolation_stretches_the_periods_it_is_trained_with():
    """At the training length, nothing is interpolated unless a factor is fixed."""
    plain = RoPE(**LLAMA_2).periods()
    np.testing.assert_allclose(RoPE(**LLAMA_2, scaling=PositionInterpolation()).periods(), plain)
    fixed = RoPE(**LLAMA_2, scaling=PositionInterpolation(factor=4.0)).periods()
    np.testing.assert_allclose(fixed, 4 * plain)


def test_a_report_counts_the_dims_of_each_arm():
    runs = [facts(encoding, seed) for encoding in ("rope", "alibi") for seed in (0, 1)]
    runs = [dataclasses.replace(run, train_length=40) for run in runs]
    periods = [
        RotaryPeriod(f"rope-seed{seed}", "rope", pair, 2 * np.pi * 10.0**pair)
        for seed in (0, 1)
        for pair in range(3)
    ]
    (section,) = sections(Results(runs=runs, periods=periods))
    picture, table = section.parts
    assert isinstance(picture, Picture) and "rope: 2 of 6 dims fit" in picture.alt
    assert isinstance(table, Table)
    assert table.rows == [["rope", "6", "6.3 to 628", "40", "2"]]
    assert sections(Results(runs=runs)) == []
