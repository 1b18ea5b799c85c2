"""Lines, means and tables of accuracies: which rows make a number."""

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sample_results import facts

from fire_lm.reporting import charts
from fire_lm.reporting.accuracies import (
    LONGER,
    TRAINED,
    accuracy_lines,
    accuracy_table,
    accuracy_text,
    guesses,
    lengths_on,
    mean_on,
    pictures,
    readers,
)
from fire_lm.reporting.figure import line_styles
from fire_lm.reporting.losses import other_steps
from fire_lm.reporting.page import Table
from fire_lm.reporting.series import Series
from fire_lm.reporting.sources import named_apart
from fire_lm.results import LengthAccuracy
from fire_lm.results.folder import ENCODER, Results, joined
from fire_lm.results.tables import TrainedTask


def row(run: str, length: int, accuracy: float, **changed: object) -> LengthAccuracy:
    settings: dict[str, object] = {
        "encoding": "fire", "variant": "", "step": 9, "task": "EvenPairs", "layout": "slots",
        "positions": "plain", "sequences": 100, "stderr": 1.0,
    }  # fmt: skip
    return LengthAccuracy(run=run, length=length, accuracy=accuracy, **(settings | changed))  # type: ignore[arg-type]


def of(*accuracies: LengthAccuracy) -> Results:
    """Return results in which runs `fire-0`, `fire-1`, ... are seeds of one arm."""
    tasks = {
        row.run: TrainedTask(row.run, row.run.partition("-")[0], row.task, row.layout, 40)
        for row in accuracies
    }
    return Results(tasks=list(tasks.values()), accuracies=accuracies)


TWO = of(
    row("fire-0", 40, 100.0), row("fire-0", 41, 90.0), row("fire-0", 500, 70.0),
    row("fire-1", 40, 100.0), row("fire-1", 41, 80.0), row("fire-1", 500, 60.0),
    row("rope-0", 40, 98.0), row("rope-0", 41, 60.0), row("rope-0", 500, 50.0),
)  # fmt: skip


def lines_of(results: Results, task: str = "EvenPairs, slots") -> list[Series]:
    return accuracy_lines(results)[task]


def table_of(results: Results, task: str = "EvenPairs, slots") -> Table:
    return accuracy_table(results, task, lines_of(results, task))


def value_on(side: str, line: Series) -> float | None:
    point = mean_on(side, line)
    return point.mean if point else None


def test_means_are_over_seeds_and_over_lengths_on_each_side_of_training():
    fire, rope = lines_of(TWO)
    means = [(one.name, value_on(TRAINED, one), value_on(LONGER, one)) for one in (fire, rope)]
    assert means == [("fire", 100.0, 75.0), ("rope", 98.0, 55.0)]
    longer = mean_on(LONGER, fire)
    assert longer and list(longer.values.values()) == [80.0, 70.0] and fire.points[500].runs == 2
    table = table_of(TWO)
    assert table.rows == [
        ["fire", "100.0 ± 0.0 (2)", "75.0 ± 7.1 (2)", "65.0 ± 7.1 (2)"],
        ["rope", "98.0 (1)", "55.0 (1)", "50.0 (1)"],
    ]
    assert "trained up to length 40" in table.caption and "over 2 seeds" in table.caption
    assert (
        "The best answer from length and place alone scores 50.0 % over training lengths and 50.0 %"
    ) in table.caption


def test_a_mean_is_over_all_lengths_from_the_first_to_the_last():
    """Here, 10 of 14 measured lengths are short, but only 20 of 460."""
    lengths = [*range(41, 51), 60, 150, 300, 500]
    accuracies = {length: 100.0 if length <= 60 else 20.0 for length in lengths}
    (line,) = lines_of(of(*(row("fire-0", *point) for point in accuracies.items())))
    every = np.interp(np.arange(41, 501), lengths, list(accuracies.values()))
    assert value_on(LONGER, line) == pytest.approx(every.mean()) and every.mean() < 32
    (dense,) = lines_of(of(*(row("fire-0", 41 + n, x) for n, x in enumerate(every))))
    assert value_on(LONGER, dense) == pytest.approx(every.mean())


