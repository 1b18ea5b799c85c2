"""scripts/draw_biases: the curves are the encodings' biases, and the picture contains them."""

import subprocess
from pathlib import Path

import draw_biases
import numpy as np
import pytest
from bias_figure import LOWEST, figure
from etils import epath
from matplotlib import pyplot

from fire_lm.positions.alibi import alibi_slopes

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "draw_biases"
NAMES = (
    *("alibi", "fire", "fire_g", "fire_s", "kerple_log", "learned", "nope", "rope", "sinusoidal"),
    "fire_and_rope",
)
TITLES = ["fire, fire_s" if name == "fire" else name for name in NAMES[:-1] if name != "fire_s"]

SHORT, FAR, HEADS = draw_biases.TRAIN_LENGTH, draw_biases.FAR_LENGTH, list(draw_biases.HEADS)


@pytest.fixture(scope="module")
def panels():
    """Return the panels by title."""
    return {panel.title: panel for panel in draw_biases.panels(NAMES)}


@pytest.mark.ci
def test_equal_encodings_share_a_panel_and_a_schedule_repeats_none(panels):
    assert sorted(panels) == sorted(TITLES)
    alone = [panel.title for panel in draw_biases.panels(["fire_and_rope", "fire"])]
    assert alone == ["fire", "fire_and_rope: RoPE"]


@pytest.mark.ci
def test_curves_are_the_encodings_own(panels):
    slope_N1 = alibi_slopes(12)[HEADS][:, None]
    np.testing.assert_allclose(panels["alibi"].near_NS, -slope_N1 * np.arange(SHORT), rtol=1e-6)
    np.testing.assert_allclose(panels["alibi"].far_NS, -slope_N1 * np.arange(FAR), rtol=1e-6)

    theta_K = 10_000.0 ** (-np.arange(32) / 32)
    waves_S = 2 * np.cos(np.arange(FAR)[:, None] * theta_K).sum(axis=1) / np.sqrt(64)
    np.testing.assert_allclose(panels["rope"].far_NS, waves_S[None], atol=1e-4)
    with pytest.raises(AssertionError):  # a base of 500,000 would be noticed
        other = next(iter(draw_biases.panels(["rope_base_500k"])))
        np.testing.assert_allclose(other.far_NS, waves_S[None], atol=1e-4)

    # |PE|^2 is D / 2; the dot product by distance is the same for every query.
    sines_S = np.cos(np.arange(FAR)[:, None] * 10_000.0 ** (-np.arange(384) / 384)).sum(axis=1)
    np.testing.assert_allclose(panels["sinusoidal"].far_NS, sines_S[None], atol=1e-2)
    assert not np.any(panels["nope"].far_NS)
    assert panels["learned"].far_NS is None and panels["learned"].near_NS.shape == (1, SHORT)
    quantities = [panels[name].quantity for name in ("alibi", "rope", "sinusoidal", "nope")]
    assert len(set(quantities)) == 4


@pytest.mark.ci
def test_only_what_depends_on_the_query_differs_beyond_the_training_length(panels):
    def apart(title: str) -> float:
        panel = panels[title]
        return float(np.abs(panel.far_NS[:, :SHORT] - panel.near_NS).max())

    assert apart("kerple_log") < 1e-5 and apart("alibi") == 0
    assert apart("fire, fire_s") > 0.01 and apart("fire_g") > 0.01
    fire, fire_g = panels["fire, fire_s"], panels["fire_g"]
    assert np.abs(fire_g.far_NS - fire.far_NS).max() > 0.1
    # A query's gain is one factor for all its keys.
    gain = fire_g.far_NS / fire.far_NS
    np.testing.assert_allclose(gain, gain[0, 0], rtol=1e-3)


@pytest.mark.ci
def test_figure_draws_each_panel(panels, tmp_path, monkeypatch):
    close = pyplot.close
    monkeypatch.setattr(pyplot, "close", lambda drawing: None)
    path = epath.Path(tmp_path) / "biases.png"
    figure(list(panels.values()), HEADS, path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    by_title = {axes.get_title(loc="left"): axes for axes in pyplot.gcf().axes if axes.axison}
    assert sorted(by_title) == sorted(TITLES)
    for title, axes in by_title.items():
        panel = panels[title]
        assert axes.get_title(loc="right") == panel.quantity
        far = [] if panel.far_NS is None else list(panel.far_NS)
        *curves, training_length = axes.lines
        assert list(training_length.get_xdata()) == [SHORT, SHORT]
        for line, values in zip(curves, [*panel.near_NS, *far], strict=True):
            np.testing.assert_array_equal(line.get_xdata(), np.arange(len(values)))
            np.testing.assert_array_equal(line.get_ydata(), values)
        assert {line.get_linestyle() for line in curves} == ({"-", "--"} if far else {"-"})
    assert by_title["alibi"].get_ylim()[0] == pytest.approx(LOWEST, rel=0.1)
    legend = [text.get_text() for text in pyplot.gcf().legends[0].get_texts()]
    assert [f"head {head}" for head in HEADS] == legend[-len(HEADS) :]
    close("all")


def test_an_unknown_name_is_refused_in_one_line():
    done = subprocess.run([SCRIPT, "fier"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1 and "configs/positions/fier.gin" in done.stderr


def test_usage():
    done = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "usage: scripts/draw_biases" in done.stdout


@pytest.mark.ci
def test_gates_and_wider_queries_have_curves():
    fox, pope, both = draw_biases.panels(["fox", "pope", "fox_fire"])
    np.testing.assert_allclose(fox.far_NS[0], -np.log(2) * np.arange(FAR), rtol=1e-5)
    assert pope.quantity == "q·k/√H of ones"
    theta_K = 10_000.0 ** (-np.arange(64) / 64)
    waves_S = np.cos(np.arange(FAR)[:, None] * theta_K).sum(axis=1) / np.sqrt(64)
    np.testing.assert_allclose(pope.far_NS[0], np.log1p(np.e) ** 2 * waves_S, atol=1e-3)
    gates_S = -np.log1p(np.exp(-5)) * np.arange(FAR)
    bias_NS = next(iter(draw_biases.panels(["fire"]))).far_NS
    assert both.far_NS.shape == bias_NS.shape and np.all(both.far_NS[:, -1] < gates_S[-1] / 2)
