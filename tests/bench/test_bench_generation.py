"""`fire-lm bench generate`: real programs next to one another, skipped rows, and bad usage."""

import dataclasses
import json
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from sample_decoders import configured, filled

from fire_lm import cli
from fire_lm.bench import generation, load_peer, race
from fire_lm.bench.race import Case, Times
from fire_lm.errors import UserError


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(race, "SHORTEST_SECONDS", 0.0)


@pytest.mark.ci
def test_the_real_programs(hasty, tmp_path, capsys):
    """NoPE is added although it was not requested; a learned table has only 2048 rows."""
    path = tmp_path / "bench.json"
    asked = ["--size=tiny", "--lengths=64,2047", "--encodings=learned", "--new_tokens=3"]
    report = generation.bench(
        cli.parse(["bench", "generate", *asked, "--rounds=2", f"--json={path}"])
    )
    assert [(row["encoding"], row["length"]) for row in report["rows"]] == [
        *(("nope", 64), ("learned", 64), ("nope", 2047))
    ]
    assert [reason.partition(":")[0] for reason in report["left_out"]] == ["learned at 2047"]
    for row in report["rows"]:
        assert row["cache_bytes"] == 2 * 3 * (row["length"] + 3) * 96 * 4  # of 3 layers in float32
        for cost in (row["prefill"], row["token"]):
            assert cost["seconds"] == min(cost["rounds_s"]) > 0 and len(cost["rounds_s"]) == 2
            assert row["encoding"] == "learned" or cost["x_nope"] == 1
    longest = report["rows"][-1]
    assert longest["token"]["temp_bytes"] < longest["cache_bytes"]  # the cache is not copied
    assert capsys.readouterr().out == generation.text(report) + "\n"
    assert json.loads(path.read_text()) == report


def test_a_token_is_a_part_of_its_call_and_of_the_difference_of_the_peers_calls():
    ours, theirs = (
        Case("fire", 8, {}, kind={"library": name}, output=lambda: np.array([[5, 6, 7]]))
        for name in ("fire_lm", "peer")
    )
    theirs = dataclasses.replace(theirs, output=lambda: np.array([[5, 9, 7]]))
    one = {"prefill": Times([2.0, 4.0], [2.0, 4.0]), "token": Times([6.0, 3.0], [6.0, 3.0])}
    two = {"prefill": Times([4.0, 8.0], [4.0, 8.0]), "all": Times([10.0, 12.0], [10.0, 12.0])}
    row = generation.beside(ours, theirs, {ours.key: one, theirs.key: two})
    assert (row["prefill"], row["token"]) == (0.5, 4.5 / 5), "medians of 6 and 3, and of 6 and 4"
    assert (row["same_tokens"], row["tokens"]) == (2, 3)
    noisy = two | {"all": Times([10.0, 8.0], [10.0, 8.0])}
    row = generation.beside(ours, theirs, {ours.key: one, theirs.key: noisy})
    assert (row["prefill"], row["token"]) == (0.5, None), "the second round shows no token"


def test_a_peer_on_the_cpu_is_not_compared_with_a_gpu(monkeypatch):
    monkeypatch.setattr(generation.jax, "default_backend", lambda: "gpu")
    with pytest.raises(UserError, match="generates on the CPU, but JAX runs on a gpu"):
        generation.bench(cli.parse(["bench", "generate"]), SimpleNamespace(NAME="peer"))


@pytest.mark.interop("torch", "transformers")
def test_transformers_generates_the_same(hasty, capsys):
    """With torch and transformers installed, a stock class and our own class generate the same."""
    asked = ["--size=tiny", "--lengths=32", "--encodings=fire", "--new_tokens=4", "--peer=torch"]
    peer = load_peer("torch", "transformers_peer")
    report = generation.bench(cli.parse(["bench", "generate", *asked, "--rounds=1"]), peer)
    peers = report["peers"]
    assert [(row["encoding"], row["same_tokens"]) for row in peers] == [("nope", 4), ("fire", 4)]
    assert all(row["prefill"] > 0 and row["token"] > 0 and row["tokens"] == 4 for row in peers)
    assert "same tokens" in capsys.readouterr().out


@pytest.mark.interop("torch", "transformers")
def test_the_peer_writes_behind_the_end_of_a_document():
    """The peer keeps generating after the end of a document; this model emits only end tokens."""
    model = configured("nope")
    params = filled(model)
    bias = 100 * params["embedding"][1]
    params["final_norm"] = {"scale": jnp.zeros_like(bias), "bias": bias}
    peer = load_peer("torch", "transformers_peer").Peer(model, params, np.full((2, 5), 3), 4)
    np.testing.assert_array_equal(peer.call(4)(), np.ones((2, 4)))


def test_a_peer_that_is_not_installed(monkeypatch):
    monkeypatch.delitem(sys.modules, "fire_lm.bench.transformers_peer", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match="not installed here"):
        load_peer("torch", "transformers_peer")
