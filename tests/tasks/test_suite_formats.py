"""Exact inputs and targets of official records, and the choice of rows, without TensorFlow."""

import copy
import functools
import math

import numpy as np
import pytest
import sample_suites

from fire_lm.errors import RunFailed
from fire_lm.tasks.suites import TASKS, Official
from fire_lm.tasks.suites.postprocess import referent, similarity
from fire_lm.tasks.suites.rows import BadRecord, Row, Unfit
from fire_lm.tasks.suites.selection import Selection, rows_of

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


# The strings that T5 0.9.4's own preprocessors produce (docs of the benchmarks).
@pytest.mark.parametrize(
    "name, record, inputs, targets",
    [
        ("glue_cola", {"sentence": "S"},
         "cola sentence: S", ("unacceptable", "acceptable")),
        ("glue_sst2", {"sentence": "S"}, "sst2 sentence: S", ("negative", "positive")),
        ("glue_mrpc", {"sentence2": "B", "sentence1": "A"},
         "mrpc sentence1: A sentence2: B", ("not_equivalent", "equivalent")),
        ("glue_qqp", {"question1": "A", "question2": "B"},
         "qqp question1: A question2: B", ("not_duplicate", "duplicate")),
        ("glue_mnli", {"premise": "P", "hypothesis": "H"},
         "mnli hypothesis: H premise: P", ("entailment", "neutral", "contradiction")),
        ("glue_qnli", {"question": "Q", "sentence": "S"},
         "qnli question: Q sentence: S", ("entailment", "not_entailment")),
        ("glue_wnli", {"sentence1": "A", "sentence2": "B"},
         "wnli sentence1: A sentence2: B", ("not_entailment", "entailment")),
        ("super_glue_rte", {"premise": "P", "hypothesis": "H"},
         "rte hypothesis: H premise: P", ("entailment", "not_entailment")),
        ("super_glue_boolq", {"question": "Q", "passage": "P"},
         "boolq passage: P question: Q", ("False", "True")),
        ("super_glue_cb", {"premise": "P", "hypothesis": "H"},
         "cb hypothesis: H premise: P", ("entailment", "contradiction", "neutral")),
        ("super_glue_copa",
         {"premise": "P", "choice1": "A", "choice2": "B", "question": "cause"},
         "copa choice1: A choice2: B premise: P question: cause", ("choice1", "choice2")),
        ("super_glue_wic", {"word": "W", "sentence1": "A", "sentence2": "B"},
         "wic sentence1: A sentence2: B word: W", ("False", "True")),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(
    "value, target",
    [(3.8, "3.8"), (2.0, "2.0"), (1.67, "1.6"), (5, "5.0"), (2.3, "2.4"), (0.1, "0.0")],
)
def test_similarities_are_written_to_the_next_fifth(value, target):
    """T5 computes in float32, where 2.3 * 5 is exactly 11.5. TFDS has the label as a float32."""
    record = {"sentence1": "A", "sentence2": "B", "idx": 0}
    for label in (value, float(np.float32(value))):
        (row,) = rows("glue_stsb", record | {"label": label})
        assert (row.inputs, row.targets) == ("stsb sentence1: A sentence2: B", target)
    assert similarity(target, {"answers": [target]}, is_target=True) == float(target)
    assert similarity("3.25 or so") == similarity("nan") == similarity("-inf") == -1


def test_answers_of_multirc():
    """Nested JSON lines and the flat examples of TFDS give the same rows."""
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
        (right, "Tom\nJones", "False"),  # T5 splits at single spaces only, so this is one word
        (right, "Tom\xa0Jones", "False"),
        (right, "Tom  Jones", "True"),
        (wrong, "tom", "True"),
        (wrong, wrong.targets, "False"),
    ):
        example = {"answers": np.array([answer.encode() for answer in row.answers], object)}
        assert referent(said, example) == verdict
        assert referent("", example, is_target=True) == ("True" if row is right else "False")
    assert referent("anything", {**example, "answers": ()}) == ""


def test_options_of_quality():
    article = "A text\n (A) no option\n"
    inputs = f"Why?\n\n (A) one\n (B) two (B)\n (C) three\n (D) four\n\n\n{article}"
    record = {"id": "1", "pid": "1_0", "input": inputs, "output": "two (B)"}
    (row,) = rows("scrolls_quality", record)
    assert row.choices == ("one", "two (B)", "three", "four") and row.inputs == inputs
    separated = inputs.replace("one", "o\u2028n\x85e").replace("three", "t\x0ch\x0bree\x1c!")
    (row,) = rows("scrolls_quality", record | {"input": separated})
    assert row.choices == ("o\u2028n\x85e", "two (B)", "t\x0ch\x0bree\x1c!", "four")
    (row,) = rows("scrolls_quality", record | {"input": "no options"})
    assert row.choices == ()
    assert rows("scrolls_contract_nli", record)[0].choices[2] == "Not mentioned"


@pytest.mark.parametrize(
    "name, record, told",
    [
        ("scrolls_qasper", {"id": "1", "pid": "1"}, "no field 'input' .*'id', 'pid'"),
        ("scrolls_qasper", {"id": 1, "pid": "1", "input": "x", "output": "y"}, "'id' is of type"),
        ("scrolls_qasper", {"id": "1", "pid": "1", "input": None}, "'input' is null"),
        ("glue_cola", {"sentence": "S", "idx": "1", "label": 0}, "'idx' is of type str"),
        ("glue_cola", {"sentence": "S", "idx": 1, "label": 2}, "'label' is 2: .* or one of unacc"),
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


def places(value, place=()):
    """Yield the path to every value in a record, however deeply nested."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in inside:
        yield (*place, key)
        if isinstance(child, dict | list):
            yield from places(child, (*place, key))


@pytest.mark.parametrize(
    "name", [name for name, task in TASKS.items() if isinstance(task.origin, Official)]
)
def test_a_damaged_record_is_refused_or_used_and_never_a_traceback(name):
    """Each value of a record in turn is missing or has another type."""
    suite = "scrolls" if name.startswith("scrolls") else "glue_super_glue"
    folder = origin(name).folder
    record = sample_suites.SUITES[suite][folder](folder)["train"][1]
    values = (None, 7, 7.5, math.nan, 10**30, True, "x", "", [], [1], {}, {"a": 1}, "\ud800")
    refused = 0
    for place in list(places(record)):
        for change in ("missing", *values):
            damaged = copy.deepcopy(record)
            parent = functools.reduce(lambda inside, key: inside[key], place[:-1], damaged)
            if change == "missing":
                del parent[place[-1]]
            else:
                parent[place[-1]] = change
            for training in (True, False):
                try:
                    rows(name, damaged, training)
                except (BadRecord, Unfit) as error:
                    refused += "\n" not in str(error)
    assert refused > 20


def scrolls_rows(*records: tuple[str, str, str | None], split: str = "validation"):
    """Return the rows selected from (id and number, input, output), and those left out."""
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
    assert scrolls_rows(*records[::-1])[0] == [kept[1], kept[0]]  # the same rows in another order
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
        "another input with the same id": (1, "line 6"),
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
