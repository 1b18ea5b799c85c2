"""`fire-lm bench model`: real programs next to one another, and skipped rows."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from fire_lm import cli
from fire_lm.bench import load_peer, machine, model, race, workload
from fire_lm.bench.encodings import decoder
from fire_lm.bench.race import Case, Times
from fire_lm.bench.shared_states import States
from fire_lm.errors import RunFailed
from fire_lm.hardware.flops import FLOPS_CONVENTION, flops_per_token
from fire_lm.training import AdamW

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"apache_beam", "gin", "matplotlib", "seqio", "tensorboard", "tensorflow",
         "tensorflow_datasets", "torch"}  # fmt: skip


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(race, "SHORTEST_SECONDS", 0.0)


def check_rows(report: race.Row, encodings: list[str], lengths: list[int], tokens: int) -> None:
    rows = {(row["length"], row["encoding"]): row for row in report["rows"]}
    assert list(rows) == [(length, name) for length in lengths for name in encodings]
    for (length, name), row in rows.items():
        nope = rows[length, "nope"]
        assert row["batch"] == tokens // length and row["mfu"] is None
        assert row["tokens_per_second"] == row["batch"] * length / row["train"]["seconds"]
        for cost, base in ((row[call], nope[call]) for call in ("forward", "train")):
            assert cost["seconds"] == min(cost["rounds_s"]) > 0
            assert cost["x_nope"] == cost["seconds"] / base["seconds"]
            assert cost["temp_bytes"] is not None and cost["temp_bytes"] > 0
        assert name != "nope" or row["train"]["x_nope"] == 1


@pytest.mark.ci
def test_the_real_programs(hasty, tmp_path, capsys):
    """A quick benchmark of one encoding; nope is added although it was not requested."""
    path = tmp_path / "bench.json"
    asked_for = ["--size=tiny", "--lengths=16", "--encodings=", "--tokens_per_batch=40"]
    report = model.bench(cli.parse(["bench", "model", *asked_for, "--rounds=1", f"--json={path}"]))
    check_rows(report, ["nope"], [16], 40)
    assert report["machine"]["clock"] == "CPU" and report["dtype"] == "float32"
    assert report["rows"][0]["attention"] == "dense"
    shown = capsys.readouterr()
    assert shown.out == model.text(report) + "\n" and "MFU" not in shown.out
    assert "round 1 of 1: fire_lm nope 16 train" in shown.err
    assert json.loads(path.read_text()) == report


# The complete command in a process that must not import any heavy package.
_ALONE = f"""
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Blocked())
from fire_lm.bench import race
race.SHORTEST_SECONDS = 0.0
from fire_lm.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_the_whole_command_with_jax_flax_and_optax_alone(tmp_path):
    path = tmp_path / "bench.json"
    asked_for = ["--size=tiny", "--lengths=64,128", "--encodings=fire,alibi", "--rounds=1"]
    done = subprocess.run(
        [sys.executable, "-c", _ALONE, "bench", "model", *asked_for]
        + ["--tokens_per_batch=256", f"--json={path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    check_rows(report, ["nope", "fire", "alibi"], [64, 128], 256)
    assert [row["attention"] for row in report["rows"]] == ["dense"] * 3 + ["blockwise"] * 3
    assert done.stdout == model.text(report) + "\n"
    assert len(report["machine"]["cores"]) <= 1  # empty where the system does not report it
    for row in report["rows"]:
        assert f"warm-up: fire_lm {row['encoding']} {row['length']} train" in done.stderr


def stand_in(monkeypatch) -> None:
    """Replace the cases by ones that need no compiler and take no time."""

    class NoStates:
        def __init__(self, *args: Any):
            pass

        def add(self, *args: Any) -> None:
            pass

    def build(name, decoder, length, setting, states) -> Case:
        facts = {"batch": 1, "attention": "dense", "flops_per_token": 1.0}
        return Case(name, length, {"forward": bool, "train": bool}, facts=facts)

    def no_race(cases, rounds) -> race.Results:
        return {case.key: {call: Times([2.0], [2.0]) for call in case.calls} for case in cases}

    monkeypatch.setattr(model, "States", NoStates)
    monkeypatch.setattr(model, "build", build)
    monkeypatch.setattr(model, "race", no_race)


def test_what_an_encoding_cannot_take_is_left_out_and_said(monkeypatch, capsys):
    """Lengths beyond the 2048 rows of a learned table are skipped with a message."""
    stand_in(monkeypatch)
    lengths = "--lengths=2048,4096,8192,2048"
    arguments = cli.parse(["bench", "model", "--size=tiny", "--encodings=learned", lengths])
    report = model.bench(arguments)
    found = [(row["encoding"], row["length"]) for row in report["rows"]]
    assert found == [("nope", 2048), ("learned", 2048), ("nope", 4096), ("nope", 8192)]
    left_out = report["left_out"]
    assert [told.partition(":")[0] for told in left_out] == ["learned at 4096", "learned at 8192"]
    shown = capsys.readouterr().out
    for told in left_out:
        assert f"skipped: {told}\n" in shown and "2048 positions" in told


def test_a_device_that_is_too_small_is_told(monkeypatch, capsys):
    def no_memory(*args: Any) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    stand_in(monkeypatch)
    monkeypatch.setattr(model, "race", no_memory)
    eight = Mesh(np.array(jax.devices()[:1] * 8), ("data",))
    setting = workload.workload_for("tiny", 64)._replace(tokens_per_batch=8 * 64, mesh=eight)
    monkeypatch.setattr(model, "workload_for", lambda *_: setting)
    with pytest.raises(RunFailed, match=r"lower --tokens_per_batch \(now 64\)"):
        model.bench(cli.parse(["bench", "model", "--size=tiny", "--lengths=64"]))


def test_utilisation_is_flops_over_the_peak():
    """100k tokens/s of a 125M model without attention is 75 of 989 TFLOP/s."""
    flops = flops_per_token(125_000_000, 12, 768, 0)
    found = model.utilisation(1e5, flops, "NVIDIA H200")
    assert found == pytest.approx(6 * 125e6 * 1e5 / 989e12)
    assert model.utilisation(1e5, flops, "cpu") is None


@pytest.mark.parametrize(
    ("backend", "clock", "dtype", "tokens", "processor"),
    [
        ("cpu", "CPU", "float32", workload.TOKENS_ON_CPU, "some CPU"),
        ("gpu", "wall", "bfloat16", workload.TOKENS, "NVIDIA H200"),
    ],
)
def test_each_backend_has_its_measure(backend, clock, dtype, tokens, processor, monkeypatch):
    """Accelerators are timed by wall clock, because the process waits while they compute."""
    device = SimpleNamespace(platform=backend, device_kind="NVIDIA H200")
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    setting = workload.workload_for("tiny", None, "best")
    assert (setting.dtype, setting.tokens_per_batch) == (dtype, tokens)
    assert setting.mesh.size == 1
    monkeypatch.setattr(jax, "devices", lambda: [device])
    monkeypatch.setattr(machine.host, "cpu_model", lambda: "some CPU")
    description = machine.machine(0.5, {})
    assert tuple(description[key] for key in ("backend", "clock", "processor")) == (
        backend,
        clock,
        processor,
    )


def test_the_protocol_of_the_paper_is_the_mean_on_all_devices():
    setting = workload.workload_for("tiny", 64, "paper")
    assert setting.mesh.size == jax.local_device_count() > 1
    assert setting.tokens_per_batch == 64 * setting.mesh.size
    own, nope = Times(cpu_s=[3.0, 6.0], wall_s=[3.0, 9.0]), Times([2.0, 4.0], [2, 4])
    mean = race.cost(own, nope, "wall", None, "paper")
    assert (mean["seconds"], mean["x_nope"], mean["wall_s"]) == (6.0, 2.0, 3.0)
    best = race.cost(own, nope, "wall", None)
    assert (best["seconds"], best["x_nope"]) == (3.0, 1.5)
    costs = {"forward": best, "train": {**mean, "spread": 2.0}}
    row = {"encoding": "nope", "length": 8, "batch": 2, "attention": "dense", **costs}
    report = {
        "machine": machine.machine(0.5, {}),
        "model": "tiny",
        "flops_convention": FLOPS_CONVENTION,
        "rows": [{**row, "tokens_per_second": 1234.5, "mfu": 0.25}],
        "left_out": ["learned at 4096: too long"],
        "protocol": "paper",
        "devices": 4,
    }
    text = model.text(report)
    assert "on 4 devices, mean of 2 rounds" in text
    assert f"MFU: FLOPs per token = {FLOPS_CONVENTION}" in text and "25.0%" in text
    assert text.endswith("skipped: learned at 4096: too long")


@pytest.mark.ci
def test_encodings_share_all_but_their_own():
    setting = workload.workload_for("tiny", 64, "best")
    states = States(AdamW().build(1000), setting.mesh)
    for name in ("nope", "learned"):
        states.add(name, decoder(name, *setting[:3]))
    nope, learned = states.of("nope"), states.of("learned")
    shared = dict(learned.params)
    own = shared.pop("position")
    assert jax.tree.all(jax.tree.map(lambda a, b: a is b, shared, nope.params))
    states.replace("nope", jax.tree.map(lambda x: x + 1 if x.dtype == np.float32 else x, nope))
    after = states.of("learned")
    assert after.params["position"]["embedding"] is own["embedding"]
    np.testing.assert_array_equal(after.params["embedding"], shared["embedding"] + 1)
    states.add("learned", decoder("learned", *setting[:3]))  # adding it again changes nothing
    assert states.of("learned").params["embedding"] is after.params["embedding"]


@pytest.mark.interop("torch")
def test_training_steps_beside_those_of_torch(hasty):
    chosen = ["--size=tiny", "--lengths=16", "--encodings=fire,alibi", "--tokens_per_batch=32"]
    arguments = cli.parse(["bench", "model", *chosen, "--rounds=1", "--peer=torch"])
    report = model.bench(arguments, load_peer("torch"))
    assert [row["encoding"] for row in report["peers"]] == ["nope", "fire"]  # torch has no ALiBi
    assert all(row["train"] > 0 for row in report["peers"])
    assert "ours / torch" in model.text(report)