def test_guesses_are_for_the_lengths_of_the_mean():
    """At length 10, the best answer without reading scores more in ComputeSqrt than at 500."""
    rows = (row("fire-0", n, 60.0, task="ComputeSqrt") for n in (10, 40, 41, 500))
    table = table_of(of(*rows), "ComputeSqrt, slots")
    known = guesses("ComputeSqrt, slots", (10, 40, 41, 500))
    short, long = (known[10] + known[40]) / 2, (known[41] + known[500]) / 2
    assert short > 53 and 50 < long < 51.5
    shown = re.findall(r"([0-9.]+) % over", table.caption)
    assert [float(value) for value in shown] == pytest.approx([short, long], abs=0.05)
    assert guesses("ComputeSqrt(variant=text), slots", [10]) == {}


def test_means_over_other_lengths_are_marked_and_come_last():
    """For example, a learned table cannot be read at length 500, where accuracies are lowest."""
    short = row("learned-0", 40, 90.0), row("learned-0", 41, 89.0)
    table = table_of(of(*TWO.accuracies, *short))
    assert [line[0] for line in table.rows] == ["fire", "rope", "learned"]
    assert table.rows[2] == ["learned", "90.0 (1)", "89.0 (length 41)", ""]
    more = row("fire-1", 300, 0.0), row("fire-2", 41, 70.0), row("fire-2", 500, 50.0)
    fire, _ = lines_of(of(*TWO.accuracies, *more))
    longer = mean_on(LONGER, fire)
    assert longer and list(longer.values.values()) == [80.0, 70.0, 60.0]
    assert lengths_on(LONGER, fire) == (41, 500), "only lengths that all seeds have"
    assert mean_on(TRAINED, fire) is None
    more = row("fire-2", 41, 70.0), row("rope-1", 500, 1.0, sequences=8)
    table = table_of(of(*TWO.accuracies, *more))
    at_500 = {line[0]: line[3] for line in table.rows}
    assert at_500 == {"fire": "", "rope": "25.5 ± 34.6 (2)"}, "fire-2 lacks length 500"
    assert "8 or 100 exercises of each measured length" in table.caption


def test_runs_of_other_folders_of_results_are_lines_of_their_own():
    """Their settings are not compared, and the columns of the map are names."""
    parts = [
        ("old", of(row("fire-0", 50, 1.0), row("rope-0", 50, 1.0))),
        ("new", of(row("fire-1", 50, 9.0))),
        ("more", of(row("fire-2", 50, 5.0, task="Recall"))),
    ]
    found = accuracy_lines(joined(named_apart(parts)))
    names = {task: [line.name for line in lines] for task, lines in found.items()}
    assert names == {
        "EvenPairs, slots": ["fire of new", "fire of old", "rope"],
        "Recall, slots": ["fire of more"],
    }


def test_no_accuracy_beyond_the_training_lengths_is_a_measurement():
    found = accuracy_lines(
        of(row("none-0", 40, 100.0), row("none-0", 41, 0.0), row("some-0", 40, 90.0),
           row("some-0", 41, 5.0))
    )  # fmt: skip
    assert [line.name for line in found["EvenPairs, slots"]] == ["some", "none"]


def test_what_is_measured_otherwise_is_a_line_of_its_own():
    """Positions, variants and steps never mix, and neither do tasks and layouts."""
    found = accuracy_lines(
        of(
            row("fire-0", 50, 1.0),
            row("fire-0", 50, 2.0, positions="even"),
            row("fire-0", 50, 3.0, variant="log-n"),
        )
    )
    names = ["fire (log-n)", "fire (positions even)", "fire"]
    assert [line.name for line in found["EvenPairs, slots"]] == names
    found = accuracy_lines(of(row("fire-0", 50, 1.0), row("fire-0", 50, 2.0, step=18)))
    assert [line.name for line in found["EvenPairs, slots"]] == ["fire, step 18", "fire, step 9"]
    found = accuracy_lines(of(row("fire-0", 50, 1.0), row("rope-0", 50, 2.0, step=18)))
    names = ["rope, step 18", "fire, step 9"]
    assert [line.name for line in found["EvenPairs, slots"]] == names, "arms trained for longer"
    found = accuracy_lines(of(row("fire-0", 50, 1.0), row("fire-1", 50, 2.0, step=18)))
    lines = {line.name: line.points[50].runs for line in found["EvenPairs, slots"]}
    assert lines == {"fire, step 18": 1, "fire, step 9": 1}, "seeds without a common step"
    elsewhere = dataclasses.replace(row("fire-0", 50, 9.0), task="Recall")
    both = of(row("fire-0", 50, 1.0), row("fire-1", 50, 2.0, task="Recall"))
    found = accuracy_lines(dataclasses.replace(both, accuracies=[*both.accuracies, elsewhere]))
    names = [line.name for line in found["Recall, slots"]]
    assert names == ["fire, trained on EvenPairs", "fire"], "not a seed of the arm of that task"
    apart = of(row("a", 50, 1.0), row("b", 50, 1.0, task="Recall", layout="autoregressive"))
    assert list(accuracy_lines(apart)) == ["EvenPairs, slots", "Recall, autoregressive"]
    assert "Recall, autoregressive" in accuracy_text(apart)


