"""Suites: columns and averages, scores of trivial models, and LongEval's exercises.

One trivial model returns the reference, the other nothing. These tests do not use TensorFlow; see
tests/data/ for those that do.
"""

import csv
from pathlib import Path

import numpy as np
import pytest
import sample_scores
import sample_suites
from sample_results import facts

from fire_lm.reporting.task_lines import AVERAGE, suite_scores
from fire_lm.tasks.suites import SUITES, TASKS, Generated, Official, TextTask
from fire_lm.tasks.suites.postprocess import last_number
from fire_lm.tasks.suites.rows import Row
from fire_lm.tasks.suites.selection import Selection, rows_of
from fire_lm.tasks.suites.text_task import SPLIT_FILES

PUBLISHED = Path(__file__).parents[2] / "scripts" / "studies" / "published.csv"


def made(task: TextTask, split: str = "validation") -> list[Row]:
    """Return the rows of a split, from the sample data or generated."""
    if isinstance(task.origin, Generated):
        rng = np.random.default_rng(3)
        return [task.origin.exercise(rng, size, str(size)) for size in range(1, 12)]
    suite = "scrolls" if task.name.startswith("scrolls") else "glue_super_glue"
    by_file = sample_suites.SUITES[suite][task.origin.folder](task.origin.folder)
    records = next(by_file[name] for name in SPLIT_FILES[split] if name in by_file)
    source = rows_of(task.origin, split, lambda: iter([("a line", r) for r in records]))
    selection = Selection(split, source)
    selection.survey()
    assert not selection.left_out
    return [row for _, row in selection.rows()]


def scored(task: TextTask, predictions: list[str], of: list[Row]) -> dict[str, float]:
    """Score as an evaluator does: after post-processing, with the examples' strings as bytes."""
    targets, given = [], []
    for row, prediction in zip(of, predictions, strict=True):
        example = {
            "answers": np.array([answer.encode() for answer in row.answers], object),
            "group": row.group.encode(),
        }
        targets.append(task.postprocess(row.targets, example=example, is_target=True))
        given.append(task.postprocess(prediction, example=example, is_target=False))
    return {k: v for metric in task.metrics for k, v in metric(targets, given).items()}


@pytest.mark.parametrize("name", TASKS)
def test_the_reference_scores_100_and_nothing_scores_0(name):
    of = made(TASKS[name])
    for score in (100, 0):
        values = scored(TASKS[name], [row.targets if score else "" for row in of], of)
        assert values == dict.fromkeys(values, pytest.approx(score, abs=1e-9))
        assert TASKS[name].primary in values


@pytest.mark.parametrize("suite", [name for name, one in SUITES.items() if one.columns])
def test_every_column_ranges_from_0_to_100(suite):
    """A model that returns the reference has 100 in every column; one that returns nothing, 0."""
    for score in (100, 0):
        found = {}
        for column in SUITES[suite].columns:
            of = made(TASKS[column.task], column.split)
            values = scored(TASKS[column.task], [row.targets if score else "" for row in of], of)
            found[column] = values[column.metric]
        assert list(found.values()) == [pytest.approx(score)] * len(found)
    assert len(found) == {"scrolls": 7, "glue_super_glue": 15, "narrative_qa": 1}.get(suite, 3)


def test_every_split_of_the_sample_data_can_be_used():
    for task in TASKS.values():
        if isinstance(task.origin, Official):
            assert made(task, "train") and made(task, "test")


@pytest.mark.parametrize(
    "suite, table, average", [("scrolls", "Table 1", 25.64), ("glue_super_glue", "Table 13", 71.14)]
)
def test_the_columns_are_those_of_the_paper(suite, table, average):
    """For FIRE (base), the mean over the columns is the printed average, to its digits."""
    with open(PUBLISHED, newline="") as file:
        of_row = [line for line in csv.DictReader(file) if line["source"] == table]
    printed = {
        line["metric"]: float(line["value"]) for line in of_row if line["model"] == "base_fire"
    }
    run = facts("fire", 0)
    scores = [
        sample_scores.score(run, suite, column.task, printed.pop(column.task), metric=column.metric)
        for column in SUITES[suite].columns
    ]
    (table,) = suite_scores(sample_scores.of(*scores, runs=[run]))
    assert table.lines[0].points[AVERAGE].mean == pytest.approx(average, abs=0.006)
    assert not set(printed) - {f"{suite}_average"}


def test_every_task_has_one_name_and_every_column_a_value():
    assert len(TASKS) == 25
    for suite in SUITES.values():
        for column in suite.columns:
            names = [name for metric in TASKS[column.task].metrics for name in metric.names]
            assert column.metric in names and column.split == "validation"


def exercise(name: str, size: int, seed: int = 0) -> Row:
    found = TASKS[name].origin
    assert isinstance(found, Generated)
    return found.exercise(np.random.default_rng(seed), size, "key")


@pytest.mark.parametrize("size", [1, 20, 1350])
def test_lines_of_long_eval(size):
    row = exercise("long_eval_lines", size)
    lines = [line for line in row.inputs.splitlines() if line.startswith("line ")]
    names = [line.split(":")[0] for line in lines]
    assert len(lines) == size == len(set(names))
    asked = row.inputs.splitlines()[-1].removesuffix(": REGISTER_CONTENT is").lower()
    (line,) = [line for line in lines if line.startswith(f"{asked}:")]
    assert (
        line == f"{asked}: REGISTER_CONTENT is <{row.targets}>" and 1 <= int(row.targets) <= 50_000
    )
    assert row == exercise("long_eval_lines", size) != exercise("long_eval_lines", size, seed=1)


@pytest.mark.parametrize("size", [1, 30])
def test_topics_of_long_eval(size):
    row = exercise("long_eval_topics", size)
    opened = [line for line in row.inputs.splitlines() if "the topic of" in line]
    assert len(set(opened)) == size and opened[0].endswith(f"the topic of {row.targets}.")
    assert row == exercise("long_eval_topics", size)


@pytest.mark.parametrize(
    "reply, number",
    [
        (" <4711>.", "4711"),
        ("of line 12 it is 0815", "815"),  # LongEval compares integers
        ("000", "0"),
        ("١٢", "12"),  # re.findall(r"\d+") and int() accept digits of other scripts
        (f"0{'9' * 5000}", "9" * 5000),
        ("none", ""),
        ("", ""),
    ],
)
def test_the_last_number_of_a_reply_counts(reply, number):
    assert last_number(reply) == number


def test_a_topic_counts_where_it_is_named_or_nearly():
    of = [row for row in made(TASKS["long_eval_topics"])][:1]
    topic = of[0].targets
    for reply, expected in (
        (f"We began with {topic.upper()}!", (100, 100, 0)),
        (topic, (100, 100, 100)),
        ("something else", (0, 0, 0)),
    ):
        values = scored(TASKS["long_eval_topics"], [reply], of)
        assert (values["accuracy"], values["contained"], values["near"]) == expected
