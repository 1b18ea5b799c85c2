"""Synthetic results of two seeds of three encodings, of every kind that a report shows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import numpy as np

from fire_lm.results import ScoredText, SweepRow, scored_text
from fire_lm.results.folder import Results, RunFacts, Setting
from fire_lm.results.tables import (
    AttentionScore,
    BiasValue,
    LearnedNumber,
    PositionLoss,
    TrainingPoint,
)

LENGTHS = (64, 128, 256)
# nll of seed 0 at each length; seed 1 has 0.02 more.
LOSSES = {"fire": (1.80, 1.78, 1.86), "rope": (1.70, 1.96, 2.50), "alibi": (1.90, 1.88, 1.87)}
TEXT = ("embedded", "validation", "concat")


def facts(encoding: str, seed: int) -> RunFacts:
    return RunFacts(
        run=f"{encoding}-seed{seed}",
        encoding=encoding,
        arm=encoding,
        seed=seed,
        model="3 layers x 96",
        parameters=372_576,
        encoding_parameters=3_663 if encoding == "fire" else 0,
        train_length=64,
        batch_size=16,
        step=1000,
        train_steps=1000,
        data="embedded, concat",
        machine="2 x x86_64 CPU core, jax 0.10.2",
        began="2026-11-22",
        seconds=90.5,
    )


def loss_row(run: RunFacts, length: int, nll: float, tokens: int = 4096) -> SweepRow:
    bits = nll * tokens / math.log(2) / 4000
    return SweepRow(
        *(run.run, run.encoding, "", run.step, *TEXT, "full", length),
        sequences=tokens // length,
        tokens=tokens,
        bytes=4000,
        nll=nll,
        nll_stderr=0.05,
        perplexity=math.exp(nll),
        bits_per_byte=bits,
    )


def sample_results() -> Results:
    runs = [facts(encoding, seed) for encoding in LOSSES for seed in (1, 0)]
    losses = [
        loss_row(run, length, nll + 0.02 * run.seed)
        for run in runs
        for length, nll in zip(LENGTHS, LOSSES[run.encoding], strict=True)
    ]
    positions = [
        PositionLoss(run.run, run.encoding, "", 1000, *TEXT, 256, first, first + 15, 256, 2.0, 0.1)
        for run in runs
        for first in range(0, 256, 16)
    ]
    training = [
        TrainingPoint(run.run, run.encoding, step, 1024 * step, 6 - step / 300, 1.0, 4e-3, 9e3)
        for run in runs
        for step in (1, 500, 1000)
    ]
    learned = [
        LearnedNumber("fire-seed0", "fire", step, name, layer, 16.0 + step / 100 + layer)
        for name in ("L", "c")
        for layer in range(2)
        for step in (1, 1000)
    ]
    biases = [
        BiasValue("fire-seed0", "fire", 1000, layer, head, query, key, -0.1 * (query - key) ** 0.5)
        for layer in range(2)
        for head in range(3)
        for query in (127, 8191)
        for key in (0, query // 2, query)
    ]
    scores = [
        AttentionScore(
            *("alibi-seed0", "alibi", variant, 1000, 0, 2, 127, key, key + 1),
            *(score, score - 1, score + 1),
        )
        for variant, slope in (("", 0.25), ("interpolate", 0.125))
        for key in range(0, 128, 2)
        for score in (-slope * (127 - key),)
    ]
    settings = [Setting(run.run, "POSITION", f"@{run.encoding}") for run in runs]
    return Results(
        runs=runs,
        settings=settings,
        losses=losses,
        positions=positions,
        training=training,
        learned=learned,
        biases=biases,
        scores=scores,
    )


def text_of(
    rows: Iterable[SweepRow], noise: float = 0.01, text: str = "a" * 16
) -> list[ScoredText]:
    """Return losses of 16 rows of text for each of `rows`.

    The rows of text differ by up to a nat, and runs by some noise.
    """
    found = []
    for row in rows:
        own = np.random.default_rng(len(row.run) + row.length).normal(0, noise, 16)
        nll_R = row.tokens / 16 * (row.nll + np.arange(16) / 16 + own - own.mean() - 15 / 32)
        found.append(scored_text(row, text, np.full(16, row.tokens // 16), nll_R))
    return found


def with_losses(results: Results, losses: list[SweepRow]) -> Results:
    return dataclasses.replace(results, losses=losses)