def test_curves_and_with_several_tasks_a_map():
    assert [one.name for one in pictures(TWO)] == ["length_accuracy"]
    several = of(row("a", 50, 12.0), row("b", 50, 87.0, task="Recall"))
    assert [one.name for one in pictures(several)] == ["length_accuracy", "length_accuracy_map"]
    trained = row("a", 40, 34.0), row("b", 40, 56.0, task="Recall")
    partly = row("c", 50, 70.0, task="Recall"), row("d", 60, 71.0, task="Recall")
    curves, *maps = pictures(of(*several.accuracies, *trained, *partly))
    assert "causal decoder" in curves.image.svg
    assert curves.panels == 2
    runs = [dataclasses.replace(facts("fire", seed), run=run) for seed, run in enumerate("ab")]
    encoders = [dataclasses.replace(run, model=f"{run.model}{ENCODER}") for run in runs]
    assert readers(dataclasses.replace(several, runs=encoders), several.accuracies) == "encoder"
    mixed = dataclasses.replace(several, runs=[encoders[0], runs[1]])
    assert readers(mixed, several.accuracies) == "causal decoders and encoders"
    assert readers(mixed, several.accuracies[1:]) == "causal decoder"
    assert [one.name for one in maps] == ["length_accuracy_map_trained", "length_accuracy_map"]
    cells = [set(re.findall(r">(\d+\*?)<", one.image.svg)) for one in maps]
    frequent = {"50", "0"}  # of EvenPairs and Recall
    assert cells[0] == {"34", "56"} | frequent
    assert cells[1] == {"12", "87", "70", "71*"} | frequent
    assert pictures(Results()) == []


def test_many_points_have_no_markers():
    few, many = (of(*(row("a", n, 50.0) for n in range(1, end))) for end in (100, 200))
    drawn = [pictures(results)[0].image.svg.count("<use") for results in (few, many)]
    assert drawn[0] > 99 > drawn[1]


def test_an_encoding_has_one_colour():
    names = ["fire", "rope", "rope (positions even)", "rope, log_n LogN"]
    lines = lines_of(of(*(row(f"{name}-0", 50, 1.0) for name in names)))
    fire, *rope = (line_styles(lines)[name] for name in names)
    assert {style["color"] for style in rope} == {rope[0]["color"]} != {fire["color"]}
    assert len({str(style["linestyle"]) for style in rope}) == 3
    assert fire["linestyle"] == rope[0]["linestyle"] == "-"


def test_the_map_has_room_for_its_labels(monkeypatch):
    def room(draw: Callable[[Figure], None], width: float, height: float) -> list[float]:
        figure = Figure(figsize=(width, height), layout="constrained")
        canvas = FigureCanvasAgg(figure)
        draw(figure)
        canvas.draw()
        box = figure.get_tightbbox(canvas.get_renderer())
        if len(figure.axes) == 1:  # a map
            (axes,) = figure.axes
            columns = axes.get_window_extent().width / figure.dpi / len(axes.get_xticks())
            assert columns > 0.4, "inches, for a number"
        return [box.x0, box.y0, width - box.x1, height - box.y1]

    monkeypatch.setattr(charts, "drawn", room)
    names = (
        "rope",
        *(f"{name}, resampling RandomizedPositions" for name in ("alibi", "fire", "rope")),
    )
    tasks = ("EvenPairs", "ModularArithmeticBrackets(variant=text)")
    results = of(
        *(row(name, 50, 60.0, task=task, positions="random") for name in names for task in tasks)
    )
    _, *maps = pictures(results)
    assert all(min(heat.image) >= 0 for heat in maps)


def test_a_report_names_runs_that_were_measured_before_their_newest_step():
    runs = [dataclasses.replace(facts("fire", 0), run="fire-0", step=3000)]
    early = dataclasses.replace(of(row("fire-0", 50, 1.0)), runs=runs)
    assert other_steps(early, early.accuracies) == [
        "Scored before the newest step of the run: fire-0 at 9 of 3,000."
    ]
    newest = [dataclasses.replace(runs[0], step=9)]
    assert other_steps(dataclasses.replace(early, runs=newest), early.accuracies) == []
