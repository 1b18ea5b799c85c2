"""The peer in PyTorch is the same model as ours, and gave the numbers that are stored."""

from typing import Any

import golden_numbers as golden
import jax
import numpy as np
import pytest

from fire_lm.bench import attention
from fire_lm.bench.encodings import decoder
from fire_lm.bench.torch_weights import torch_state
from fire_lm.models import size_tiny

TINY = size_tiny(num_layers=2, hidden_size=24, head_dim=8, mlp_size=32)
PEERS = ["nope", "rope", "fire", "fire_appendix_e"]
STEP = 0.5  # a learning rate so large that every weight changes


def a_model(name: str) -> tuple[Any, Any, np.ndarray]:
    """Return a decoder, its weights and text, none of which depends on a library's version.

    FIRE's MLP is large and its threshold small, so that both influence the logits.
    """
    model, draw = (
        decoder(name, TINY, attention.VOCAB_SIZE, attention="dense"),
        np.random.RandomState(0),
    )
    text = draw.randint(1, attention.VOCAB_SIZE, (1, 24)).astype(np.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), text, np.arange(24)[None])["params"]

    def leaf(path: Any, shape: Any) -> np.ndarray:
        where = jax.tree_util.keystr(path, simple=True, separator="/")
        constant = {"c": 0.1, "L_multiplier": 0.02, "scale": 1.0}.get(where.split("/")[-1], 0.0)
        spread = 0.5 if "/mlp/" in where else 0.1 if constant in (0.0, 1.0) else 0.0
        return np.asarray(constant + spread * draw.normal(size=shape.shape), np.float32)

    return model, jax.tree_util.tree_map_with_path(leaf, shapes), text


def ours(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the logits, and by the peer's names, each weight's change in one training step."""
    monkeypatch.setattr(attention, "LEARNING_RATE", STEP)
    model, params, text = a_model(name)

    def run(params: Any, text: jax.Array) -> tuple[jax.Array, Any]:
        logits = attention.forward_logits(model, params, text)
        return logits, attention.sgd_step(model, params, text)[0]

    # One program, because it runs only once.
    quick = jax.jit(run)
    logits, trained = quick(params, jax.numpy.asarray(text))
    before, after = (torch_state(jax.device_get(tree)) for tree in (params, trained))
    return np.asarray(logits), {key: after[key] - before[key] for key in before}


def sketch(change: np.ndarray) -> list[float]:
    """Summarise an array by its products with random directions, which differ between arrays."""
    directions = np.random.RandomState(1).normal(size=(3, change.size))
    return [float(f"{number:.7g}") for number in directions @ np.float64(change).ravel()]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "rope" else pytest.mark.ci) for name in PEERS]
)
def test_the_peer_in_torch_had_these_numbers(name, monkeypatch):
    """Compare with stored numbers of the torch peer: the project does not depend on torch."""
    kept = golden.of(f"torch_peer_{name}.json")
    logits, changes = ours(name, monkeypatch)
    np.testing.assert_allclose(logits[0, ::4, ::16], kept["logits"], rtol=0, atol=1e-5)
    assert changes.keys() == kept["changes"].keys()
    assert ("blocks.1.attention.c" in changes) == name.startswith("fire")
    for key, change in changes.items():
        tolerance = 2e-3 * np.linalg.norm(change) + 1e-6
        np.testing.assert_allclose(
            sketch(change), kept["changes"][key], rtol=0, atol=tolerance, err_msg=key
        )


@pytest.mark.interop("torch")
@pytest.mark.parametrize("name", PEERS)
def test_the_torch_peer_is_the_same_model(name, monkeypatch):
    """Equal weights give equal logits, and one training step changes every weight equally.

    UPDATE_GOLDEN=1, with torch installed, stores torch's numbers for the test above.
    """
    from fire_lm.bench import torch_peer

    _, params, text = a_model(name)
    logits, changes = ours(name, monkeypatch)

    def new_peer(params) -> torch_peer.Peer:
        peer = torch_peer.Peer(name, TINY, attention.VOCAB_SIZE, STEP)
        peer.load(params)
        return peer

    peer = new_peer(params)
    theirs = peer.logits(peer.tokens(text))
    np.testing.assert_allclose(theirs, logits, rtol=0, atol=1e-5)

    def weights() -> dict[str, np.ndarray]:
        return {key: tensor.numpy().copy() for key, tensor in peer.model.state_dict().items()}

    before = weights()
    peer.train(peer.tokens(text))
    their_changes = {key: after - before[key] for key, after in weights().items()}
    assert set(their_changes) == set(changes)
    for key, change in changes.items():
        tolerance = 1e-3 * np.max(np.abs(change)) + 1e-6
        np.testing.assert_allclose(their_changes[key], change, rtol=0, atol=tolerance, err_msg=key)

    position = params["layers"].get("position", {})
    for part in position and ("c", "L_multiplier"):  # an error of 5% is detected
        wrong = {**params, "layers": {**params["layers"], "position": {**position}}}
        wrong["layers"]["position"][part] = 1.05 * position[part]
        assert np.max(np.abs(new_peer(wrong).logits(peer.tokens(text)) - logits)) > 1e-4

    found = {
        "logits": [[float(f"{x:.7g}") for x in row] for row in theirs[0, ::4, ::16].tolist()],
        "changes": {key: sketch(change) for key, change in their_changes.items()},
    }
    kept = golden.updated(f"torch_peer_{name}.json", found, "torch")
    assert kept["changes"].keys() == set(changes)
