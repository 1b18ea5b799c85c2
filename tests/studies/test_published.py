"""The paper's numbers are copied correctly: means, repeated numbers, and spot checks."""

import math
from statistics import mean

import published
import pytest
from published import Published

CELLS = published.published()


def one(source: str, row: str, metric: str, length: int | None, **more: str) -> float:
    (found,) = (
        cell.value
        for cell in CELLS
        if (cell.source, cell.row, cell.metric, cell.length) == (source, row, metric, length)
        and all(getattr(cell, name) == value for name, value in more.items())
    )
    assert found is not None
    return found


@pytest.mark.parametrize(
    "source, row, length, value",
    [
        ("Table 2", "FIRE-S", 8192, 3.10),
        ("Table 3", "Eq. (21)", 2048, 3.099),
        ("Table 4", "NoPE", 1024, 3.14),
        ("Table 4", "T5's RPE", 4096, 3.095),
        ("Table 5", "Linear", 8192, 3.32),
        ("Table 6", "GeLU", 512, 3.36),
        ("Table 7", "With final activation", 4096, 3.09),
    ],
)
def test_spot_checks(source, row, length, value):
    assert one(source, row, "log_perplexity", length) == value


def test_every_table_and_figure_is_there():
    """The number of cells is rows x columns as printed, and the points of curves."""
    counts = {source: 0 for source in dict.fromkeys(cell.source for cell in CELLS)}
    for cell in CELLS:
        counts[cell.source] += 1
    assert counts == {
        "Table 1": 2 * 7 * 8,
        "Table 2": 2 * (5 + 1 + 8),
        "Table 3": 3 * (5 + 1),
        "Table 4": 7 * 5,
        "Table 5": 3 * 5,
        "Table 6": 2 * 5,
        "Table 7": 2 * 5,
        "Table 11": 8 * 8,
        "Table 13": 2 * 7 * 15,
        "Section 4.1": 2,
        "Fig. 1": 7,
        "Fig. 2": 3 * 6,
        "Fig. 6": 6,
        "Fig. 7": 2 * 7,
    }
    drawn = [cell for cell in CELLS if cell.value is None]
    assert drawn and all(c.source.startswith("Fig. ") and c.length is None for c in drawn)
    keys = [(c.source, c.row, c.model, c.dataset, c.metric, c.length) for c in CELLS]
    assert len(set(keys)) == len(keys)


def groups(source: str) -> dict[str, list[Published]]:
    found: dict[str, list[Published]] = {}
    for cell in CELLS:
        if cell.source == source:
            found.setdefault(cell.model or cell.row, []).append(cell)
    return found


@pytest.mark.parametrize(
    "source, rows, tolerance",
    [("Table 1", 14, 0.0051), ("Table 2", 2, 0.0051), ("Table 11", 8, 0.00051)],
)
def test_averages_are_the_means_of_their_rows(source, rows, tolerance):
    checked = 0
    for cells in groups(source).values():
        scores = [c for c in cells if c.dataset in ("scrolls", "narrative_qa")]
        assert len(scores) == 8 and all(cell.value is not None for cell in scores)
        (average,) = (c.value for c in scores if c.metric.endswith("_average"))
        others = [c.value for c in scores if not c.metric.endswith("_average")]
        assert mean(others) == pytest.approx(average, abs=tolerance), (source, cells[0].row)
        checked += 1
    assert checked == rows


def test_glues_average_is_that_of_table_13():
    tasks = {model: [c.value for c in cells] for model, cells in groups("Table 13").items()}
    assert all(len(scores) == 15 for scores in tasks.values()) and len(tasks) == 14
    for source, row in (("Table 2", "FIRE"), ("Table 3", "Eq. (23)")):
        average = one(source, row, "glue_super_glue_average", 1024)
        assert mean(tasks["base_fire"]) == pytest.approx(average, abs=0.0101)  # both are rounded


def test_tables_that_repeat_a_number_agree():
    """Tables 2, 5 and 6 round to two digits what Tables 3 and 4 give with three digits.

    The numbers in Fig. 1's text are those of Table 4 as perplexities.
    """
    most: dict[tuple[str, int | None], float] = {}
    for cell in CELLS:
        if cell.source == "Table 4" and cell.value is not None:
            most[cell.model, cell.length] = cell.value
    compared = set()
    for cell in CELLS:
        if cell.metric == "log_perplexity" and (known := most.get((cell.model, cell.length))):
            assert cell.value == pytest.approx(known, abs=0.0051), cell
            compared.add(cell.source)
    assert {"Table 2", "Table 3", "Table 5", "Table 6"} <= compared
    for row in ("FIRE", "Kerple"):
        model = next(c.model for c in CELLS if c.source == "Fig. 1" and c.row == row)
        perplexity = one("Section 4.1", row, "perplexity", 8192)
        assert math.exp(most[model, 8192]) == pytest.approx(perplexity, abs=0.006)


def test_one_encoding_and_training_length_a_model():
    for model in published.models():
        cells = published.cells(model)
        assert len({cell.encoding for cell in cells}) == 1, model
        assert {cell.train_length for cell in cells} == {512 if "_512_" in model else 2048}


def log_perplexities(*of: str) -> dict[int, float]:
    cells = published.log_perplexity_cells(*of)
    return {length: float(cell.printed) for length, cell in cells.items()}


def test_of_several_tables_the_one_with_most_digits_counts():
    assert log_perplexities("base_fire") == {
        512: 3.149,
        1024: 3.083,
        2048: 3.054,
        4096: 3.046,
        8192: 3.056,
    }
    assert log_perplexities("base_fire_gelu")[512] == 3.36
    assert log_perplexities("base_fire", "arxiv") == {}
    assert log_perplexities("large_fire") == {}
    with pytest.raises(ValueError, match="base_fyre"):
        published.cells("base_fyre")
    assert published.places("base_fire_1_hidden") == "Tables 5, 7"
    assert published.places("base_512_rope") == "Fig. 6"
