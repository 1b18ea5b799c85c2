"""Suites of text-to-text tasks, with their input formats, table columns and averages.

`fire_lm.data.suites` reads the files of data sets and writes data sets.
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
# The columns are those of Table 13 of the FIRE paper. As in T5's mixture, training includes STS-B,
# which has no column, and omits WNLI.
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
# LongEval has no fixed columns, because its tables have one column for each generated size.
LONG_EVAL = Suite("long_eval", long_eval.TASKS, (), (2048, 4096, 8192, 16384))


def _rouge(name: str, task: TextTask) -> Suite:
    """Return a suite with the columns of Table 1 in the paper on ALiBi with interpolation.

    The table covers only inputs of fewer than 16,384 tokens, which `evaluate.inputs_below` selects.
    """
    columns = tuple(
        Column(value, task.name, "validation", value) for value in ("rouge1", "rouge2", "rougeL")
    )
    return Suite(name, (task,), columns, (16384,))


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
