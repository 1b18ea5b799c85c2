"""scripts/studies/paper_scores.py: the paper's task scores stand below ours, and are named."""

import dataclasses

from paper_scores import papers, sections, with_papers
from sample_scores import glue_results, of, run_of, score, scrolls_results

from fire_lm.reporting.page import Table
from fire_lm.reporting.task_lines import SuiteScores, suite_scores
from fire_lm.results.folder import Results


def only(results: Results) -> SuiteScores:
    (scores,) = suite_scores(results)
    return scores


def table_of(results: Results) -> Table:
    return with_papers(only(results), papers(only(results)))


def test_the_papers_numbers_are_beside_ours_and_named():
    scrolls = scrolls_results()
    (section,) = sections(scrolls)
    assert "Ours have 0.37M parameters and were trained at 64 tokens" in section.paragraphs[0]
    (table,) = section.parts
    assert isinstance(table, Table)
    (fire, paper, *_) = table.rows
    assert fire[0] == "fire" and fire[1] == "25.50 ± 0.50"
    assert paper[0] == "the paper's FIRE, 125M (Tables 1, 2)"
    assert paper[1:] == ["16.31", "15.87", "14.58", "16.24", "9.55", "24.02", "82.93", "25.64"]
    best = {table.rows[row][0] for row, _ in table.best}
    assert best and not any("paper" in name for name in best), "marks stay with our rows"
    runs = [dataclasses.replace(run, parameters=335_000_000) for run in scrolls.runs]
    (_, paper, *_) = table_of(dataclasses.replace(scrolls, runs=runs)).rows
    assert paper[0] == "the paper's FIRE, 350M (Table 1)" and paper[-1] == "27.05"
    runs = [dataclasses.replace(run, encoding="mine") for run in scrolls.runs]
    assert sections(dataclasses.replace(scrolls, runs=runs)) == []


def test_a_mean_stands_for_an_average_that_is_not_printed():
    (paper,) = (row for row in table_of(glue_results()).rows if "RoPE" in row[0])
    assert paper[-1] == "71.15", "the mean of Table 13, which prints no average"


def test_lines_of_other_tasks_have_no_row_of_the_paper():
    data = "fire_lm:{}, one example per row, targets of up to 64 tokens, input truncation 'head'"
    own, other = (
        run_of(task, "fire", data=data.format(f"scrolls_{task}"))
        for task in ("narrative_qa", "qasper")
    )
    rows = [score(run, "scrolls", "scrolls_narrative_qa", 1.0, metric="f1") for run in (own, other)]
    results = of(*rows, runs=[own, other])
    assert len(only(results).lines) == 2
    assert {paper.after for paper in papers(only(results))} == {"fire"}
