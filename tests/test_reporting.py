"""Table and figure of a length sweep: what a reader can tell from them."""

import dataclasses
import math
import re

import pytest
from etils import epath
from matplotlib import pyplot

from fire_lm.reporting import SweepRow
from fire_lm.reporting.length_sweep import figure, table

ROW = SweepRow(
    *("fire", "fire", "", 1000, "embedded", "validation", "concat", "full", 64),
    *(2048, 131072, 130000, 1.5, 0.01, 4.48, 2.2),
)


def curve(encoding: str, nlls: dict[int, float], **changes) -> list[SweepRow]:
    """Rows of one run, by length; the standard error is a hundredth of the loss."""
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


def cells(text: str) -> list[list[str]]:
    """The lines below the title, cut at the gaps between columns; without the bits per byte."""
    nats = text.partition("\n\n")[0]
    return [re.split(r" {2,}", line.strip()) for line in nats.splitlines()[1:]]


def test_table_has_a_line_a_run_and_a_column_a_length():
    text = table([*FIRE, *ROPE], {"fire": 64, "rope": 64})
    assert text.splitlines()[0] == (
        "nats per token; embedded validation, concat, 131,072 tokens at each length"
    )
    assert cells(text) == [
        ["64 (x1)", "256 (x4)"],
        ["fire", "1.500 ± 0.015", "1.400 ± 0.014"],
        ["rope", "1.700 ± 0.017", "2.500 ± 0.025"],
    ]
    nats, bits = text.split("\n\n")
    for part in (nats, bits):
        assert len({len(line) for line in part.splitlines()[1:]}) == 1, "columns do not line up"
    assert bits.splitlines()[0] == "bits per byte"
    assert [line.split() for line in bits.splitlines()[2:]] == [
        ["fire", "3.000", "2.800"],
        ["rope", "3.400", "5.000"],
    ]


def test_table_of_two_training_lengths_gives_no_multiples():
    assert cells(table([*FIRE, *ROPE], {"fire": 64, "rope": 128}))[0] == ["64", "256"]


def test_table_leaves_a_length_empty_that_a_run_lacks():
    text = table([*FIRE, *curve("rope", {64: 1.7})], {"fire": 64, "rope": 64})
    assert {tuple(line) for line in cells(text)} >= {("rope", "1.700 ± 0.017")}


def gap(row: SweepRow) -> SweepRow:
    """As where the text has no row of the length."""
    fields: tuple = (*row.key, 0, 0, 0, *[math.nan] * 4)
    return SweepRow(*fields)


def test_table_says_where_there_is_no_text():
    """And the order is that of the losses that there are."""
    text = table([*FIRE, ROPE[1], gap(ROPE[0])], {"fire": 64, "rope": 64})
    assert cells(text)[1:] == [
        ["fire", "1.500 ± 0.015", "1.400 ± 0.014"],
        ["rope", "1.700 ± 0.017", "no text"],
    ]
    assert text.count("no text") == 2 and "nan" not in text and " 131,072 tokens" in text
    assert "no text" in table([gap(row) for row in FIRE], {"fire": 64})


