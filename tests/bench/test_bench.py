"""`fire-lm bench`: what it times, the ratios it reports, and that the peer is the same model."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import golden_numbers as golden
import jax
import numpy as np
import pytest

from fire_lm import bench, cli
from fire_lm.attention import attend
from fire_lm.bench import attention, one_attention, rounds, tables
from fire_lm.bench.encodings import ENCODINGS
from fire_lm.bench.rounds import Times
from fire_lm.bench.tables import AccuracyRow, MemoryRow, PeerRow, Report, Row
from fire_lm.bench.torch_weights import torch_state
from fire_lm.experiment import load_experiment
from fire_lm.models import changes, size_tiny
from fire_lm.results.bench_times import Cost, Machine

ROOT = Path(__file__).resolve().parents[2]
TINY = size_tiny(num_layers=2, hidden_size=24, head_dim=8, mlp_size=32)


@pytest.fixture(autouse=True)
def leave_no_trace(monkeypatch):
    """Restore the environment variables that the command sets for libraries that load later."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "XLA_PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(rounds, "SHORTEST_SECONDS", 0.0)
    monkeypatch.setattr(attention, "MATMUL_SIZE", 64)


def report_from(text: str) -> Report:
    """Parse a report from the JSON that `--json` writes."""
    data = json.loads(text)
    rows = [
        Row(**{**row, "forward": Cost(**row["forward"]), "train": Cost(**row["train"])})
        for row in data["rows"]
    ]
    return Report(
        description=data["description"],
        machine=Machine(**data["machine"]),
        matmul_size=data["matmul_size"],
        matmul_gflops=data["matmul_gflops"],
        rows=rows,
        peers=[PeerRow(**row) for row in data["peers"]],
        memory=[MemoryRow(**row) for row in data["memory"]],
        accuracy=[AccuracyRow(**row) for row in data["accuracy"]],
    )


@pytest.mark.slow
def test_the_report_of_a_small_model(hasty, tmp_path, capsys):
    """Real models are compiled and timed; nope comes first, although it was not requested."""
    path = tmp_path / "bench.json"
    asked = ["--lengths=8,8", "--encodings=fire_s,fire_s", "--rounds=2", "--memory=512,256"]
    arguments = cli.parse(["bench", "attention", *asked, f"--json={path}"])
    report = attention.bench(arguments, None, TINY)

    nope, fire = report.rows
    assert (nope.key, fire.key) == ("fire_lm nope blockwise 8", "fire_lm fire_s blockwise 8")
    for row in (nope, fire):
        for cost, base in ((row.forward, nope.forward), (row.train, nope.train)):
            assert cost.seconds == min(cost.rounds_s) > 0 and len(cost.rounds_s) == 2
            assert cost.x_nope == cost.seconds / base.seconds and cost.wall_s > 0
            assert cost.spread == max(cost.rounds_s) / cost.seconds
            assert cost.temp_bytes is not None and cost.temp_bytes > 0
        assert row.train.seconds > row.forward.seconds
    assert nope.forward.x_nope == nope.train.x_nope == 1 != fire.train.x_nope
    assert report.peers == [] and report.matmul_gflops["jax"] > 0

    dense = list(one_attention.memory([256, 512], "dense", TINY, say=lambda text: None))
    blockwise = report.memory
    for first, second in (dense, blockwise):
        assert (first.length, second.length) == (256, 512)
        assert first.forward_growth is None and first.gradient_growth is None
        assert second.forward_growth == second.forward_bytes / first.forward_bytes
        assert second.gradient_growth == second.gradient_bytes / first.gradient_bytes
        assert first.gradient_bytes > first.forward_bytes
    assert dense[1].forward_growth > 3 > 2.5 > blockwise[1].forward_growth

    (accuracy,) = report.accuracy
    assert accuracy.output_error < 1e-5 and accuracy.gradient_error < 1e-4

    shown = capsys.readouterr()
    assert shown.out == tables.text(report) + "\n"
    assert "round 2 of 2: fire_lm fire_s blockwise 8 train" in shown.err
    again = report_from(path.read_text())
    assert again == report and tables.text(again) == tables.text(report)


