"""`fire-lm bench attention`: what it times, and the ratios it reports."""

import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from fire_lm import bench, cli
from fire_lm.attention import attend
from fire_lm.bench import attention, one_attention, race, windows
from fire_lm.bench.arguments import ATTENTION, check_json
from fire_lm.bench.encodings import ENCODINGS, decoder
from fire_lm.bench.race import Case, Times
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.models import changes, size_tiny

ROOT = Path(__file__).resolve().parents[2]
TINY = size_tiny(num_layers=2, hidden_size=24, head_dim=8, mlp_size=32)


# Flags that have no effect with another.
IGNORED = {
    "--window=4": ("--encodings=fire", "--memory=8", "--peer=torch"),
    "--tpu=v4-8": ("--lengths=8", "--implementations=dense", "--rounds=2", "--encodings=fire"),
    "--tpu=v4-8 --window=4": ("--lengths=8", "--memory=8", "--peer=torch"),
}


@pytest.fixture(autouse=True)
def leave_no_trace(monkeypatch):
    """Restore the environment variables that the command sets for libraries that load later."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "XLA_PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(race, "SHORTEST_SECONDS", 0.0)
    monkeypatch.setattr(attention, "MATMUL_SIZE", 64)


@pytest.mark.slow
def test_the_report_of_a_small_model(hasty, tmp_path, capsys):
    """Real models are compiled and timed; nope comes first, although it was not requested."""
    path = tmp_path / "bench.json"
    asked = ["--lengths=8,8", "--encodings=fire_s,fire_s", "--rounds=2", "--memory=512,256"]
    arguments = cli.parse(["bench", "attention", *asked, f"--json={path}"])
    report = attention.bench(arguments, None, TINY)

    nope, fire = report["rows"]
    kind = {"length": 8, "library": "fire_lm", "implementation": "blockwise"}
    assert kind.items() <= nope.items() and kind.items() <= fire.items()
    assert (nope["encoding"], fire["encoding"]) == ("nope", "fire_s")
    for row in (nope, fire):
        for call in ("forward", "train"):
            cost, base = row[call], nope[call]
            assert cost["seconds"] == min(cost["rounds_s"]) > 0 and len(cost["rounds_s"]) == 2
            assert cost["x_nope"] == cost["seconds"] / base["seconds"] and cost["wall_s"] > 0
            assert cost["spread"] == max(cost["rounds_s"]) / cost["seconds"]
            assert cost["temp_bytes"] is not None and cost["temp_bytes"] > 0
        assert row["train"]["seconds"] > row["forward"]["seconds"]
    assert nope["forward"]["x_nope"] == nope["train"]["x_nope"] == 1 != fire["train"]["x_nope"]
    assert report["peers"] == [] and report["matmul_gflops"]["jax"] > 0

    dense = list(one_attention.memory([256, 512], "dense", TINY))
    blockwise = report["memory"]
    for first, second in (dense, blockwise):
        assert (first["length"], second["length"]) == (256, 512)
        assert first["forward_growth"] is None and first["gradient_growth"] is None
        for what in ("forward", "gradient"):
            growth = second[f"{what}_bytes"] / first[f"{what}_bytes"]
            assert second[f"{what}_growth"] == growth
        assert first["gradient_bytes"] > first["forward_bytes"]
    assert dense[1]["forward_growth"] > 3 > 2.5 > blockwise[1]["forward_growth"]

    (accuracy,) = report["accuracy"]
    assert accuracy["output_error"] < 1e-5 and accuracy["gradient_error"] < 1e-4

    shown = capsys.readouterr()
    assert shown.out == attention.text(report) + "\n"
    assert "round 2 of 2: fire_lm blockwise fire_s 8 train" in shown.err
    assert json.loads(path.read_text()) == report


@pytest.mark.ci
def test_a_window_beside_the_full_attention(hasty, monkeypatch, tmp_path, capsys):
    monkeypatch.delitem(windows.ENCODINGS, "fire")
    path = tmp_path / "windows.json"
    command = ["bench", "attention", "--window=32", "--lengths=128", "--rounds=1"]
    rows = windows.bench(cli.parse([*command, f"--json={path}"]), TINY)
    assert [row["what"] for row in rows] == ["forward", "forward and backward"]
    assert all(row["full_s"] > 0 < row["window_s"] for row in rows)
    assert json.loads(path.read_text()) == {"rows": rows}
    assert "window / full" in capsys.readouterr().out


@pytest.mark.slow
def test_accuracy_tells_a_wrong_attention(monkeypatch):
    def wrong_in_blocks(q, *args):
        q = q * 1.001 if args[-1].implementation == "blockwise" else q
        return attend(q, *args)

    monkeypatch.setattr(one_attention, "attend", wrong_in_blocks)
    row = one_attention.accuracy("blockwise", TINY)
    assert row["output_error"] > 1e-5 and row["gradient_error"] > 1e-4


@pytest.mark.slow
def test_accuracy_tells_one_gradient_that_is_nan(monkeypatch):
    def wrong_in_blocks(q, k, *args):
        k = k + 0 * jax.numpy.sqrt(0 * k) if args[-1].implementation == "blockwise" else k
        return attend(q, k, *args)

    monkeypatch.setattr(one_attention, "attend", wrong_in_blocks)
    row = one_attention.accuracy("blockwise", TINY)
    assert row["output_error"] < 1e-5 and np.isnan(row["gradient_error"])


def test_a_cost_is_the_best_round_over_that_of_the_same_nope():
    def case(library: str, name: str, length: int) -> Case:
        calls = dict.fromkeys(("forward", "train"), bool)
        memory = {"forward": 5, "train": 7}
        return Case(name, length, calls, memory, kind={"library": library})

    fire, nope = case("a", "fire", 8), case("a", "nope", 8)
    times = {
        entry.key: {call: Times([9.0, 8.0], [9.0, 8.0]) for call in entry.calls}
        for entry in (case("a", "nope", 16), case("b", "nope", 8), fire, nope)
    }
    times[fire.key]["forward"] = Times([4.0, 3.0, 6.0], [50.0, 70.0, 60.0])
    times[nope.key]["forward"] = Times([2.0, 1.5, 3.0], [20.0, 25.0, 30.0])
    costs = race.costs(fire, times, "CPU")
    by_the_wall = race.costs(fire, times, "wall")["forward"]
    found = [list(cost.values()) for cost in (costs["forward"], costs["train"], by_the_wall)]
    assert list(by_the_wall) == ["seconds", "wall_s", "spread", "x_nope", "temp_bytes", "rounds_s"]
    assert found == [
        [3.0, 50.0, 2.0, 2.0, 5, [4.0, 3.0, 6.0]],
        [8.0, 8.0, 9 / 8, 1.0, 7, [9.0, 8.0]],
        [50.0, 50.0, 1.4, 2.5, 5, [50.0, 70.0, 60.0]],
    ]


def test_against_a_peer():
    def row(library: str, forward: float, train: float) -> dict[str, Any]:
        spent = {"forward": {"seconds": forward}, "train": {"seconds": train}}
        entry = {"encoding": "fire", "length": 8, "implementation": f"of {library}"}
        return {"library": library, **entry, **spent}

    difference = np.zeros((1, 8, 2))
    difference[0, 3] = -0.5
    peer = attention.against(row("fire_lm", 1.0, 3.0), row("torch", 4.0, 6.0), difference)
    assert peer == {
        **{"peer": "torch", "encoding": "fire", "length": 8, "implementation": "of fire_lm"},
        **{"forward": 0.25, "train": 0.5, "logit_difference": 0.5},
    }


def test_a_case_meets_the_peers_case_of_its_name_and_length():
    cases = [
        Case(name, length, {}, kind={"library": library})
        for library, name, length in [
            *(("fire_lm", "fire", 8), ("fire_lm", "t5", 8)),
            *(("torch", "fire", 8), ("torch", "fire", 16)),
        ]
    ]
    assert list(race.counterparts(cases, "torch")) == [(cases[0], cases[2])]


def test_rounds_take_turns_there_and_back(hasty):
    """Every turn takes place in the context of its case, which is not timed."""
    log: list[str] = []

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        log.append("(")
        yield
        log.append(")")

    names = ("a", "b", "c")
    cases = [Case(name, 1, {"x": functools.partial(log.append, name)}) for name in names]
    cases[1] = dataclasses.replace(cases[1], around=around)
    times = race.race(cases, 3)
    assert "".join(log) == "aa(bb)cc" + "a(b)c" + "c(b)a" + "a(b)c"
    assert {len(each["x"].cpu_s) for each in times.values()} == {3}


def test_short_calls_are_repeated(monkeypatch):
    """The clocks advance only during calls: 0.25 s each, of which 0.125 s are CPU time.

    The first call also takes the time of filling buffers, which must not count.
    """
    clock, seconds = [0.0], [2.0]
    monkeypatch.setattr(race.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(race.time, "process_time", lambda: clock[0] / 2)
    monkeypatch.setattr(race, "SHORTEST_SECONDS", 1.0)

    def call() -> None:
        clock[0] += seconds.pop() if seconds else 0.25

    times = race.race([Case("x", 8, {"call": call})], 2)
    assert clock[0] == 2 + 0.25 * (1 + 2 * 4)
    assert times == {"x 8": {"call": Times([0.125] * 2, [0.25] * 2)}}


@pytest.mark.parametrize("name", ENCODINGS)
def test_encodings_are_those_of_the_gin_files(name):

    files = [f"configs/{file}.gin" for file in ("runs/c4_125m", f"positions/{name}")]
    configured = load_experiment([str(ROOT / file) for file in files]).model
    model = decoder(name, attention.SIZE, attention.VOCAB_SIZE)
    assert set(changes(configured, model)) == {"vocab_size", "dtype", "num_layers"}


def test_the_command_line_knows_the_encodings():
    of_model = cli.parse(["bench", "model"]).encodings
    assert {*of_model, *ATTENTION["encodings"]} <= set(ENCODINGS)


def test_a_place_that_cannot_be_written_is_told_before_the_benchmark(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path == tmp_path / "mine.json")
    (tmp_path / "mine.json").touch()
    check_json(str(tmp_path / "mine.json"))
    with pytest.raises(UserError, match="new.json cannot be written"):
        check_json(str(tmp_path / "new.json"))


@pytest.mark.parametrize(
    "arguments, told",
    [
        ("", "subject"),
        ("atention", "did you mean attention?"),
        ("attention --encodings=fire,alibbi", "did you mean alibi?"),
        ("model --encodings=fire,alibbi", "did you mean alibi?"),
        ("generate --encodings=fire,alibbi", "did you mean alibi?"),
        ("attention --implementations=blockwize", "did you mean blockwise?"),
        ("attention --implementations=tpu", "the kernel of tpu cannot be timed on a cpu"),
        ("attention --window=4 --implementations=tpu", "--tpu=v4-8 prints the compiler's"),
        ("model --json=gs://bucket/x.json", "--json: gs://bucket/x.json must be a local path"),
        ("attention --lengths=512,0", "'0' is not a whole number"),
        ("attention --lengths=", "--lengths: give at least one"),
        ("model --lengths=", "--lengths: give at least one"),
        ("generate --lengths=", "--lengths: give at least one"),
        ("generate --new_tokens=1", "--new_tokens must be 2 or more: the prefill generates the"),
        ("attention --rounds=1.5", "'1.5' is not a whole number"),
        ("model --size=125", "did you mean 125m?"),
        ("model --tokens_per_batch=0", "'0' is not a whole number"),
        ("attention --peer=tensorflow", "'torch'"),
        ("attention --json=no/such/folder/x.json", "no/such/folder"),
        ("attention --window=4 --json=no/such/folder/x.json", "no/such/folder"),
        *(
            (f"attention {mode} {flag} --json=no/x.json", f"{flag.partition('=')[0]} has no effect")
            for mode, flags in IGNORED.items()
            for flag in flags
        ),
        ("attention --window=4 --lengths= --json=no/x.json", "--lengths: give at least one"),
        ("attention --window=4 --implementations= --json=no/x.json", "--implementations: give at"),
        ("attention --window=4 --implementations=dens --json=no/x.json", "did you mean dense?"),
        ("data --data_dir=x --vocabulary=hf:y", "--vocabulary is hf:y"),
        ("model --json=no/such/folder/x.json", "no/such/folder"),
        ("generate --json=no/such/folder/x.json", "no/such/folder"),
        ("data --data_dir=x --json=no/folder/x.json", "no/folder"),
        ("data --data_dir=nowhere", "No data set c4/en:3.1.0 in the directory nowhere"),
        ("data", "--data_dir"),
        ("data --data_dir=x --encodings=fire", "unknown argument --encodings"),
        ("attention --data_dir=x", "unknown argument --data_dir"),
        ("attention --length=5", "did you mean --lengths?"),
        ("attention --gin.SEED=1", "no --gin. bindings"),
    ],
)
def test_bad_usage_is_told_in_a_line_or_two(monkeypatch, arguments, told, capsys):
    monkeypatch.setattr(bench, "pin_threads", lambda cores: None)
    monkeypatch.setattr(bench, "ask_for_one_thread", lambda: None)
    assert cli.main(["bench", *arguments.split()]) == 2
    progress, begin, message = capsys.readouterr().err.partition("\nfire-lm: ")
    assert begin and "Traceback" not in progress and told in message
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
    monkeypatch.setattr(bench, "pin_threads", bound.append)
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
    report = json.loads(path.read_text())
    assert report["machine"]["cores"] == [max(cores)] and report["machine"]["clock"] == "CPU"
    assert done.stdout == attention.text(report) + "\n" and report["memory"] == []
    (row,) = report["rows"]
    assert (row["encoding"], row["length"], row["train"]["x_nope"]) == ("nope", 4, 1.0)
    for call in ("forward", "train"):
        assert f"warm-up: fire_lm blockwise nope 4 {call} " in done.stderr