@pytest.mark.parametrize(
    "change",
    [
        {"run": "fire_again"},
        {"step": 2000},
        {"construction": "cut"},
        {"split": "train"},
        {"dataset": "c4"},
        {"variant": "yarn-4x"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_curves_of_one_encoding_are_told_apart(change):
    other = curve("fire", {64: 9.5, 256: 9.4}, **change)
    lines = cells(table([*FIRE, *other, *ROPE], {"fire": 64, "fire_again": 64, "rope": 64}))
    names = [line[0] for line in lines[1:]]
    assert len(set(names)) == 3 and "rope" in names
    told = str(next(iter(change.values())))
    same_text = not set(change) & {"construction", "split", "dataset"}
    expected = "9.500 ± 0.095" if same_text else "19.000"
    assert [line[1] for line in lines if told in line[0]] == [expected]


MIXED = {
    "vocabularies or amounts of text": {"bytes": 260_000},
    "constructions": {"construction": "cut"},
    "data sets": {"dataset": "c4"},
}


@pytest.mark.parametrize("what", MIXED)
def test_rows_that_nats_cannot_compare_are_in_bits_per_byte(what, draw):
    """Alone, in the table and in the figure, and both say why; the order is theirs too."""
    other = curve("rope", {64: 0.7, 256: 0.5}, **MIXED[what])
    other = [dataclasses.replace(row, bits_per_byte=9.0) for row in other]
    rows, trained = [*other, *FIRE], {"fire": 64, "rope": 64}
    text = table(rows, trained)
    assert text.startswith("bits per byte; ") and "±" not in text
    assert text.endswith(f"no nats per token: rows of different {what} have different tokens")
    assert [line[1:] for line in cells(text)[1:]] == [["3.000", "2.800"], ["9.000", "9.000"]]
    axes = draw(rows, trained)
    assert axes.get_ylabel() == "loss (bits per byte)" and axes.child_axes == []
    assert axes.get_title().endswith(f"\ndifferent {what}")
    by_name = {container.get_label(): container for container in axes.containers}
    line, _, (bars,) = next(v for name, v in by_name.items() if name.startswith("fire"))
    assert list(line.get_ydata()) == [3.0, 2.8]
    (_, low), (_, high) = bars.get_segments()[0]
    assert high - low == pytest.approx(2 * 0.015 * 131072 / 130000 / math.log(2))


def test_gaps_and_protocols_do_not_make_rows_different(draw):
    """Neither a length without text, nor one left out, nor another protocol's budget."""
    sliding = curve("fire", {64: 1.4}, protocol="sliding", tokens=4096, bytes=4000)
    rows = [*FIRE, *sliding, ROPE[1], gap(ROPE[0])]
    assert table(rows, {"fire": 64, "rope": 64}).startswith("nats per token; ")
    assert draw(rows, {"fire": 64, "rope": 64}).get_ylabel() == "loss (nats per token)"


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """Draws to a file and gives the axes; the figure is kept open for it."""
    close = pyplot.close
    monkeypatch.setattr(pyplot, "close", lambda drawing: None)

    def drawn(rows, train_lengths):
        path = epath.Path(tmp_path) / "length_sweep.png"
        figure(rows, train_lengths, path)
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        return pyplot.gcf().axes[0]

    yield drawn
    close("all")


def test_figure_has_a_line_a_run_with_error_bars_and_the_training_length(draw):
    axes = draw([*FIRE, *ROPE], {"fire": 64, "rope": 64})
    assert sorted(text.get_text() for text in axes.get_legend().get_texts()) == ["fire", "rope"]
    by_name = {container.get_label(): container for container in axes.containers}
    for name, nlls in {"fire": [1.5, 1.4], "rope": [1.7, 2.5]}.items():
        line, _, (bars,) = by_name[name]
        assert (list(line.get_xdata()), list(line.get_ydata())) == ([64, 256], nlls)
        spans = [(low, high) for (_, low), (_, high) in bars.get_segments()]
        assert spans == [pytest.approx((nll * 0.99, nll * 1.01)) for nll in nlls]
    dotted = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert [list(line.get_xdata()) for line in dotted] == [[64, 64]]
    assert [text.get_text() for text in axes.texts] == ["trained: 64"]
    assert axes.get_ylabel() == "loss (nats per token)" and "tokens" in axes.get_xlabel()


def test_figure_has_bits_per_byte_where_all_share_a_vocabulary(draw):
    axes = draw([*FIRE, *ROPE], {"fire": 64, "rope": 64})
    (right,) = axes.child_axes
    axes.figure.draw_without_rendering()
    assert right.get_ylabel() == "bits per byte"
    ratio = 131072 / 130000 / math.log(2)
    assert right.get_ylim() == pytest.approx([ratio * end for end in axes.get_ylim()])


def test_figure_has_a_gap_where_there_is_no_text(draw):
    axes = draw([*FIRE, ROPE[1], gap(ROPE[0])], {"fire": 64, "rope": 64})
    line = {container.get_label(): container for container in axes.containers}["rope"][0]
    assert line.get_ydata()[0] == 1.7 and math.isnan(line.get_ydata()[1])
    assert len(axes.child_axes) == 1
    draw([gap(row) for row in FIRE], {"fire": 64})


def test_figure_marks_every_training_length(draw):
    axes = draw([*FIRE, *ROPE], {"fire": 64, "rope": 128})
    assert [text.get_text() for text in axes.texts] == [
        "trained: 64",
        "trained: 128",
    ]


def test_figure_is_closed(tmp_path):
    figure(FIRE, {"fire": 64}, epath.Path(tmp_path) / "length_sweep.png")
    assert pyplot.get_fignums() == []
