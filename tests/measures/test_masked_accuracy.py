"""Masked accuracy: the same tokens at every length, by batch and by a model that copies."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from sample_blocks import blocks, data_dir, whole  # noqa: F401 (fixtures)

from fire_lm.data import Blocks, MaskedText
from fire_lm.errors import RunFailed, UserError
from fire_lm.measures import masked_accuracy
from fire_lm.measures.base import RunModel
from fire_lm.measures.masked_accuracy import MaskedAccuracy
from fire_lm.models import ModelSize, build_decoder, build_encoder
from fire_lm.positions.resampling import Resampling
from fire_lm.positions.rope import RoPE
from fire_lm.sharding import MeshShape, make_mesh

IDS = 260  # the byte vocabulary and the mask token


@dataclasses.dataclass(frozen=True)
class Copying:
    """A model that predicts what it reads."""

    vocab_size: int = IDS
    resampling: Resampling = Resampling()
    encodings: tuple[Any, ...] = ()

    def clone(self, **_: Any) -> "Copying":
        return self

    def apply(self, _: Any, inputs_BT: jax.Array, *__: Any) -> jax.Array:
        return 30.0 * jax.nn.one_hot(inputs_BT, self.vocab_size)


def run_model(
    model: Any, folder: Path, construction: Any = "concat", rate: float = 0.15
) -> RunModel:
    data = MaskedText(Blocks(str(folder), construction=construction), rate)
    return RunModel(folder, "rope", "", model, 64, lambda: data)  # type: ignore[arg-type]


def rows(measure: MaskedAccuracy, one: RunModel, params: Any = ()) -> dict[Any, Any]:
    measure.check(one)
    mesh = make_mesh(MeshShape())
    cells = measure.plan(one, 7)
    rows = [row for cell in cells for row in measure.run(cell, lambda: params, mesh)]
    return {(row.quantity, row.length): row for row in rows}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lengths": (64, 96)}, "lengths has 96: it must be a power of two"),
        ({"lengths": ()}, "lengths is empty"),
        ({"tokens": 0}, "tokens is 0: it must be 1 or more"),
        ({"seed": -1}, "seed is -1: it must be 0 or more"),
    ],
)
def test_settings_are_checked(settings, words):
    with pytest.raises(UserError, match=words):
        MaskedAccuracy(**settings)


@pytest.mark.ci
def test_a_model_that_copies_finds_the_tokens_that_are_kept(blocks):  # noqa: F811
    """These are 10 %; the other hidden tokens are never what the model reads."""
    measure = MaskedAccuracy(lengths=(8, 32), tokens=8192, split="train")
    found = rows(measure, run_model(Copying(), blocks))
    accuracy = found["accuracy", 8]
    assert accuracy.value == found["accuracy", 32].value == pytest.approx(10, abs=4)
    assert 0 < accuracy.stderr < 4 and found["loss", 8].value == pytest.approx(27, abs=2)


def test_other_texts_have_other_cells(monkeypatch):
    """Another text, length, split, share or seed is computed anew, beside the rows that exist."""
    monkeypatch.setattr(Blocks, "label", lambda _: "of one name")
    monkeypatch.setattr(masked_accuracy, "choose_text", lambda data, *_: data.path)
    monkeypatch.setattr(masked_accuracy, "text_hash", str)
    usual, plain = MaskedAccuracy(), run_model(Copying(), Path("text"))
    settings = [
        (usual, plain),
        (MaskedAccuracy(tokens=1_048_576), plain),
        (MaskedAccuracy(split="train"), plain),
        (MaskedAccuracy(seed=1), plain),
        (usual, run_model(Copying(), Path("text"), "packed")),
        (usual, run_model(Copying(), Path("text"), rate=0.4)),
        (usual, run_model(Copying(), Path("another"))),
    ]
    cells = [cell for measure, one in settings for cell in measure.plan(one, 7)]
    assert len({cell.key for cell in cells}) == len({cell.claim for cell in cells}) == 35
    identities = [measure.identity(one) for measure, one in settings]
    assert all(x != y for x, y in itertools.combinations(identities, 2))


@pytest.mark.ci
@pytest.mark.parametrize("construction", ["concat", "cut", "packed"])
def test_accuracy_depends_neither_on_the_batch_nor_on_padding(blocks, construction):  # noqa: F811
    size = ModelSize(1, 16, 2, 8, 32, 0.3)
    model = build_encoder(build_decoder(size, RoPE, IDS, 16, dtype="float32"))
    tokens = np.zeros((1, 1), np.int32)
    params = model.init(jax.random.key(0), tokens, tokens)["params"]
    one = run_model(model, blocks, construction)
    results = [
        rows(MaskedAccuracy(lengths=(16,), tokens=2048, tokens_per_batch=batch), one, params)
        for batch in (48, 4096)
    ]
    for key, row in results[0].items():
        assert row.value == pytest.approx(results[1][key].value, rel=1e-5)
        assert row.stderr == pytest.approx(results[1][key].stderr, rel=1e-5)
    broken = jax.tree.map(lambda x: np.nan * x, params)
    with pytest.raises(RunFailed, match="at length 16: the model returns NaN"):
        rows(MaskedAccuracy(lengths=(16,), tokens=2048), one, broken)
