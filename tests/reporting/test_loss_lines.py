"""Lines of losses: which rows make a mean."""

import dataclasses

from sample_results import sample_results

from fire_lm.reporting import figures
from fire_lm.reporting.comparison import beside_the_paper
from fire_lm.reporting.seeds import loss_lines, position_lines


def test_seeds_without_a_common_step_are_never_averaged():
    results = sample_results()
    one = "fire-seed1"
    early = dataclasses.replace(
        results,
        losses=[dataclasses.replace(r, step=500) if r.run == one else r for r in results.losses],
        positions=[
            dataclasses.replace(r, step=500) if r.run == one else r for r in results.positions
        ],
    )
    runs = {"fire, step 500": 1, "fire, step 1000": 1, "rope": 2, "alibi": 2}
    (lines,) = loss_lines(early).values()
    assert {line.name: line.nats[64].runs for line in lines} == runs
    (positions,) = position_lines(early).values()
    assert {name: points[0][1].runs for name, points in positions.items()} == runs
    (picture,) = figures.positions(early)
    assert "fire, step 500" in picture.alt and "fire, step 500" in picture.image.svg
    (scored,) = loss_lines(early)
    words, table = beside_the_paper(early, scored, lines)
    assert table is not None and {"fire, step 500", "fire, step 1000"} <= {r[0] for r in table.rows}
