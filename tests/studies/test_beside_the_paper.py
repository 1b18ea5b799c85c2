"""scripts/studies/beside_the_paper.py: the paper's order of encodings next to ours."""

import dataclasses
import re

from beside_the_paper import beside_the_paper
from sample_results import sample_results, text_of, with_losses

from fire_lm.reporting.length_sweep import loss_comparison
from fire_lm.reporting.losses import Scored, loss_lines
from fire_lm.reporting.series import NATS
from fire_lm.results.folder import Results

SCORED = Scored("embedded", "validation", "concat", "full")


def compared(results: Results, scored: Scored = SCORED):
    (lines,) = loss_lines(results).values()
    return beside_the_paper(results, scored, lines)


def test_the_order_is_held_against_the_papers():
    words, table = compared(sample_results())
    assert "Only the order can be compared" in words[0]
    for apart in ("0.37M parameters", "trained at 64", "embedded, concat", "scored on embedded"):
        assert apart in words[0]
    trained, twice, four = words[1:]
    assert "rope < fire < alibi; in the paper fire < rope < alibi" in trained
    assert "Pairs in the paper's order: 2. Reversed (1): rope before fire." in trained
    # Table 4 at 4096: fire 3.046, rope 3.375, alibi 3.438.
    assert "fire < alibi < rope; in the paper fire < rope < alibi" in twice
    assert "Reversed (1): alibi before rope" in four
    assert table.header[2:] == [
        "x1: ours", "paper, column 2048", "x2: ours", "paper, column 4096",
        "x4: ours", "paper, column 8192",
    ]  # fmt: skip
    cells = {row[0]: row[1:] for row in table.rows}
    assert cells["fire"][1:5] == ["1.810", "3.054", "1.790", "3.046"]
    assert cells["rope"][0] == "Table 4, RoPE" and cells["rope"][2] == "3.070"


def of_one_seed(noise: float | None) -> Results:
    rows = [row for row in sample_results().losses if "0" in row.run]
    return dataclasses.replace(
        with_losses(sample_results(), rows), scored=text_of(rows, noise) if noise else []
    )


def test_of_one_seed_the_order_is_by_value_with_errors_in_pairs():
    """With one seed there is no test over seeds, so the report mentions none.

    Differences have errors over their common text, far below the errors of the losses (0.05).
    """
    words, _ = compared(of_one_seed(noise=0.01))
    trained = words[1]
    assert "Welch" not in trained and "there is no test over seeds" in trained
    assert "best first: rope 1.700 < fire 1.800 (+0.100 ± 0.00" in trained
    assert "the preceding encoding, ± its standard error over the rows of their common" in trained
    assert "Pairs in the paper's order: 2. Reversed (1): rope before fire." in trained
    close = " ".join(compared(of_one_seed(noise=1.0))[0])
    assert "fire and alibi (0.1" in close
    assert "As close as two seeds of one encoding may be (" in close


def test_of_one_seed_without_a_recorded_text_there_is_the_order_alone():
    trained = compared(of_one_seed(noise=None))[0][1]
    assert "best first: rope 1.700 < fire 1.800 < alibi 1.900; in the paper" in trained
    assert "Pairs in the paper's order: 2. Reversed (1)" in trained
    assert "±" not in trained and "Welch" not in trained


def test_a_single_seed_beside_several_is_ordered_by_value():
    rows = [row for row in sample_results().losses if row.run != "fire-seed1"]
    trained = compared(with_losses(sample_results(), rows))[0][1]
    assert "there is no test over seeds" in trained and "Pairs in the paper's order: 2" in trained


def test_the_papers_digits_are_kept_and_ties_are_ties():
    """Table 6 has two digits and Table 4 three: at 4096, fire_gelu's 3.05 equals fire's 3.046."""
    results = sample_results()
    renamed = {"alibi": "fire_gelu"}
    runs = [
        dataclasses.replace(run, encoding=e, arm=e)
        for run in results.runs
        for e in [renamed.get(run.encoding, run.encoding)]
    ]
    words, table = compared(dataclasses.replace(results, runs=runs))
    assert "Equal at the paper's precision: 1." in words[2]
    assert next(row for row in table.rows if row[0] == "fire_gelu")[5] == "3.05"


def test_arms_of_one_encoding_are_no_pairs():
    results = sample_results()
    runs = [
        dataclasses.replace(run, arm=f"{run.encoding}, rate {run.seed}") for run in results.runs
    ]
    words, _ = compared(dataclasses.replace(results, runs=runs))
    assert "in the paper fire < rope < alibi." in words[1]
    same, other_way = re.findall(r"order: (\d+)\. Reversed \((\d+)\)", words[1])[0]
    assert int(same) + int(other_way) == 12, "of 15 pairs three are an encoding with itself"


def test_only_the_papers_scale_on_its_data_is_not_called_another():
    results = sample_results()
    same = [
        dataclasses.replace(run, parameters=110_000_000, train_length=2048, data="c4, concat")
        for run in results.runs
    ]
    rows = [dataclasses.replace(row, length=row.length * 32) for row in results.losses]
    results = dataclasses.replace(results, runs=same, losses=rows)
    c4 = Scored("c4", "validation", "concat", "full")
    assert compared(results, c4)[0][0].startswith("The scale, the training")
    for other in ("arxiv", "full"), ("c4", "sliding"):
        scored = Scored(other[0], "validation", "concat", other[1])
        assert "scored on" in compared(results, scored)[0][0]
    going = [dataclasses.replace(run, step=10) for run in same]
    words, _ = compared(dataclasses.replace(results, runs=going), c4)
    assert "some runs are unfinished" in words[0]
    large = [dataclasses.replace(run, parameters=335_000_000) for run in same]
    assert compared(dataclasses.replace(results, runs=large), c4) == ([], None)


def test_seeds_without_a_common_step_are_rows_of_their_own():
    results = sample_results()
    early = dataclasses.replace(
        results,
        losses=[
            dataclasses.replace(row, step=500) if row.run == "fire-seed1" else row
            for row in results.losses
        ],
    )
    _, table = compared(early)
    assert {"fire, step 500", "fire, step 1000"} <= {row[0] for row in table.rows}


def test_pairs_are_told_apart_as_at_the_top_of_the_report():
    """An arm that is not in the paper belongs to the family of tests here too."""
    results = sample_results()
    runs = [dataclasses.replace(run, run=f"{run.run}-b") for run in results.runs]
    runs = [dataclasses.replace(run, encoding="mine", arm=f"mine {run.arm}") for run in runs]
    more = dataclasses.replace(
        results,
        runs=[*results.runs, *runs],
        losses=[
            *results.losses,
            *(dataclasses.replace(row, run=f"{row.run}-b") for row in results.losses),
        ],
    )
    (trained, *_) = compared(more)[0][1:]
    (lines,) = loss_lines(more).values()
    family = loss_comparison(lines, NATS).families[64]
    assert len(family.means) == 6 and "for all 15 pairs at this length" in trained
    close = [f"{one} and {other}" for one, other in (("fire", "rope"), ("fire", "alibi"))
             if not family.apart(one, other)]  # fmt: skip
    assert close and all(pair in trained for pair in close)
