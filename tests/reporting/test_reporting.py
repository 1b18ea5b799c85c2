"""Table and figure of a length sweep: what a reader can learn from them."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping

import numpy as np
import pytest
from etils import epath
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sample_results import facts

from fire_lm.reporting import figure
from fire_lm.reporting.length_sweep import loss_table, sweep_text, write_figure
from fire_lm.reporting.losses import loss_lines
from fire_lm.reporting.series import NATS
from fire_lm.results import ScoredText, SweepRow, scored_text
from fire_lm.results.folder import Results

ROW = SweepRow(
    *("fire", "fire", "", 1000, "embedded", "validation", "concat", "full", 64),
    *(2048, 131072, 130000, 1.5, 0.01, 4.48, 2.2),
)
SIXTEEN = np.full(16, 8192)  # tokens of each row of text


def curve(encoding: str, nlls: dict[int, float], **changes) -> list[SweepRow]:
    """Return the rows of one run by length; the standard error is a hundredth of the loss."""
    named = {"run": encoding, "encoding": encoding, **changes}
    return [
        dataclasses.replace(
            ROW,
            **{
                "length": length,
                "nll": nll,
                "nll_stderr": nll / 100,
                "bits_per_byte": nll * 2,
                **named,
            },
        )
        for length, nll in nlls.items()
    ]


FIRE = curve("fire", {64: 1.5, 256: 1.4})
ROPE = curve("rope", {256: 2.5, 64: 1.7})
TRAINED = {"fire": 64, "rope": 64}


def of_text(rows: Iterable[SweepRow], text: str = "a" * 16) -> list[ScoredText]:
    """Return losses of 16 rows of text that are a nat apart, in the same way for all `rows`."""
    shift = 8192 * (np.arange(16) - 7.5)
    return [scored_text(row, text, SIXTEEN, 8192 * row.nll + shift) for row in rows]


def results(
    rows: Iterable[SweepRow],
    trained: Mapping[str, int] = TRAINED,
    texts: Iterable[ScoredText] | None = None,
) -> Results:
    """Return results in which each run is an arm of the same name."""
    rows = list(rows)
    runs = [
        dataclasses.replace(
            facts(row.encoding, 0), run=row.run, arm=row.run, train_length=trained[row.run]
        )
        for row in {row.run: row for row in rows}.values()
    ]
    scored = of_text(row for row in rows if row.tokens) if texts is None else list(texts)
    return Results(runs=runs, losses=rows, scored=scored)


def table(rows: Iterable[SweepRow], trained: Mapping[str, int] = TRAINED, texts=None) -> str:
    return sweep_text(results(rows, trained, texts))


def cells(text: str, caption: str = "Nats per token (log") -> list[list[str]]:
    """Return the lines of the table with this caption, split at the gaps between columns."""
    (part,) = (part for part in text.split("\n\n") if part.startswith(caption))
    return [re.split(r" {2,}", line.strip()) for line in part.splitlines()[1:]]


def test_table_has_a_line_a_run_and_a_column_a_length():
    text = table([*FIRE, *ROPE])
    assert text.splitlines()[:2] == [
        "embedded validation, concat",
        "Each loss is a mean over 131,072 tokens, the same text at every length (text aaaaaaaa).",
    ]
    assert cells(text) == [
        ["64 (x1)", "256 (x4)"],
        ["fire", "1.500 ± 0.015", "1.400 ± 0.014"],
        ["rope", "1.700 ± 0.017", "2.500 ± 0.025"],
    ]
    for part in text.split("\n\n")[1:]:
        assert len({len(line) for line in part.splitlines()[1:]}) == 1, "columns do not line up"
    bits = [line[:1] + [cell.split()[0] for cell in line[1:]] for line in cells(text, "Bits")[1:]]
    assert bits == [["fire", "3.000", "2.800"], ["rope", "3.400", "5.000"]]
    assert "standard error over text, one run each" in text


def test_differences_are_taken_in_pairs_over_the_rows_of_text():
    """Effects that all lines share cancel.

    A difference that is equal for each row of text has no error, though each line's own error is
    more than a nat.
    """
    text = table([*FIRE, *ROPE])
    assert cells(text, "Not for comparing encodings, but")[1:] == [
        ["rope", "+0.200 ± 0.000", "+1.100 ± 0.000"]
    ]
    longer = of_text(FIRE) + [
        scored_text(row, "a" * 16, SIXTEEN, 8192 * (row.nll + np.tile([-0.1, 0.1], 8)))
        for row in ROPE
    ]
    shown = cells(
        table([*FIRE, *ROPE], texts=longer),
        "Not for comparing encodings, but",
    )
    apart = (np.arange(16) - 7.5) - np.tile([-0.1, 0.1], 8)
    error = math.sqrt(16 / 15 * np.square(apart).sum()) / 16
    assert shown[1:] == [["rope", f"+0.200 ± {error:.3f}", f"+1.100 ± {error:.3f}"]]
    assert "above" not in table(FIRE), "one line"
    assert "above" not in table([*FIRE, *ROPE], texts=()), "texts that are not recorded"


def test_table_of_two_training_lengths_gives_no_multiples():
    assert cells(table([*FIRE, *ROPE], {"fire": 64, "rope": 128}))[0] == ["64", "256"]


def test_table_leaves_a_length_empty_that_a_run_lacks():
    text = table([*FIRE, *curve("rope", {64: 1.7})])
    assert ["rope", "1.700 ± 0.017"] in cells(text)


def test_the_best_loss_is_marked_where_several_lines_have_one():
    found = results([*FIRE, *curve("rope", {64: 1.7})])
    (lines,) = loss_lines(found).values()
    assert loss_table(lines, NATS).best == {(0, 1)}


def gap(row: SweepRow) -> SweepRow:
    """Return the row that a sweep writes if the text has no row of this length."""
    fields: tuple = (*row.key, 0, 0, 0, *[math.nan] * 4)
    return SweepRow(*fields)


def test_table_says_where_there_is_no_text():
    """The order is that of the losses that exist."""
    text = table([*FIRE, ROPE[1], gap(ROPE[0])])
    assert cells(text)[1:] == [
        ["fire", "1.500 ± 0.015", "1.400 ± 0.014"],
        ["rope", "1.700 ± 0.017", "no text"],
    ]
    assert text.count("no text") == 2 and "nan" not in text and " 131,072 tokens" in text
    assert "too short for a row of any of" in table([gap(row) for row in FIRE])


def test_lengths_of_which_runs_score_different_tokens_are_not_side_by_side_in_nats():
    mine = dataclasses.replace(FIRE[1], length=96, tokens=131_008, nll=1.45)
    theirs = dataclasses.replace(ROPE[1], length=96, nll=1.65)
    text = table([FIRE[0], mine, ROPE[0], theirs])
    assert "bits per byte only" in text and "numbers of scored tokens at a length" in text


@pytest.mark.parametrize(
    "change",
    [{"construction": "cut"}, {"split": "train"}, {"dataset": "c4"}, {"protocol": "sliding"}],
)
def test_each_name_of_text_has_a_table(change):
    other = curve("fire", {64: 9.5, 256: 9.4}, **change)
    parts = table([*FIRE, *other, *ROPE]).split(str(next(iter(change.values()))))
    assert "1.500" in parts[0] and "9.500" not in parts[0]
    assert "9.500" in parts[1] and "rope" not in parts[1]


def test_variants_and_runs_are_told_apart():
    yarn, again = curve("fire", {64: 9.5}, variant="yarn"), curve("fire", {64: 9.1}, run="again")
    lines = cells(table([*FIRE, *yarn, *again], {**TRAINED, "again": 64}))
    assert {line[0]: line[1] for line in lines[1:]} == {
        "fire": "1.500 ± 0.015", "again": "9.100 ± 0.091", "fire (yarn)": "9.500 ± 0.095",
    }  # fmt: skip


def test_texts_of_one_name_are_never_compared_in_nats(draw):
    """Two recorded texts, one recorded and one not, and two distinguished by their counts only."""
    halved = [dataclasses.replace(row, bytes=65_000) for row in ROPE]
    for rows, texts, told in (
        (ROPE, of_text(FIRE) + of_text(ROPE, "b" * 16), "texts or vocabularies"),
        (ROPE, of_text(FIRE), "texts or vocabularies (text not recorded, text aaaaaaaa)"),
        (halved, [], "vocabularies or amounts of text (text not recorded)"),
    ):
        text = table([*FIRE, *rows], texts=texts)
        assert "in bits per byte only" in text and f"the runs differ in {told}" in text
        assert "Nats per token" not in text and ("rope (text" in text) == bool(texts)
        assert "different" in draw([*FIRE, *rows], texts=texts).get_title(loc="left")
    alone = table([*FIRE, *ROPE], texts=())
    assert "The text is not recorded" in alone and cells(alone)


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """Return a function that draws to a file and returns the axes."""
    kept: list[Axes] = []
    draw_panel = figure.draw_panel

    def keep(axes: Axes, *rest) -> None:
        kept.append(axes)
        draw_panel(axes, *rest)

    monkeypatch.setattr(figure, "draw_panel", keep)

    def drawn(rows, trained=TRAINED, texts=None, panel: int = 0) -> Axes:
        kept.clear()
        path = epath.Path(tmp_path) / "length_sweep.png"
        write_figure(results(rows, trained, texts), path)
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        return kept[panel]

    return drawn


def legend_of(axes: Axes) -> list[str]:
    assert isinstance(axes.figure, Figure)
    return sorted(text.get_text() for text in axes.figure.legends[0].get_texts())


def test_figure_has_a_line_a_run_with_error_bars_and_the_training_length(draw):
    axes = draw([*FIRE, *ROPE])
    assert legend_of(axes) == ["fire", "rope", "trained: 64"] and axes.get_legend() is None
    by_name = {container.get_label(): container for container in axes.containers}
    for name, nlls in {"fire": [1.5, 1.4], "rope": [1.7, 2.5]}.items():
        line, _, (bars,) = by_name[name]
        assert (list(line.get_xdata()), list(line.get_ydata())) == ([64, 256], nlls)
        spans = [(low, high) for (_, low), (_, high) in bars.get_segments()]
        assert spans == [pytest.approx((nll * 0.99, nll * 1.01)) for nll in nlls]
    dotted = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert [list(line.get_xdata()) for line in dotted] == [[64, 64]]
    assert axes.get_ylabel() == "log perplexity (nats per token)" and "tokens" in axes.get_xlabel()
    assert axes.get_title(loc="left") == (
        "embedded validation, concat\nbars: standard error over text, one run each"
    )


def test_the_legend_is_below_and_covers_nothing(draw):
    many = [row for i in range(9) for row in curve(f"encoding-{i}", {64: 1.5, 256: 1.4 + i})]
    axes = draw(many, {row.run: 64 for row in many})
    drawn = axes.figure
    assert isinstance(drawn, Figure)
    drawn.draw_without_rendering()
    legend = drawn.legends[0].get_window_extent()
    assert legend.y1 < axes.get_tightbbox().y0 and legend.x0 > 0
    assert legend.x1 < drawn.bbox.width


def test_figure_has_a_gap_where_there_is_no_text(draw):
    axes = draw([*FIRE, ROPE[1], gap(ROPE[0])])
    line = {container.get_label(): container for container in axes.containers}["rope"][0]
    assert list(line.get_ydata()) == [1.7]


def test_figure_has_a_panel_for_each_name_of_text(draw):
    rows = [*FIRE, *curve("rope", {64: 1.7}, dataset="c4")]
    first, second = draw(rows), draw(rows, panel=1)
    assert first.get_title(loc="left").startswith("embedded") and legend_of(second) == [
        "fire",
        "rope",
        "trained: 64",
    ]
    assert second.get_title(loc="left").startswith("c4 validation")


def test_without_a_number_there_is_no_figure(tmp_path):
    path = epath.Path(tmp_path) / "length_sweep.png"
    write_figure(results(FIRE), path)
    assert path.exists() and pyplot.get_fignums() == []
    write_figure(results([gap(row) for row in FIRE]), path)
    assert not path.exists()
