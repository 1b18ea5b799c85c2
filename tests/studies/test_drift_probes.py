"""The study of why FIRE drifts (scripts/studies), and what docs/frozen_normaliser.md says of it."""

import functools
from pathlib import Path

import drift_figure
import drift_probes
import jax
import jax.numpy as jnp
import numpy as np
import page_parts
import pytest
from probe_rows import FOLDER, PartRow

from fire_lm.errors import UserError
from fire_lm.positions.fire import FIRE

T = drift_figure.TRAINED
AGAIN = "run .venv/bin/python scripts/studies/drift_figure.py"
own = functools.cache(drift_figure.rows)


def test_parts_of_the_bias_are_exchanged_at_the_training_length_alone():
    sizes = {"num_heads": 2, "head_dim": 4, "train_length": 8, "hidden_size": 8}
    encoding = FIRE(**sizes, hidden_layers=0)  # f is affine, which compiles fast
    params = encoding.init(jax.random.key(0))
    positions_1T = jnp.arange(32)[None]

    def bias_NTS(of: FIRE) -> np.ndarray:
        found = np.array(of.bias(params, positions_1T, positions_1T, 32))[0]
        return np.where(np.tri(32, dtype=bool), found, 0.0)

    plain, limited = bias_NTS(encoding), bias_NTS(drift_probes.frozen(encoding))
    distance_TS = np.arange(32)[:, None] - np.arange(32)
    for near, far in ((plain, limited), (limited, plain)):
        names = ("fire", "frozen") if near is plain else ("frozen", "fire")
        mixed = bias_NTS(drift_probes.parts(encoding, *names))
        np.testing.assert_array_equal(mixed, np.where(distance_TS < 8, near, far))
    changed_NT = np.abs(plain - limited).max(axis=-1)
    assert changed_NT[:, :8].max() == 0 and changed_NT[:, 8:].min() > 1e-4


def test_a_lead_is_over_all_other_distances():
    bias_ND = np.array([[0.0, 2.0, 1.5, -1.0], [3.0, 1.0, 0.0, -2.0]])
    found = drift_probes.Biases({4: bias_ND}, {})
    np.testing.assert_allclose(found.lead_N(4, np.array([1, 0])), [0.5, 2.0])
    np.testing.assert_allclose(found.lead_N(4, np.array([2, 3])), [-0.5, -5.0])


def test_costs_are_those_of_exchanging_one_part():
    losses = {("frozen", "frozen"): 1.0, ("fire", "frozen"): 1.3, ("frozen", "fire"): 1.1}
    losses["fire", "fire"] = 1.5
    rows = [PartRow("a", 10, *parts, 256, loss) for parts, loss in losses.items()]
    (found,) = drift_figure.costs(rows).values()
    assert {name: value[0] for name, value in found.items()} == pytest.approx(
        {"near keys": 0.3, "far keys": 0.1, "both": 0.5}
    )


def test_the_page_has_the_numbers_of_the_probes():
    part = page_parts.part(drift_figure.PAGE, "drift_figure.py")
    assert part == drift_figure.part_of_page(*own()), AGAIN


def test_what_the_page_says_of_the_probes():
    heads, parts, curves = own()
    words = " ".join((page_parts.DOCS / drift_figure.PAGE).read_text().split())
    assert "**Almost all of the drift comes from near keys.**" in words
    for cost in (c for (_, n), c in drift_figure.costs(parts).items() if n > T):
        for near, far, both in zip(*cost.values(), strict=True):
            assert near > 0.9 * both and far < 0.15 * both
    local = drift_figure.local_heads(heads)
    few, many = sorted({row.tokens for row in heads})[:2]
    assert "With more training, more heads learn a distance of their own" in words
    assert "three seeds at 1.0M tokens; two of FIRE and one of KERPLE at 4.1M" in words
    runs: dict[tuple[str, int], set[str]] = {}
    for row in heads:
        runs.setdefault((row.encoding, row.tokens), set()).add(row.run)
    seeds = {arm: len(own) for arm, own in runs.items() if arm[1] in (few, many)}
    assert seeds == {
        ("fire", few): 3,
        ("kerple_log", few): 3,
        ("fire", many): 2,
        ("kerple_log", many): 1,
    }
    share = drift_figure.share_of_local_heads(heads)
    assert np.mean(share["FIRE", many]) > np.mean(share["FIRE", few])
    lead = drift_figure.over_seeds(local, lambda row: row.lead)
    assert "has lost its lead" in words
    assert np.mean(lead["FIRE", many, T]) > 0 > np.mean(lead["FIRE", many, 4 * T])
    assert "biases get steeper" in words
    steep = drift_figure.over_seeds(heads, lambda row: row.range)
    assert np.mean(steep["FIRE", many, T]) > np.mean(steep["FIRE", few, T])
    assert "the stretch itself does not grow" in words
    stretch = drift_figure.over_seeds(heads, lambda row: row.stretch)
    assert np.mean(stretch["FIRE", many, 4 * T]) <= np.mean(stretch["FIRE", few, 4 * T])
    assert {row.tokens for row in curves} == {max(row.tokens for row in heads)}


def test_the_largest_bias_moves_as_the_formula_says():
    """psi(d') / psi(n) = psi(d) / psi(T), if the bias has one peak and both are beyond L."""
    local = [row for row in drift_figure.local_heads(own()[0]) if not row.variant]
    trained = {(r.run, r.layer, r.head): r.peak for r in local if r.length == T}
    for row in local:
        before = trained[row.run, row.layer, row.head]
        expected = np.expm1(row.stretch * np.log1p(row.c * before)) / row.c
        assert row.peak == pytest.approx(expected, rel=0.03), row


@pytest.mark.ci
def test_the_figure_is_that_of_the_probes():
    image = drift_figure.draw(*own())
    assert (FOLDER / Path(drift_figure.FIGURE).name).read_text() == image.svg, AGAIN


def test_what_cannot_be_probed_is_refused(monkeypatch):
    monkeypatch.setattr(drift_probes, "open_run", lambda path: path)
    with pytest.raises(UserError, match="usage: drift_probes.py RUN"):
        drift_probes.opened([])
    with pytest.raises(UserError, match="two runs are named grid/fire-seed0"):
        drift_probes.opened(["a/grid/fire-seed0", "b/grid/fire-seed0"])
    assert drift_probes.opened(["a/x", "a/y"]) == {"a/x": "a/x", "a/y": "a/y"}
