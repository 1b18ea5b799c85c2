"""SuperGLUE (Wang et al. 2019) as text-to-text tasks.

Records have the fields of TFDS's builders. The official JSON Lines files, which nest MultiRC's
answers and ReCoRD's queries in their passages, are converted to that form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from fire_lm.tasks.metrics import F1, Accuracy, ExactMatch, GroupedLabels, MacroF1, Metric
from fire_lm.tasks.suites.labelled import LabelledRows, label_text, labelled, of_idx, prompt
from fire_lm.tasks.suites.postprocess import (
    Postprocess,
    label,
    label_in_group,
    references,
    referent,
)
from fire_lm.tasks.suites.rows import Record, Row, Unfit, child, children, number, text, texts
from fire_lm.tasks.suites.text_task import Official, TextTask, one_record

FALSE_TRUE = ("False", "True")
CB_LABELS = ("entailment", "contradiction", "neutral")
# The answer for WSC's records in which the pronoun does not refer to the given phrase.
NOBODY = "nobody"

_BREAK, _BOLD = re.compile("<br>"), re.compile("</?b>")
_AFTER_STOP, _HIGHLIGHT = re.compile(r"([.?!\"'])\n@highlight\n"), re.compile(r"\n@highlight\n")


def multirc_records(record: Record) -> Iterator[Record]:
    """Yield one record for each answer to each question about a passage."""
    if "passage" not in record:
        yield record
        return
    passage = child(record, "passage")
    for question in children(passage, "questions"):
        for answer in children(question, "answers"):
            yield {
                "paragraph": text(passage, "text"),
                "question": text(question, "question"),
                "answer": text(answer, "text"),
                "label": answer.get("label"),
                "idx": {
                    "paragraph": number(record, "idx"),
                    "question": number(question, "idx"),
                    "answer": number(answer, "idx"),
                },
            }


def multirc_rows(record: Record, training: bool) -> Iterator[Row]:
    """Yield a row that asks whether an answer is correct; answers are grouped by question."""
    idx = child(record, "idx")
    group = f"{number(idx, 'paragraph')}_{number(idx, 'question')}"
    parts = [
        (field, _BOLD.sub("", _BREAK.sub(" ", text(record, field))))
        for field in ("question", "answer", "paragraph")
    ]
    yield labelled(
        record, f"{group}_{number(idx, 'answer')}", prompt("multirc", parts), FALSE_TRUE, group
    )


def record_records(record: Record) -> Iterator[Record]:
    """Yield one record for each query, with the passage's entities and the distinct answers."""
    if "qas" not in record:
        yield record
        return
    passage = child(record, "passage")
    of_passage = text(passage, "text")
    entities = {
        of_passage[number(entity, "start") : number(entity, "end") + 1]
        for entity in children(passage, "entities")
    }
    for query in children(record, "qas"):
        answers = children(query, "answers") if "answers" in query else ()
        yield {
            "passage": of_passage,
            "query": text(query, "query"),
            "entities": sorted(entities),
            "answers": sorted({text(answer, "text") for answer in answers}),
            "idx": {"passage": number(record, "idx"), "query": number(query, "idx")},
        }


def record_rows(record: Record, training: bool) -> Iterator[Row]:
    """Yield rows whose answer is the entity that fills the gap in a query.

    In training, there is one row for each correct entity.
    """
    idx = child(record, "idx")
    key = f"{number(idx, 'passage')}_{number(idx, 'query')}"
    passage = _HIGHLIGHT.sub(". ", _AFTER_STOP.sub(r"\1 ", text(record, "passage")))
    entities, answers = texts(record, "entities"), texts(record, "answers")
    inputs = prompt(
        "record",
        [("query", text(record, "query")), ("entities", ", ".join(entities)), ("passage", passage)],
    )
    if not training:
        yield Row(key, key, inputs, answers[0] if answers else "", answers, choices=entities)
        return
    if not answers:
        raise Unfit("no answer")
    for place, answer in enumerate(answers):
        yield Row(f"{key}_{place}", key, inputs, answer, (answer,), choices=entities)


