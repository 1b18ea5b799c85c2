"""The README is true: its example encoding works as printed, its files exist."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp

from fire_lm.models import build_decoder, size_tiny, token_losses
from fire_lm.positions.base import PositionalEncoding, distance

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_example_encoding_trains_as_printed():
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    names = {
        "dataclasses": dataclasses,
        "jnp": jnp,
        "PositionalEncoding": PositionalEncoding,
        "distance": distance,
    }
    exec(code, names)
    gin = re.search(r"configs/positions/\w+\.gin\nENCODING = '(\w+)'\nPOSITION = @(\w+)", README)
    assert gin[1] == gin[2].lower()
    model = build_decoder(size_tiny(), names[gin[2]], 32, 16, dtype="float32")
    targets = jnp.arange(1, 17, dtype=jnp.int32)[None]
    params = model.init(jax.random.key(0), targets, targets)["params"]
    assert params["layers"]["position"]["weight"].shape == (3, 3)  # layers, heads
    gradient = jax.jit(
        jax.grad(lambda p: token_losses(model, p, targets, jnp.arange(16)[None])[0].sum())
    )(params)
    assert float(jnp.abs(gradient["layers"]["position"]["weight"]).min()) > 0


def test_every_path_of_the_file_map_is_there():
    table = README[README.index("## File map") : README.index("`scripts/test --ci`")]
    paths = re.findall(r"`([\w./]+/[\w./]*)`", table)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
