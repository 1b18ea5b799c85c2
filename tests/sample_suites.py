"""Data sets in the official formats of SCROLLS, GLUE and SuperGLUE, with text of our own.

Some questions have several references or none, texts contain newlines and letters beyond ASCII, and
some inputs are longer than a small model can read.
"""

from __future__ import annotations

import json
import pathlib
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Records = dict[str, list[dict[str, Any]]]

SIZES = {"train": 30, "validation": 20, "test": 5}
_WORDS = (
    "the board met on Monday and agreed to plant oaks near the canal because naïve visitors asked "
    "for shade; costs were 4,200 € in 1995. Jürgen wrote 「漢字」 on it\n A pump failed twice"
).split(" ")


def prose(rng: np.random.Generator, words: int) -> str:
    return " ".join(rng.choice(_WORDS, words))


def document(rng: np.random.Generator, number: int) -> str:
    """Return a text; every tenth is long."""
    return prose(rng, 3000 if number % 10 == 9 else int(rng.integers(20, 120)))


def scrolls(name: str) -> Records:
    """Return the records of one of the seven data sets, by split."""
    rng = np.random.default_rng([7, *name.encode()])
    return {split: list(_scrolls_records(rng, name, split)) for split in SIZES}


def _scrolls_records(rng: np.random.Generator, name: str, split: str) -> Iterator[dict[str, Any]]:
    for number in range(SIZES[split]):
        inputs, answers = _SCROLLS[name](rng, number)
        for place, answer in enumerate(answers):
            yield {
                "id": f"{name}_{split}_{number}",
                "pid": f"{name}_{split}_{number}_{place}",
                "input": inputs,
                "output": None if split == "test" else answer,
            }


def _summary(rng: np.random.Generator, number: int) -> tuple[str, list[str]]:
    return document(rng, number), [prose(rng, 12)]


def _query(rng: np.random.Generator, number: int) -> tuple[str, list[str]]:
    return f"What was said about item {number}?\n\n{document(rng, number)}", [prose(rng, 8)]


def _question(rng: np.random.Generator, number: int) -> tuple[str, list[str]]:
    """Return a question and one to three references; every fifth question cannot be answered."""
    asked = f"Who planted oak {number}?\n\n{document(rng, number)}"
    if number % 5 == 4:
        return asked, ["Unanswerable"]
    return asked, [f"{prose(rng, 2)} {place}" for place in range(1 + number % 3)]


def _multiple_choice(rng: np.random.Generator, number: int) -> tuple[str, list[str]]:
    options = [f"{prose(rng, 3).strip()} {letter}".replace("\n", "") for letter in "ABCD"]
    listed = "".join(f" ({letter}) {text}\n" for letter, text in zip("ABCD", options, strict=True))
    return f"Why did it fail?\n\n{listed}\n\n{document(rng, number)}", [options[number % 4]]


def _inference(rng: np.random.Generator, number: int) -> tuple[str, list[str]]:
    labels = ("Entailment", "Contradiction", "Not mentioned")
    return f"Party {number} may share it.\n\n{document(rng, number)}", [labels[number % 3]]


_SCROLLS: dict[str, Callable[[np.random.Generator, int], tuple[str, list[str]]]] = {
    "gov_report": _summary,
    "summ_screen_fd": _summary,
    "qmsum": _query,
    "qasper": _question,
    "narrative_qa": _question,
    "quality": _multiple_choice,
    "contract_nli": _inference,
}

# Fields and number of labels of GLUE's data sets; STS-B has a number as label.
_GLUE = {
    "cola": (("sentence",), 2),
    "sst2": (("sentence",), 2),
    "mrpc": (("sentence1", "sentence2"), 2),
    "qqp": (("question1", "question2"), 2),
    "stsb": (("sentence1", "sentence2"), 0),
    "mnli": (("premise", "hypothesis"), 3),
    "qnli": (("question", "sentence"), 2),
    "wnli": (("sentence1", "sentence2"), 2),
}


def glue(name: str) -> Records:
    fields, labels = _GLUE[name]
    rng = np.random.default_rng([8, *name.encode()])

    def record(split: str, number: int) -> dict[str, Any]:
        label: float = number % labels if labels else round(float(rng.uniform(0, 5)), 3)
        found = {field: prose(rng, 9) for field in fields}
        return {**found, "label": -1 if split == "test" else label, "idx": number}

    splits = {"validation": "validation"}
    if name == "mnli":
        splits = {"validation_matched": "validation", "validation_mismatched": "validation"}
    return {
        split: [record(split, number) for number in range(SIZES[size])]
        for split, size in {"train": "train", **splits, "test": "test"}.items()
    }


def super_glue(name: str) -> Records:
    """Return records as in the official JSON lines: `val.jsonl`, labels as booleans or names."""
    rng = np.random.default_rng([9, *name.encode()])
    make = _SUPER_GLUE[name]
    named = {"train": "train", "val": "validation", "test": "test"}
    return {
        split: [make(rng, number, split != "test") for number in range(SIZES[size])]
        for split, size in named.items()
    }


