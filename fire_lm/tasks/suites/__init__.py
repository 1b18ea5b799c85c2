"""Suites of text-to-text tasks as values: formats, columns and averages.

`fire_lm.data.suites` reads files and writes data sets; nothing here opens a file.
"""

from __future__ import annotations

from fire_lm.tasks.suites import glue, long_eval, scrolls, super_glue
from fire_lm.tasks.suites.text_task import (
    Column,
    Generated,
    Official,
    Suite,
    TextTask,
    primary_columns,
)

__all__ = ["SUITES", "TASKS", "Column", "Generated", "Official", "Suite", "TextTask"]

SCROLLS = Suite("scrolls", scrolls.TASKS, primary_columns(*scrolls.TASKS), (8192,))
# The lengths of Table 11 of the FIRE paper.
NARRATIVE_QA = Suite(
    "narrative_qa",
    (scrolls.NARRATIVE_QA,),
    primary_columns(scrolls.NARRATIVE_QA),
    (512, 2048, 4096, 8192, 16384, 24576, 32768),
)
# The 15 columns of Table 13. STS-B is part of training, as in T5's mixture, which omits WNLI.
GLUE_SUPER_GLUE = Suite(
    "glue_super_glue",
    (*glue.TASKS, *super_glue.TASKS),
    primary_columns(
        super_glue.BOOLQ,
        super_glue.CB,
        glue.COLA,
        super_glue.COPA,
        glue.MNLI,
        glue.MRPC,
        glue.QNLI,
        glue.QQP,
        super_glue.RTE,
        glue.SST2,
        super_glue.WIC,
        glue.WNLI,
        super_glue.MULTIRC,
        super_glue.RECORD,
        super_glue.WSC,
    ),
    (1024,),
    together=True,
    not_trained=(glue.WNLI.name,),
)
# Its columns are the generated sizes.
LONG_EVAL = Suite("long_eval", long_eval.TASKS, (), (2048, 4096, 8192, 16384))


def _rouge(name: str, task: TextTask) -> Suite:
    """Return a suite of BTLM-3B-8K's tables: samples of less than 16,384 tokens."""
    columns = tuple(
        Column(value, task.name, "validation", value) for value in ("rouge1", "rouge2", "rougeL")
    )
    return Suite(name, (task,), columns, (16384,), longest_input=16384)


SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        SCROLLS,
        NARRATIVE_QA,
        GLUE_SUPER_GLUE,
        LONG_EVAL,
        _rouge("gov_report_rouge", scrolls.GOV_REPORT),
        _rouge("qmsum_rouge", scrolls.QMSUM),
    )
}

TASKS: dict[str, TextTask] = {task.name: task for suite in SUITES.values() for task in suite.tasks}