@pytest.mark.slow
def test_accuracy_tells_a_wrong_attention(monkeypatch):
    def wrong_in_blocks(q, *args, layout):
        q = q * 1.001 if layout.implementation == "blockwise" else q
        return attend(q, *args, layout=layout)

    monkeypatch.setattr(one_attention, "attend", wrong_in_blocks)
    row = one_attention.accuracy("blockwise", TINY)
    assert row.output_error > 1e-5 and row.gradient_error > 1e-4


@pytest.mark.slow
def test_accuracy_tells_one_gradient_that_is_nan(monkeypatch):
    def wrong_in_blocks(q, k, *args, layout):
        k = k + 0 * jax.numpy.sqrt(0 * k) if layout.implementation == "blockwise" else k
        return attend(q, k, *args, layout=layout)

    monkeypatch.setattr(one_attention, "attend", wrong_in_blocks)
    row = one_attention.accuracy("blockwise", TINY)
    assert row.output_error < 1e-5 and np.isnan(row.gradient_error)


def test_a_row_is_the_best_round_over_that_of_the_same_nope():
    def contestant(library: str, encoding: str, length: int) -> attention.Contestant:
        calls: dict[str, Any] = dict.fromkeys(("logits", "forward", "train"))
        return attention.Contestant(library, encoding, length, "x", temp_bytes=(5, 7), **calls)

    fire, nope = contestant("a", "fire", 8), contestant("a", "nope", 8)
    others = contestant("a", "nope", 16), contestant("b", "nope", 8)
    times = {
        f"{entry.key} {what}": Times([9.0, 8.0], [9.0, 8.0])
        for entry in (*others, fire, nope)
        for what in ("forward", "train")
    }
    times[f"{fire.key} forward"] = Times([4.0, 3.0, 6.0], [50.0, 70.0, 60.0])
    times[f"{nope.key} forward"] = Times([2.0, 1.5, 3.0], [20.0, 25.0, 30.0])
    found = attention.row_of(fire, times, "CPU")
    assert found.forward == Cost(3.0, 50.0, 2.0, 2.0, 5, [4.0, 3.0, 6.0])
    assert found.train == Cost(8.0, 8.0, 9 / 8, 1.0, 7, [9.0, 8.0])
    by_the_wall = attention.row_of(fire, times, "wall").forward
    assert by_the_wall == Cost(50.0, 50.0, 1.4, 2.5, 5, [50.0, 70.0, 60.0])


def test_against_a_peer():
    def row(library: str, encoding: str, length: int, forward: float, train: float) -> Row:
        costs = (Cost(s, s, 1.0, 1.0, None, [s]) for s in (forward, train))
        return Row(library, encoding, length, f"of {library}", *costs)

    mine, alone = row("fire_lm", "fire", 8, 1.0, 3.0), row("fire_lm", "t5", 8, 1.0, 1.0)
    theirs, longer = row("torch", "fire", 8, 4.0, 6.0), row("torch", "fire", 16, 9.0, 9.0)
    rows = [mine, alone, theirs, longer]
    logits = {entry.key: np.zeros((1, 8, 2)) for entry in rows}
    logits[mine.key][0, 3] = -0.5
    found = list(attention.against("torch", rows, logits))
    assert found == [PeerRow("torch", "fire", 8, "of fire_lm", 0.25, 0.5, 0.5)]


def test_rounds_take_turns_there_and_back(hasty):
    log = []
    names = ("a", "b", "c")
    calls = {name: functools.partial(log.append, name) for name in names}
    found = rounds.race(calls, 3, lambda text: None)
    assert "".join(log) == "abc" + "abc" + "cba" + "abc"
    assert {len(time.cpu_s) for time in found.values()} == {3}


def test_short_calls_are_repeated(monkeypatch):
    """The clocks advance only during calls: 0.25 s each, of which 0.125 s are CPU time."""
    clock = [0.0]
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(rounds.time, "process_time", lambda: clock[0] / 2)
    monkeypatch.setattr(rounds, "SHORTEST_SECONDS", 1.0)

    def call() -> None:
        clock[0] += 0.25

    found = rounds.race({"x": call}, 2, lambda text: None)
    assert clock[0] == 0.25 * (1 + 2 * 4)
    assert found == {"x": Times([0.125] * 2, [0.25] * 2)}


