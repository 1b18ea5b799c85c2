"""The examples of docs/add_a_mixer.md, outside the package, exactly as printed."""

import re
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from sample_decoders import SIZE, TRAINED, deviation, deviation_of_beams, filled, shapes_of

from fire_lm.encoding_properties import in_models, lacks, of_hooks
from fire_lm.experiment import load_experiment
from fire_lm.models import Decoder, Layers, build_decoder, layer_rows
from fire_lm.sharding import MeshShape, abstract_mesh, with_shardings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "add_a_mixer.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
GIN = {m[1]: m[0] for m in re.finditer(r"(?<=```\n)# (\w+)\.gin\n.*?(?=```)", PAGE, re.DOTALL)}


@pytest.fixture(scope="module", autouse=True)
def gates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")
    (folder / "gates").mkdir()
    for name, code in zip(("forget", "average"), CODE, strict=True):
        (folder / "gates" / f"{name}.py").write_text(code)
    for name, text in GIN.items():
        (folder / f"{name}.gin").write_text(text)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


def model_of(folder: Path, name: str, **changed: Any) -> Decoder:
    config = load_experiment(["configs/runs/quickstart.gin", str(folder / f"{name}.gin")])
    assert config.label == name
    size = {"size": SIZE, "vocab_size": 32, "train_length": TRAINED, **changed}
    return config.model_with(**size)


def test_the_schedule_is_what_the_page_says(gates):
    model = model_of(gates, "swan")
    shapes = shapes_of(model)
    printed = re.search(r"^layers .*?(?=```)", PAGE, re.DOTALL | re.MULTILINE)
    lines = [re.split(r"  +", line) for line in printed[0].splitlines()[1:]]
    assert [row[:3] for row in layer_rows(model, shapes)] == [line[:3] for line in lines]
    assert layer_rows(model, shapes)[0][3] == "46 tokens"


def test_a_mixer_has_a_place_on_every_mesh(gates):
    model = model_of(gates, "average")
    shapes = shapes_of(model)
    assert shapes["layers"]["block_0"]["mixer_decay"].shape == (2, 48)
    with_shardings(shapes, abstract_mesh(MeshShape()))


@pytest.mark.ci
@pytest.mark.parametrize("name", GIN)
def test_decoding_is_the_full_forward_pass(gates, name):
    assert deviation(model_of(gates, name)) < 1e-5


@pytest.mark.ci
def test_gates_follow_windows_and_beams(gates):
    """The hypotheses' log-probabilities are those of one pass over each."""
    forget = type(model_of(gates, "forget").encodings[0])
    layers = (Layers(forget, window=4), forget)
    model = build_decoder(SIZE, layers, 32, TRAINED, dtype="float32")
    assert deviation(model) < 1e-5 and deviation_of_beams(model) < 1e-4


@pytest.mark.ci
def test_the_gate_has_the_properties_of_encodings(gates):
    size, length = of_hooks.SIZE, of_hooks.LENGTH
    model = model_of(gates, "forget", size=size, train_length=length)
    (forget,) = model.encodings
    for check in (
        of_hooks.has_the_documented_size,
        in_models.has_explicit_dtypes_and_axes,
        in_models.has_the_same_values_in_blocks,
        in_models.has_no_leaks,
        in_models.has_no_leaks_in_decoding,
    ):
        assert lacks(check, forget) is None


@pytest.mark.ci
def test_the_average_restarts_in_each_document(gates):
    model = model_of(gates, "average")
    tokens = jnp.asarray(np.random.default_rng(0).integers(1, 32, (1, 12)))
    pos, segment = jnp.asarray([[*range(5), *range(7)]]), jnp.asarray([[1] * 5 + [2] * 7])
    params = filled(model)
    packed = model.apply({"params": params}, tokens, pos, segment)
    alone = model.apply({"params": params}, tokens[:, 5:], pos[:, 5:])
    np.testing.assert_allclose(packed[:, 5:], alone, atol=1e-5)
