"""Losses of arms with several numbers of training steps, for tests of budgets."""

import dataclasses

import numpy as np
from sample_results import facts, loss_row

from fire_lm.reporting import budgets
from fire_lm.reporting.budgets import by_budget
from fire_lm.results import scored_text
from fire_lm.results.folder import Results
from fire_lm.results.tables import BudgetSeries

# The losses of seed 0 at 64, 128 and 256 tokens, by encoding and number of steps.
LOSSES = {
    ("fire", 1000): (1.70, 1.70, 1.78),
    ("fire", 4000): (1.43, 1.43, 1.64),
    ("kerple_log", 1000): (1.73, 1.70, 1.68),
    ("kerple_log", 4000): (1.445, 1.39, 1.37),
    ("alibi", 1000): (1.80, 1.76, 1.75),
}
SEEDS = (0, 1, 2)


def results(losses=LOSSES, seeds=SEEDS) -> Results:
    """Return the losses of arms by number of steps; seeds differ by 0.05 at all lengths.

    At 256 tokens, they differ by 0.001 more.
    """
    runs, rows, series = [], [], []
    for (encoding, steps), nats in losses.items():
        for seed in seeds:
            name = f"{encoding}-{steps}-{seed}"
            run = dataclasses.replace(
                facts(encoding, seed), run=name, arm=f"{encoding}, {steps}", train_steps=steps
            )
            run = dataclasses.replace(run, step=steps)
            runs.append(run)
            series.append(BudgetSeries(name, encoding))
            for length, nll in zip((64, 128, 256), nats, strict=True):
                nll += 0.05 * seed + 0.001 * seed * (length == 256)
                rows.append(loss_row(run, length, nll, tokens=8192))
    scored = [
        scored_text(row, "a" * 16, np.full(16, 512), 512 * (row.nll + np.arange(16) / 16 - 15 / 32))
        for row in rows
    ]
    return Results(runs=runs, losses=rows, scored=scored, series=series)


def only(found: Results) -> budgets.Budgets:
    (own,) = by_budget(found).values()
    return own