@pytest.mark.parametrize("name", ENCODINGS)
def test_encodings_are_those_of_the_gin_files(name):

    files = [f"configs/{file}.gin" for file in ("runs/c4_125m", f"positions/{name}")]
    configured = load_experiment([str(ROOT / file) for file in files]).model
    model = attention.decoder(name, "auto", attention.SIZE)
    assert set(changes(configured, model)) == {"vocab_size", "dtype", "num_layers"}


def test_the_command_line_knows_the_encodings():
    for subject in ("attention", "model"):
        assert set(cli.parse(["bench", subject]).encodings) <= set(ENCODINGS)


@pytest.mark.parametrize(
    "arguments, told",
    [
        ([], "subject"),
        (["atention"], "did you mean attention?"),
        (["attention", "--encodings=fire,alibbi"], "did you mean alibi?"),
        (["attention", "--implementations=blockwize"], "did you mean blockwise?"),
        (["attention", "--lengths=512,0"], "'0' is not a whole number"),
        (["attention", "--rounds=1.5"], "'1.5' is not a whole number"),
        (["attention", "--peer=tensorflow"], "'torch'"),
        (["attention", "--json=no/such/folder/x.json"], "no/such/folder"),
        (["data", "--data_dir=x", "--json=no/folder/x.json"], "no/folder"),
        (["attention", "--length=5"], "did you mean --lengths?"),
        (["attention", "--gin.SEED=1"], "no --gin. bindings"),
    ],
    ids=lambda value: "_".join(value[-1:]) if isinstance(value, list) else value,
)
def test_bad_usage_is_told_in_a_line_or_two(arguments, told, capsys):
    assert cli.main(["bench", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("\nfire-lm: ") and told in message
    assert len(message.strip().splitlines()) <= 3 and "Traceback" not in message


def test_a_missing_torch_is_told_and_a_broken_one_is_not_hidden(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "fire_lm.bench.torch_peer", raising=False)
    monkeypatch.delattr(bench, "torch_peer", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli.main(["bench", "attention", "--peer=torch"]) == 2
    message = capsys.readouterr().err
    assert "pip install torch" in message and len(message.strip().splitlines()) == 1
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    for name in ("torch.nn", "torch.nn.functional"):  # if another test has loaded torch
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"torch\.nn"):
        bench.load_peer("torch")


@pytest.mark.ci
@pytest.mark.parametrize(("backend", "cores"), [("cpu", {7}), ("gpu", {3, 7})])
def test_one_core_is_for_measuring_cpus(backend, cores, monkeypatch):
    """With an accelerator, the host process that feeds it keeps all its cores."""
    bound: list[set[int]] = []
    monkeypatch.setattr(bench, "bind", bound.append)
    monkeypatch.setattr(bench, "usable_cores", lambda: {3, 7})
    monkeypatch.setattr(bench, "ask_for_one_thread", lambda: None)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    with bench.one_core():
        assert bound[-1] == cores
    assert bound[-1] == {3, 7}


@pytest.mark.ci
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux alone binds to cores")
def test_the_whole_command_on_one_core(tmp_path):
    """The command runs in a separate process, as pinning must precede JAX, and restores cores."""
    cores = os.sched_getaffinity(0)
    path = tmp_path / "bench.json"
    asked = ["--lengths=4", "--encodings=nope", "--rounds=1", "--memory=", f"--json={path}"]
    script = (
        "import os, sys; from fire_lm.cli import main; code = main(sys.argv[1:])\n"
        f"assert os.sched_getaffinity(0) == {cores}\n"
        "assert not {'gin', 'seqio', 'tensorflow', 'torch'} & set(sys.modules)\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "bench", "attention", *asked],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report = report_from(path.read_text())
    assert report.machine.cores == [max(cores)] and report.machine.clock == "CPU"
    assert done.stdout == tables.text(report) + "\n" and report.memory == []
    (row,) = report.rows
    assert (row.encoding, row.length, row.train.x_nope) == ("nope", 4, 1.0)
    assert all(f"warm-up: {row.key} {what} " in done.stderr for what in ("forward", "train"))


PEERS = ["nope", "rope", "fire", "fire_appendix_e"]
STEP = 0.5  # a learning rate so large that every weight changes


def a_model(name: str) -> tuple[Any, Any, np.ndarray]:
    """Return a decoder, its weights and text, none of which depends on a library's version.

    FIRE's MLP is large and its threshold small, so that both influence the logits.
    """
    model, draw = attention.decoder(name, "dense", TINY), np.random.RandomState(0)
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
