"""Whether fsdp gathers its parameters and how much memory a program takes, with the messages."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from fire_lm.experiment import load_experiment
from fire_lm.hardware.slices import parse_slice
from fire_lm.preflight.check import check_gathers, check_token, gathered_once
from fire_lm.preflight.estimate import Costs, Estimate, Generation, estimate
from fire_lm.preflight.report import FAILED, OK, SKIPPED, Report
from fire_lm.sharding import AXES, MeshShape, make_mesh
from fire_lm.training.compile import compile_step
from fire_lm.training.step import TrainState

STEP = Estimate(
    arguments=2**30,
    temporary=2**30,
    code=2**20,
    peak=2**31,
    usable=2**35,
    collectives={},
    compile_seconds=60.0,
    links=0.01,
    overlapped=0.0,
    parts={"MLP": (0.01, 0.02)},
)


@pytest.fixture(scope="module")
def train():
    files = [f"configs/{name}.gin" for name in ("runs/c4_125m", "positions/fire")]
    config = load_experiment(files)
    return config.train


def plan(*sizes: int) -> AbstractMesh:
    return AbstractMesh(sizes, AXES, axis_types=(AxisType.Auto,) * 3)


def test_every_matrix_and_the_embedding_once_in_bfloat16(train):
    layer = 4 * 768 * 768 + 2 * 768 * 3072
    assert gathered_once(train, plan(8, 16, 1)) == 2 * (12 * layer + 32_128 * 768)
    assert gathered_once(train, plan(8, 8, 2)) == 12 * layer + 32_128 * 768


@pytest.mark.parametrize(
    "mesh, collectives, outcome",
    [
        ((8, 16, 1), {"all-gather": (182, 480903168), "all-reduce": (41, 225553580)}, OK),
        ((1, 128, 1), {"all-reduce": (53, 920095916)}, FAILED),
        ((8, 16, 1), {"all-gather": (12, 100_000_000)}, FAILED),
    ],
    ids=["as compiled for fsdp=16", "as compiled for fsdp=128", "in part"],
)
def test_gathers_that_have_become_sums(mesh, collectives, outcome, train):
    step = dataclasses.replace(STEP, collectives=collectives)
    found = check_gathers(train, plan(*mesh), step)
    assert found.outcome == outcome
    assert ("lower MeshShape.fsdp" in found.detail) == (outcome == FAILED)


GENERATION = Generation(
    "8 x (8192 + 128), beam-4",
    program=STEP,
    token=Costs(collectives={"all-gather": (2, 2**22)}, links=0.001, overlapped=0.0, parts={}),
    cache=3 * 2**29,
    parameters=2**28,
)


@pytest.mark.parametrize("gathered, outcome", [(2**22, OK), (2**28, FAILED)])
def test_a_new_token_gathers_no_parameters(gathered, outcome):
    token = dataclasses.replace(GENERATION.token, collectives={"all-gather": (12, gathered)})
    found = check_token(dataclasses.replace(GENERATION, token=token))
    assert found.outcome == outcome
    assert found.detail.endswith("gathering a chip's parameters once would take 256.0 MiB")


def test_gathers_that_cannot_be_read_are_not_judged(train):
    """As in a program with a loop whose number of iterations only its run determines."""
    why = "the number of iterations of a loop is unknown"
    step = dataclasses.replace(STEP, untimed=why)
    token = dataclasses.replace(GENERATION.token, collectives={}, untimed=why)
    for check in (
        check_gathers(train, plan(8, 16, 1), step),
        check_token(dataclasses.replace(GENERATION, token=token)),
    ):
        assert (check.outcome, check.detail) == (SKIPPED, f"unknown: {why}")


def test_a_report_on_generation():
    where, programs = parse_slice("v5e-8"), {"generation": STEP}
    report = Report(where, {"data": 8}, programs, 1e15, 1, {}, [], "libtpu 1", GENERATION)
    assert str(report).endswith("""
generation of 8 x (8192 + 128), beam-4: 1,536 MiB of keys and values per chip
a new token, by the compiler's estimate: 1.00 ms; all-gather 2 (4.00 MiB)
""")
    found = report.as_json()["generation"]
    assert found["cache"] == 3 * 2**29 and found["token"]["seconds"] == 0.001
    untimed = dataclasses.replace(GENERATION.token, untimed="no estimate")
    report = dataclasses.replace(report, generation=dataclasses.replace(GENERATION, token=untimed))
    assert report.as_json()["generation"]["token"]["seconds"] is None


def test_a_report_of_failures_alone():
    told = {"training step": "it needs 20.00 GiB per chip, 4.25 GiB more than the usable 15.75 GiB"}
    report = Report(parse_slice("v5e-8"), {"data": 8}, {}, 1e15, 1, told, [], "libtpu 1")
    assert not report.passed and report.mfu is None
    assert str(report).splitlines() == [
        "v5e-8 (8 chips), mesh data=8; libtpu 1",
        "",
        f"training step: {told['training step']}",
    ]


def test_memory_is_what_is_there_at_once():
    """Results that reuse the memory of arguments, such as a step's state, are not counted again."""
    memory = SimpleNamespace(
        argument_size_in_bytes=10_000,
        temp_size_in_bytes=2_000,
        generated_code_size_in_bytes=300,
        output_size_in_bytes=9_040,
        alias_size_in_bytes=9_000,
        peak_memory_in_bytes=7,
    )
    compiled = SimpleNamespace(memory_analysis=lambda: memory, as_text=lambda: "no program")
    found = estimate(compiled, parse_slice("v4-8"), [], 1.0, lambda kernel, names: 0.0)
    assert (found.arguments, found.temporary, found.code) == (10_000, 2_000, 300 + 40)
    assert found.memory == 10_000 + 2_000 + 300 + 40 and found.peak == 7


def test_the_step_takes_over_the_memory_of_the_state():
    """Compiled for this CPU. Otherwise a run would need its parameters and moments twice."""
    mesh = make_mesh(MeshShape(data=1, fsdp=4))
    split, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec("fsdp"), PartitionSpec()))
    state = TrainState(
        jax.ShapeDtypeStruct((), jnp.int32, sharding=whole),
        jax.ShapeDtypeStruct((4096,), jnp.float32, sharding=split),
        jax.ShapeDtypeStruct((4096,), jnp.float32, sharding=split),
    )
    batch = {"targets": jax.ShapeDtypeStruct((4, 8), jnp.int32, sharding=whole)}
    compiled = compile_step(
        lambda state, batch: (jax.tree.map(lambda x: x + 1, state), batch["targets"] + 1),
        state,
        batch,
    )
    memory = compiled.memory_analysis()
    of_state = 2 * 4096 // 4 * 4 + 4
    assert memory is not None and memory.alias_size_in_bytes == of_state
