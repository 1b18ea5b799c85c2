"""A tiny model, synthetic text, and sweeps over them."""

import dataclasses
import functools
import importlib.util
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath

from fire_lm import sharding
from fire_lm.data import ScoringText, TextData
from fire_lm.measures import LengthSweep, RunModel, SweepResult, scoring, text_choice
from fire_lm.measures.measurements import Known
from fire_lm.measures.position_losses import tokens_in_bins
from fire_lm.measures.protocols import Windows, windows
from fire_lm.models import Decoder, Turn, size_tiny
from fire_lm.positions.fire import FIRE
from fire_lm.results import PositionLoss, ScoredText, SweepRow, Texts

module = importlib.import_module("fire_lm.measures.length_sweep")


VOCAB = 32
LONGEST = 32
BUDGET = 32 * LONGEST + 5  # read in rows of LONGEST
SCORE = scoring.row_losses
SIZE = size_tiny(num_layers=2, hidden_size=16, num_heads=2, head_dim=8, mlp_size=32, init_std=1)
MODEL = Decoder(SIZE, (Turn(FIRE(2, 8, train_length=8, hidden_size=16)),), VOCAB)
TOKEN_BT = np.zeros((1, 1), np.int32)


@functools.cache
def params() -> Any:
    """Return the parameters; made at import, every worker would compile them to collect tests."""
    return jax.jit(MODEL.init)(jax.random.key(0), TOKEN_BT, TOKEN_BT)["params"]


def full(length: int) -> Windows:
    return windows("full", length, LONGEST)


def random_text(rows: int, seed: int = 0) -> ScoringText:
    """Return rows as `cut` makes them: some are padded at the end, one has a single token."""
    random = np.random.default_rng(seed)
    targets = random.integers(1, VOCAB, (rows, LONGEST)).astype(np.int32)
    tokens = random.integers(1, LONGEST + 1, rows)
    tokens[:3] = [LONGEST, LONGEST - 5, 1][:rows]
    targets[np.arange(LONGEST) >= tokens[:, None]] = 0
    byte_counts = random.integers(0, 8, targets.shape).astype(np.int32) * (targets != 0)
    return ScoringText(targets, byte_counts, skipped=0)


def mesh_of(data: int = 1, fsdp: int = 1, tensor: int = 1) -> jax.sharding.Mesh:
    devices = np.array(jax.devices()[: data * fsdp * tensor]).reshape(data, fsdp, tensor)
    return jax.sharding.Mesh(devices, sharding.AXES)


def packed_text() -> ScoringText:
    """Return rows of three to five documents, some of them padded."""
    text, random = random_text(6), np.random.default_rng(1)
    segments = np.cumsum(random.random(text.targets.shape) < 0.1, axis=1).astype(np.int32) + 1
    return dataclasses.replace(text, segment_ids=segments * (text.targets != 0))


@dataclasses.dataclass
class Sweep:
    """A sweep over synthetic text that collects its results and the lengths it computed."""

    rows: list[SweepRow] = dataclasses.field(default_factory=list)
    texts: list[ScoredText] = dataclasses.field(default_factory=list)
    computed: list[int] = dataclasses.field(default_factory=list)
    positions: list[PositionLoss] = dataclasses.field(default_factory=list)
    weights: Any = None

    def known(self) -> Known:
        texts = Texts(self.texts)
        return Known(
            {row.key: row for row in self.rows},
            texts.of_rows(self.rows),
            texts.of_all_positions(self.positions),
        )

    def __call__(self, **changes) -> list[SweepRow]:
        """Run the sweep with `changes` and return the rows that this adds."""
        new: list[SweepRow] = []

        def add(result: SweepResult) -> None:
            new.extend([result.row] if result.row.key not in self.known().rows else [])
            self.texts.extend([result.text] if result.text else [])
            self.positions.extend(result.positions)

        call: dict[str, Any] = {"step": 7, "run": "run", "variant": "", "known": self.known()}
        call["on_scored"] = add
        settings: dict[str, Any] = {
            "model": MODEL,
            "encoding": "fire",
            "data": TextData("nowhere"),
            "lengths": (LONGEST, 8, 16),
            "tokens": BUDGET,
            "tokens_per_batch": 64,
        }
        for name, value in changes.items():
            (call if name in call else settings)[name] = value
        asked = LengthSweep(**settings)
        run_model = RunModel(epath.Path(call["run"]), "fire", call["variant"], asked.model)
        (cell,) = asked.plan(run_model, call["step"])
        mesh = sharding.make_mesh(asked.mesh)
        for scored in asked.missing_results(
            cell, call["known"], lambda: self.weights or params(), mesh
        ):
            call["on_scored"](scored)
        self.rows += new
        return new


@pytest.fixture
def sweep(monkeypatch) -> Sweep:
    """Return a sweep whose model is replaced by 2 nats for every token."""
    sweep = Sweep()

    def text(data, *, length, num_sequences, split):
        assert length == LONGEST
        return random_text(num_sequences, seed=num_sequences)

    def two_nats(model, params, text, laid, batch, mesh, name, bins):
        sweep.computed.append(laid.length)
        return 2.0 * tokens_in_bins(text, laid, bins)

    monkeypatch.setattr(text_choice, "read_scoring_text", text)
    monkeypatch.setattr(module, "row_losses", two_nats)
    return sweep
