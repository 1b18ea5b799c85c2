"""GLUE (Wang et al. 2019) as text-to-text tasks, without RTE, which SuperGLUE contains.

Records, including those from JSON Lines files, have the fields of TFDS's builders. The field
`label` is a number or a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fire_lm.tasks.metrics import Accuracy, BinaryF1, Correlations, Matthews, Metric
from fire_lm.tasks.suites.labelled import LabelledRows, of_idx, prompt
from fire_lm.tasks.suites.postprocess import Postprocess, label, similarity
from fire_lm.tasks.suites.rows import BadRecord, Record, Row, text
from fire_lm.tasks.suites.text_task import Official, TextTask

COLA_LABELS = ("unacceptable", "acceptable")


def similarity_rows(record: Record, training: bool) -> Iterator[Row]:
    """Yield the row of an STS-B record.

    The target is the similarity, a number from 0 to 5, rounded to a multiple of 0.2 in float32, as
    in T5. In the record, a negative number means that the similarity is unknown.
    """
    inputs = prompt("stsb", [(field, text(record, field)) for field in ("sentence1", "sentence2")])
    value = record.get("label")
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise BadRecord(f"the field 'label' is of type {type(value).__name__}, not a number")
    if value is not None and not value <= 5:  # or NaN
        raise BadRecord(f"the field 'label' is {value}, not a number from 0 to 5")
    known = value is not None and value >= 0
    written = f"{np.round(np.float32(value) * np.float32(5)) / 5:.1f}" if known else ""
    key = of_idx(record)
    yield Row(key, key, inputs, written, (written,) if written else ())


def _task(
    name: str,
    rows: Callable[[Record, bool], Iterator[Row]],
    *metrics: Metric,
    postprocess: Postprocess = label,
) -> TextTask:
    return TextTask(
        name=f"glue_{name}",
        title=name,
        origin=Official(
            name,
            (f"glue/{name}",),
            f"`tfds build glue/{name}`, or huggingface.co/datasets/nyu-mll/glue as JSON Lines",
            rows,
        ),
        metrics=metrics or (Accuracy(),),
        postprocess=postprocess,
        target_length=16,
    )


def _labelled(name: str, fields: str, labels: tuple[str, ...], *metrics: Metric) -> TextTask:
    return _task(name, LabelledRows(name, tuple(fields.split()), labels), *metrics)


COLA = _labelled("cola", "sentence", COLA_LABELS, Accuracy(), Matthews(COLA_LABELS))
SST2 = _labelled("sst2", "sentence", ("negative", "positive"))
MRPC = _labelled(
    *("mrpc", "sentence1 sentence2", ("not_equivalent", "equivalent")),
    *(Accuracy(), BinaryF1("equivalent", "not_equivalent")),
)
QQP = _labelled(
    *("qqp", "question1 question2", ("not_duplicate", "duplicate")),
    *(Accuracy(), BinaryF1("duplicate", "not_duplicate")),
)
MNLI = _labelled("mnli", "hypothesis premise", ("entailment", "neutral", "contradiction"))
QNLI = _labelled("qnli", "question sentence", ("entailment", "not_entailment"))
WNLI = _labelled("wnli", "sentence1 sentence2", ("not_entailment", "entailment"))
STSB = _task("stsb", similarity_rows, Correlations(), postprocess=similarity)

TASKS = (COLA, SST2, MRPC, QQP, STSB, MNLI, QNLI, WNLI)