def wsc_records(record: Record) -> Iterator[Record]:
    """Yield the record, with the fields of its object `target` moved to the top level."""
    yield {**record, **child(record, "target")} if "target" in record else record


def wsc_rows(record: Record, training: bool) -> Iterator[Row]:
    """Yield a row whose answer is the phrase to which a pronoun refers.

    Training uses only the records whose phrase is correct. In evaluation, `postprocess.referent`
    determines whether a prediction matches the record's phrase.
    """
    key, phrase = of_idx(record), text(record, "span1_text")
    inputs = f"wsc: {_marked(record)}"
    refers = label_text(record, FALSE_TRUE)
    if training:
        if refers == "True":
            yield Row(key, key, inputs, phrase, (phrase,))
        return
    answers = (phrase, refers) if refers else ()
    targets = {"True": phrase, "False": NOBODY}.get(refers, "")
    yield Row(key, key, inputs, targets, answers)


def _marked(record: Record) -> str:
    """Return the text with asterisks around the pronoun.

    In two of the official records, the given position is next to the pronoun, or the pronoun has
    punctuation attached. The occurrence of the pronoun nearest to the position is therefore marked,
    and any punctuation after it becomes a separate word.

    Raises:
      Unfit: The pronoun does not occur in the text.
    """
    words, pronoun = text(record, "text").split(" "), text(record, "span2_text")
    place = number(record, "span2_index")
    beginning = re.compile(re.escape(pronoun) + r"(\W*)", re.IGNORECASE)
    places = [(abs(i - place), i) for i, word in enumerate(words) if beginning.fullmatch(word)]
    if not places:
        raise Unfit("no pronoun in the text")
    _, nearest = min(places)
    rest = words[nearest][len(pronoun) :]
    marked = f"*{words[nearest][: len(pronoun)]}*" + f" {rest}" * bool(rest)
    return " ".join([*words[:nearest], marked, *words[nearest + 1 :]]).strip()


def _task(
    name: str,
    folder: str,
    rows: Callable[[Record, bool], Iterator[Row]],
    *metrics: Metric,
    postprocess: Postprocess = label,
    target_length: int = 16,
    flat: Callable[[Record], Iterator[Record]] = one_record,
    builders: tuple[str, ...] = (),
) -> TextTask:
    return TextTask(
        name=f"super_glue_{name}",
        title=name,
        origin=Official(
            folder,
            builders or (f"super_glue/{name}",),
            f"`tfds build super_glue/{name}`, or {folder}.zip from super.gluebenchmark.com/tasks",
            rows,
            flat,
        ),
        metrics=metrics or (Accuracy(),),
        postprocess=postprocess,
        target_length=target_length,
    )


def _labelled(
    name: str, folder: str, fields: str, labels: tuple[str, ...], *metrics: Metric
) -> TextTask:
    return _task(name, folder, LabelledRows(name, tuple(fields.split()), labels), *metrics)


BOOLQ = _labelled("boolq", "BoolQ", "passage question", FALSE_TRUE)
CB = _labelled("cb", "CB", "hypothesis premise", CB_LABELS, Accuracy(), MacroF1(CB_LABELS))
COPA = _labelled("copa", "COPA", "choice1 choice2 premise question", ("choice1", "choice2"))
MULTIRC = _task(
    "multirc",
    "MultiRC",
    multirc_rows,
    GroupedLabels("True", "False"),
    postprocess=label_in_group,
    flat=multirc_records,
)
RECORD = _task(
    "record",
    "ReCoRD",
    record_rows,
    ExactMatch(),
    F1(),
    postprocess=references,
    target_length=64,
    flat=record_records,
)
RTE = _labelled("rte", "RTE", "hypothesis premise", ("entailment", "not_entailment"))
WIC = _labelled("wic", "WiC", "sentence1 sentence2 word", FALSE_TRUE)
WSC = _task(
    "wsc",
    "WSC",
    wsc_rows,
    postprocess=referent,
    target_length=32,
    flat=wsc_records,
    builders=("super_glue/wsc.fixed", "super_glue/wsc"),
)

TASKS = (BOOLQ, CB, COPA, MULTIRC, RECORD, RTE, WIC, WSC)
