"""Suites: exact inputs and targets, the choice of rows, post-processing, columns and averages, and
what models score that return the reference or nothing. Without TensorFlow: see tests/data/."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import sample_suites

import fire_lm
from fire_lm.errors import RunFailed, UserError
from fire_lm.tasks.metrics import Score
from fire_lm.tasks.suites import SUITES, TASKS, Generated, Official, TextTask
from fire_lm.tasks.suites.postprocess import last_number, referent, similarity
from fire_lm.tasks.suites.rows import BadRecord, Row
from fire_lm.tasks.suites.selection import Selection, rows_of
from fire_lm.tasks.suites.text_task import SPLIT_FILES

PUBLISHED = Path(fire_lm.__file__).parent / "reporting" / "published.csv"

WSC = {
    "idx": 0,
    "text": "Mitchell asked Tom if he could lend some money.",
    "span1_text": "Tom",
    "span2_text": "he",
    "span2_index": 4,
    "label": 1,
}


def origin(name: str) -> Official:
    found = TASKS[name].origin
    assert isinstance(found, Official)
    return found


def rows(name: str, record: dict, training: bool = True) -> list[Row]:
    return [row for one in origin(name).flat(record) for row in origin(name).rows(one, training)]


# The strings of T5 0.9.4, which its own preprocessors give (docs of the benchmarks).
@pytest.mark.parametrize(
    "name, record, inputs, targets",
    [
        ("glue_cola", {"sentence": "S"}, "cola sentence: S", ("unacceptable", "acceptable")),
        ("glue_sst2", {"sentence": "S"}, "sst2 sentence: S", ("negative", "positive")),
        (
            "glue_mrpc",
            {"sentence2": "B", "sentence1": "A"},
            "mrpc sentence1: A sentence2: B",
            ("not_equivalent", "equivalent"),
        ),
        (
            "glue_qqp",
            {"question1": "A", "question2": "B"},
            "qqp question1: A question2: B",
            ("not_duplicate", "duplicate"),
        ),
        (
            "glue_mnli",
            {"premise": "P", "hypothesis": "H"},
            "mnli hypothesis: H premise: P",
            ("entailment", "neutral", "contradiction"),
        ),
        (
            "glue_qnli",
            {"question": "Q", "sentence": "S"},
            "qnli question: Q sentence: S",
            ("entailment", "not_entailment"),
        ),
        (
            "glue_wnli",
            {"sentence1": "A", "sentence2": "B"},
            "wnli sentence1: A sentence2: B",
            ("not_entailment", "entailment"),
        ),
        (
            "super_glue_rte",
            {"premise": "P", "hypothesis": "H"},
            "rte hypothesis: H premise: P",
            ("entailment", "not_entailment"),
        ),
        (
            "super_glue_boolq",
            {"question": "Q", "passage": "P"},
            "boolq passage: P question: Q",
            ("False", "True"),
        ),
        (
            "super_glue_cb",
            {"premise": "P", "hypothesis": "H"},
            "cb hypothesis: H premise: P",
            ("entailment", "contradiction", "neutral"),
        ),
        (
            "super_glue_copa",
            {"premise": "P", "choice1": "A", "choice2": "B", "question": "cause"},
            "copa choice1: A choice2: B premise: P question: cause",
            ("choice1", "choice2"),
        ),
        (
            "super_glue_wic",
            {"word": "W", "sentence1": "A", "sentence2": "B"},
            "wic sentence1: A sentence2: B word: W",
            ("False", "True"),
        ),
    ],
)
def test_classification_as_text(name, record, inputs, targets):
    for number, target in enumerate(targets):
        for label in (number, target):
            (row,) = rows(name, {**record, "idx": 7, "label": label})
            assert (row.id, row.inputs, row.targets) == ("7", inputs, target)
            assert row.answers == (target,) and row.choices == targets
    (row,) = rows(name, {**record, "idx": 7, "label": -1})
    assert row.targets == "" and row.answers == ()


def test_booleans_are_labels():
    (row,) = rows("super_glue_boolq", {"question": "Q", "passage": "P", "idx": 0, "label": True})
    assert row.targets == "True"


@pytest.mark.parametrize("value, target", [(3.8, "3.8"), (2.0, "2.0"), (1.67, "1.6"), (5, "5.0")])
def test_similarities_are_written_to_the_next_fifth(value, target):
    record = {"sentence1": "A", "sentence2": "B", "idx": 0}
    (row,) = rows("glue_stsb", record | {"label": float(np.float32(value))})
    assert (row.inputs, row.targets) == ("stsb sentence1: A sentence2: B", target)
    assert similarity(target, {"answers": [target]}, is_target=True) == float(target)
    assert similarity("3.25 or so") == -1


def test_answers_of_multirc():
    """From nested JSON lines and from the flat examples of TFDS: the same rows."""
    passage = {
        "text": "<b>Sent 1: </b>One.<br>Two.",
        "questions": [
            {"question": "Q", "idx": 5, "answers": [{"text": "A", "idx": 9, "label": 1}]}
        ],
    }
    flat = {
        "paragraph": passage["text"],
        "question": "Q",
        "answer": "A",
        "label": 1,
        "idx": {"paragraph": 3, "question": 5, "answer": 9},
    }
    (row,) = rows("super_glue_multirc", {"idx": 3, "passage": passage})
    assert [row] == rows("super_glue_multirc", flat)
    assert row.inputs == "multirc question: Q answer: A paragraph: Sent 1: One. Two."
    assert (row.targets, row.id, row.group) == ("True", "3_5_9", "3_5")


def test_queries_of_record():
    text = "He left.\n@highlight\nBob\n@highlight\nEnd of Bob"
    nested = {
        "idx": 3,
        "passage": {"text": text, "entities": [{"start": 0, "end": 1}, {"start": 20, "end": 22}]},
        "qas": [
            {"query": "@placeholder ran", "idx": 4, "answers": [{"text": "Bob"}, {"text": "He"}]}
        ],
    }
    inputs = "record query: @placeholder ran entities: Bob, He passage: He left. Bob. End of Bob"
    trained = rows("super_glue_record", nested)
    assert [(row.inputs, row.targets) for row in trained] == [(inputs, "Bob"), (inputs, "He")]
    assert len({row.key for row in trained}) == 2 and {row.id for row in trained} == {"3_4"}
    (row,) = rows("super_glue_record", nested, training=False)
    assert row.answers == row.choices == ("Bob", "He")


@pytest.mark.parametrize(
    "changed, expected",
    [
        ({}, "wsc: Mitchell asked Tom if *he* could lend some money."),
        ({"span2_index": 5}, "wsc: Mitchell asked Tom if *he* could lend some money."),
        (
            {
                "text": 'He laughed. "Good for him," Tom said. ',
                "span2_text": "him",
                "span2_index": 4,
            },
            'wsc: He laughed. "Good for *him* ," Tom said.',
        ),
        ({"text": "he and he", "span2_index": 2}, "wsc: he and *he*"),
    ],
)
def test_the_pronoun_of_wsc(changed, expected):
    (row,) = rows("super_glue_wsc", WSC | changed)
    assert (row.inputs, row.targets) == (expected, "Tom")


def test_wrong_phrases_of_wsc_are_not_trained_on_and_scored_by_their_words():
    assert rows("super_glue_wsc", WSC | {"label": 0}) == []
    right, wrong = (rows("super_glue_wsc", WSC | {"label": n}, training=False)[0] for n in (1, 0))
    for row, said, verdict in (
        (right, "the Tom", "True"),
        (right, "Tom Jones", "True"),
        (right, "Mitchell", "False"),
        (right, "Tom's", "False"),
        (right, " the ", ""),
        (wrong, "tom", "True"),
        (wrong, wrong.targets, "False"),
    ):
        example = {"answers": np.array([answer.encode() for answer in row.answers], object)}
        assert referent(said, example) == verdict
        assert referent("", example, is_target=True) == ("True" if row is right else "False")


def test_options_of_quality():
    article = "A text\n (A) no option\n"
    inputs = f"Why?\n\n (A) one\n (B) two (B)\n (C) three\n (D) four\n\n\n{article}"
    record = {"id": "1", "pid": "1_0", "input": inputs, "output": "two (B)"}
    (row,) = rows("scrolls_quality", record)
    assert row.choices == ("one", "two (B)", "three", "four") and row.inputs == inputs
    (row,) = rows("scrolls_quality", record | {"input": "no options"})
    assert row.choices == ()
    assert rows("scrolls_contract_nli", record)[0].choices[2] == "Not mentioned"


@pytest.mark.parametrize(
    "name, record, told",
    [
        ("scrolls_qasper", {"id": "1", "pid": "1"}, "no field 'input', only 'id', 'pid'"),
        ("scrolls_qasper", {"id": 1, "pid": "1", "input": "x", "output": "y"}, "'id' is of type"),
        ("scrolls_qasper", {"id": "1", "pid": "1", "input": None}, "'input' is null"),
        ("glue_cola", {"sentence": "S", "idx": "1", "label": 0}, "'idx' is of type str"),
        ("glue_cola", {"sentence": "S", "idx": 1, "label": 2}, "'label' is 2, not one of unacc"),
        ("glue_stsb", {"sentence1": "", "sentence2": "", "idx": 1, "label": "x"}, "not a number"),
        ("super_glue_multirc", {"idx": 1, "passage": "text"}, "'passage' is of type str"),
        ("super_glue_record", {"idx": {"passage": 1, "query": 2}, "passage": "", "query": "",
                               "entities": "Bob", "answers": []}, "'entities' is of type"),
    ],
)  # fmt: skip
def test_records_of_another_form_are_refused(name, record, told):
    with pytest.raises(BadRecord, match=told):
        rows(name, record)
    source = rows_of(origin(name), "train", lambda: iter([("x.jsonl line 3", record)]))
    with pytest.raises(RunFailed, match=f"x.jsonl line 3: .*{told}"):
        Selection("train", source).survey()


def scrolls_rows(*records: tuple[str, str, str | None], split: str = "validation"):
    """Of (id and number, input, output)."""
    read = [
        (f"line {n}", {"id": key.split("_")[0], "pid": key, "input": inputs, "output": output})
        for n, (key, inputs, output) in enumerate(records, start=1)
    ]
    selection = Selection(split, rows_of(origin("scrolls_qasper"), split, lambda: iter(read)))
    selection.survey()
    kept = list(selection.rows())
    assert len(kept) == selection.count
    return kept, {why: (one.count, one.first) for why, one in selection.left_out.items()}


def test_training_rows_are_pairs_and_others_are_questions():
    records = (("1_0", "Q", "a"), ("2_0", "R", "c"), ("1_1", "Q", "b"), ("1_2", "Q", "a"))
    kept, _ = scrolls_rows(*records)
    assert [(key, row.answers) for key, row in kept] == [("1", ("a", "b")), ("2", ("c",))]
    kept, _ = scrolls_rows(*records, split="train")
    assert [(key, row.targets) for key, row in kept] == [
        ("1_0", "a"), ("2_0", "c"), ("1_1", "b"), ("1_2", "a")
    ]  # fmt: skip


def test_rows_that_cannot_be_used_are_counted_with_the_first_place():
    kept, left_out = scrolls_rows(
        ("1_0", "Q", "a"), ("1_0", "Q", "a"), ("2_0", "R", ""), ("3_0", " \n", "a"),
        ("4_0", "S", " "), ("1_1", "other", "b"), ("5_0", "T \ud800", "a"), ("", "U", "a"),
    )  # fmt: skip
    assert [key for key, _ in kept] == ["1"]
    assert left_out == {
        "duplicated id": (1, "line 2"),
        "empty target": (2, "line 3"),
        "empty input": (1, "line 4"),
        "another input under the same id": (1, "line 6"),
        "not UTF-8": (1, "line 7"),
        "empty id": (1, "line 8"),
    }


def test_one_bad_answer_does_not_take_the_others_of_its_passage_away():
    answers = [{"text": t, "idx": idx, "label": 1} for t, idx in (("A", 0), ("B", 0), ("C", 1))]
    passage = {"text": "P", "questions": [{"question": "Q", "idx": 0, "answers": answers}]}
    read = [("line 1", {"idx": 0, "passage": passage})]
    source = rows_of(origin("super_glue_multirc"), "train", lambda: iter(read))
    selection = Selection("train", source)
    selection.survey()
    assert selection.count == 2 and selection.left_out["duplicated id"].count == 1


def test_questions_of_a_test_split_have_no_answers():
    kept, left_out = scrolls_rows(("1_0", "Q", None), ("2_0", "R", ""), split="test")
    assert [row.answers for _, row in kept] == [(), ()] and not left_out


def made(task: TextTask, split: str = "validation") -> list[Row]:
    """The rows of a split, of the sample data or generated."""
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
    """As an evaluator does: through post-processing, with the strings of examples as bytes."""
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
def test_a_model_that_returns_the_reference_scores_100(name):
    of = made(TASKS[name])
    values = scored(TASKS[name], [row.targets for row in of], of)
    assert values == dict.fromkeys(values, pytest.approx(100))


@pytest.mark.parametrize("name", TASKS)
def test_a_model_that_returns_nothing_scores_0(name):
    of = made(TASKS[name])
    values = scored(TASKS[name], [""] * len(of), of)
    assert (
        values == dict.fromkeys(values, pytest.approx(0, abs=1e-9))
        and TASKS[name].primary in values
    )


def test_every_split_of_the_sample_data_can_be_used():
    for task in TASKS.values():
        if isinstance(task.origin, Official):
            assert made(task, "train") and made(task, "test")


@pytest.mark.parametrize(
    "suite, table, prefix, average",
    [("scrolls", "Table 1", "scrolls", 25.64), ("glue_super_glue", "Table 13", "glue", 71.14)],
)
def test_the_columns_are_those_of_the_paper(suite, table, prefix, average):
    """FIRE, base: the mean over the columns is the printed average, to its digits."""
    with open(PUBLISHED, newline="") as file:
        of_row = [line for line in csv.DictReader(file) if line["source"] == table]
    printed = {
        line["metric"]: float(line["value"]) for line in of_row if line["model"] == "base_fire"
    }
    scores = {
        column: Score(printed.pop(f"{prefix}_{column.title}"), 1.0, 0, 0, 1)
        for column in SUITES[suite].columns
    }
    assert SUITES[suite].average(scores).value == pytest.approx(average, abs=0.006)
    assert not set(printed) - {f"{prefix}_average"}


def test_every_task_has_one_name_and_every_column_a_value():
    assert len(TASKS) == 25
    for suite in SUITES.values():
        for column in suite.columns:
            names = [name for metric in TASKS[column.task].metrics for name in metric.names]
            assert column.metric in names and column.split == "validation"


def test_the_average_needs_every_column():
    suite = SUITES["glue_super_glue"]
    assert len(suite.columns) == 15 and "stsb" not in {column.title for column in suite.columns}
    scores = {column: Score(50.0, 1.0, 48, 52, 100) for column in suite.columns}
    assert suite.average(scores).value == 50
    assert suite.average(scores).stderr == pytest.approx(1 / math.sqrt(15))
    del scores[suite.columns[3]]
    with pytest.raises(UserError, match="over 15 columns; there is no score of copa"):
        suite.average(scores)


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
    [(" <4711>.", "4711"), ("of line 12 it is 0815", "0815"), ("none", ""), ("", "")],
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