def _with_label(record: dict[str, Any], label: object, known: bool) -> dict[str, Any]:
    return {**record, "label": label} if known else record


def _boolq(rng: np.random.Generator, number: int, known: bool) -> dict[str, Any]:
    record = {"question": "was it agreed", "passage": prose(rng, 30), "idx": number}
    return _with_label(record, bool(number % 2), known)


def _pair(labels: tuple[str, ...]) -> Callable[[np.random.Generator, int, bool], dict[str, Any]]:
    def record(rng: np.random.Generator, number: int, known: bool) -> dict[str, Any]:
        found = {"premise": prose(rng, 20), "hypothesis": prose(rng, 6), "idx": number}
        return _with_label(found, labels[number % len(labels)], known)

    return record


def _copa(rng: np.random.Generator, number: int, known: bool) -> dict[str, Any]:
    record = {
        "premise": prose(rng, 6),
        "choice1": prose(rng, 4),
        "choice2": prose(rng, 4),
        "question": ("cause", "effect")[number % 2],
        "idx": number,
    }
    return _with_label(record, number % 2, known)


def _multirc(rng: np.random.Generator, number: int, known: bool) -> dict[str, Any]:
    def question(place: int) -> dict[str, Any]:
        answers = [
            _with_label({"text": prose(rng, 3), "idx": 10 * place + n}, (n + number) % 2, known)
            for n in range(3)
        ]
        return {"question": "What <b>failed</b>?", "answers": answers, "idx": 2 * number + place}

    text = f"<b>Sent 1: </b>{prose(rng, 9)}<br><b>Sent 2: </b>{prose(rng, 9)}<br>"
    passage = {"text": text, "questions": [question(0), question(1)]}
    return {"idx": number, "passage": passage}


def _record(rng: np.random.Generator, number: int, known: bool) -> dict[str, Any]:
    text = (
        f"Jürgen of Oak Hall spoke. {prose(rng, 12)}\n@highlight\nOak Hall agreed\n@highlight\nEnd"
    )
    spans = [(0, 5), (10, 17), (text.rindex("Oak Hall"), text.rindex("Oak Hall") + 7)]
    answers = [
        {"start": 10, "end": 17, "text": "Oak Hall"},
        {"start": 0, "end": 5, "text": "Jürgen"},
    ]
    query = {"query": "@placeholder agreed to it.", "idx": number}
    if known:
        query["answers"] = (answers + answers)[: 1 + number % 3]
    entities = [{"start": start, "end": end} for start, end in spans]
    return {"idx": number, "passage": {"text": text, "entities": entities}, "qas": [query]}


def _wic(rng: np.random.Generator, number: int, known: bool) -> dict[str, Any]:
    record = {
        "word": "board",
        "sentence1": prose(rng, 5),
        "sentence2": prose(rng, 5),
        "idx": number,
        **dict.fromkeys(("start1", "start2", "end1", "end2"), 0),
    }
    return _with_label(record, bool(number % 2), known)


def _wsc(rng: np.random.Generator, number: int, known: bool) -> dict[str, Any]:
    target = {"span1_index": 0, "span1_text": "The board", "span2_index": 5, "span2_text": "they"}
    record = {
        "idx": number,
        "text": f"The board met Jürgen before they left {number}.",
        "target": target,
    }
    return _with_label(record, bool(number % 2), known)


_SUPER_GLUE = {
    "BoolQ": _boolq,
    "CB": _pair(("entailment", "contradiction", "neutral")),
    "COPA": _copa,
    "MultiRC": _multirc,
    "ReCoRD": _record,
    "RTE": _pair(("entailment", "not_entailment")),
    "WiC": _wic,
    "WSC": _wsc,
}

SUITES: dict[str, dict[str, Callable[[str], Records]]] = {
    "scrolls": dict.fromkeys(_SCROLLS, scrolls),
    "glue_super_glue": {**dict.fromkeys(_GLUE, glue), **dict.fromkeys(_SUPER_GLUE, super_glue)},
}


def json_lines(records: list[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)


def write_suite(suite: str, source: pathlib.Path, zipped: bool = False) -> pathlib.Path:
    """Write the data sets of a suite as folders of JSON lines or as zip files."""
    source.mkdir(parents=True, exist_ok=True)
    for name, make in SUITES[suite].items():
        files = {f"{name}/{split}.jsonl": json_lines(r) for split, r in make(name).items()}
        if zipped:
            with zipfile.ZipFile(source / f"{name}.zip", "w") as archive:
                archive.writestr(f"__MACOSX/{name}/._train.jsonl", b"\0")
                for path, text in files.items():
                    archive.writestr(path, text)
            continue
        (source / name).mkdir()
        for path, text in files.items():
            (source / path).write_text(text)
    return source
