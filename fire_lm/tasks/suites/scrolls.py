"""SCROLLS (Shaham et al. 2022): seven data sets of long documents.

Records have the fields `id` (which identifies a question), `pid` (which identifies a question and
one of its references), `input` and `output` (null in test splits). In five of the data sets, the
input consists of a query, a blank line and the document, so that truncation on the right keeps the
query. Inputs contain no instructions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

from fire_lm.tasks.metrics import F1, ExactMatch, Metric, Rouge
from fire_lm.tasks.suites.postprocess import references
from fire_lm.tasks.suites.rows import Record, Row, Unfit, text
from fire_lm.tasks.suites.text_task import Official, TextTask

CONTRACT_NLI_LABELS = ("Entailment", "Contradiction", "Not mentioned")
_OPTIONS = re.compile(r"\n\n((?: *\([A-D]\) [^\n]*\n){4})")


def free(inputs: str) -> tuple[str, ...]:
    """Return no choices, because the answer is free text."""
    return ()


def three_labels(inputs: str) -> tuple[str, ...]:
    """Return the labels of ContractNLI."""
    return CONTRACT_NLI_LABELS


def four_options(inputs: str) -> tuple[str, ...]:
    """Return QuALITY's options, which follow the question as lines ' (A) ...' to ' (D) ...'.

    Only a line feed ends a line, because options may contain the other separators of Unicode.
    """
    options = _OPTIONS.search(inputs)
    if options is None:
        return ()
    return tuple(line.strip()[len("(A) ") :] for line in options[1].split("\n")[:-1])


@dataclasses.dataclass(frozen=True)
class ScrollsRows:
    """A function that converts each record into one row.

    Attributes:
      choices: Returns the possible answers to an input, or () if the answer is free text.
    """

    choices: Callable[[str], tuple[str, ...]] = free

    def __call__(self, record: Record, training: bool) -> Iterator[Row]:
        inputs = text(record, "input")
        if not inputs.strip():
            raise Unfit("empty input")
        answer = "" if record.get("output", "") is None else text(record, "output")
        yield Row(
            key=text(record, "pid"),
            id=text(record, "id"),
            inputs=inputs,
            targets=answer,
            answers=(answer,) if answer.strip() else (),
            choices=self.choices(inputs),
        )


def _task(folder: str, metric: Metric, target_length: int, choices: Callable = free) -> TextTask:
    return TextTask(
        name=f"scrolls_{folder}",
        title=folder,
        origin=Official(
            folder,
            (f"scrolls/{folder}",),
            f"{folder}.zip from huggingface.co/datasets/tau/scrolls",
            ScrollsRows(choices),
        ),
        metrics=(metric,),
        postprocess=references,
        target_length=target_length,
    )


GOV_REPORT = _task("gov_report", Rouge(), 1024)
SUMM_SCREEN_FD = _task("summ_screen_fd", Rouge(), 256)
QMSUM = _task("qmsum", Rouge(), 256)
QASPER = _task("qasper", F1(), 128)
NARRATIVE_QA = _task("narrative_qa", F1(), 64)
QUALITY = _task("quality", ExactMatch(), 64, four_options)
CONTRACT_NLI = _task("contract_nli", ExactMatch(), 8, three_labels)

TASKS = (GOV_REPORT, SUMM_SCREEN_FD, QMSUM, QASPER, NARRATIVE_QA, QUALITY, CONTRACT_NLI)
