"""Rows that are split over devices: the same attention and gradients as on one device."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from sample_attention import BATCH, HEADS, assert_close, content, documents, encoding_of, restarting

from fire_lm.attention import Layout, Mask, TabulatedBias, Terms, Tokens, attend, seen
from fire_lm.attention.decay import cumulative_decay
from fire_lm.attention.tpu.schedule import Blocks, block_of_slices, tiles, tiles_of_devices
from fire_lm.errors import UserError
from fire_lm.sharding import mesh_of

LENGTH = 512


@dataclasses.dataclass(frozen=True)
class Case:
    """What attention is given, and how it is split over devices."""

    implementation: Any = "blockwise"
    encoding: str = "nope"
    mask: Mask = Mask()
    packed: bool = False
    gates: bool = False
    sink: bool = False
    scales: bool = False
    sizes: tuple[int, ...] = (1, 1, 1, 4)  # data, fsdp, tensor, sequence
    length: int = LENGTH


def inputs_of(case: Case) -> dict[str, Any]:
    """Return the arrays with respect to which the gradient is taken."""
    rng = np.random.default_rng(1)
    gates = -0.05 * rng.uniform(size=(BATCH, case.length, HEADS))
    return {
        "x": content(case.length),
        "params": encoding_of(case.encoding, length=case.length).init(jax.random.key(1)),
        "gates": jnp.float32(gates),
        "sink": jnp.float32([0.5, -0.5]),
    }


def split_over(case: Case) -> NamedSharding:
    devices = jax.devices()[: np.prod(case.sizes)]
    mesh = mesh_of(case.sizes, devices)
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "sequence", "tensor", None))


def output(case: Case, sharding: NamedSharding | None) -> Any:
    """Return attention as a function of the inputs."""
    segment = documents(case.length) if case.packed else None
    pos = jnp.arange(case.length)[None] if segment is None else restarting(segment)
    encoding = encoding_of(case.encoding, length=case.length)
    scale_BT = 1 + 0.1 * jnp.sin(jnp.float32(pos)) if case.scales else None

    def attention(given: dict[str, Any]) -> jax.Array:
        q, k, v, _ = given["x"]
        if sharding is not None:
            q, k, v = (jax.lax.with_sharding_constraint(x, sharding) for x in (q, k, v))
        decay = cumulative_decay(given["gates"], segment) if case.gates else None
        tokens = Tokens(pos, segment, decay=decay)
        params = encoding.prepare(given["params"])
        tables = encoding.common_bias(params, case.length, case.length)
        bias: Any = functools.partial(encoding.bias, params, context_length=case.length)
        if tables is not None:
            bias = TabulatedBias(bias, tables)
        terms = Terms(bias, scale_BT, scale_BT, given["sink"] if case.sink else None)
        layout = Layout(True, True, sharding, case.implementation)
        return attend(q, k, v, tokens, tokens, terms, case.mask, layout)

    return attention


def attended(case: Case, sharding: NamedSharding | None) -> Any:
    """Return a function of the inputs that returns a gradient, and the output."""
    attention = output(case, sharding)

    def loss(given: dict[str, Any]) -> Any:
        out = attention(given)
        return jnp.sum(out * given["x"][3]), out

    return jax.grad(loss, has_aux=True)


def check(case: Case) -> None:
    given = inputs_of(case)
    found = jax.jit(attended(case, split_over(case)))(given)
    plain = dataclasses.replace(case, implementation="dense")
    # Blocks of rows alone change the gradients of FIRE's MLP, sums over all pairs, by 2e-5.
    assert_close(found, jax.jit(attended(plain, None))(given), 1e-4)


def test_a_device_has_the_queries_of_its_slice():
    check(Case("dense", packed=True, length=32))


@pytest.mark.ci
@pytest.mark.parametrize(
    "case",
    [
        Case("dense", "alibi", Mask(window=10), packed=True, length=64),
        Case(encoding="fire", packed=True, scales=True, sizes=(2, 1, 1, 2)),
        Case("dense", "t5", sizes=(1, 1, 2, 2), sink=True),
        Case(encoding="kerple", mask=Mask(window=60), packed=True, gates=True),
        Case(mask=Mask(chunk=100), gates=True),
        Case("dense", mask=Mask(window=5, chunk=32), length=64),
        Case(mask=Mask(causal=False, window=30), packed=True),
        Case(mask=Mask(window=300), packed=True),
        Case(encoding="sandwich", mask=Mask(causal=False)),
    ],
    ids=str,
)
def test_as_on_one_device(case):
    check(case)


@pytest.mark.ci
@pytest.mark.parametrize(
    "case",
    [
        Case("tpu", "fire_g", scales=True, sink=True, sizes=(1, 1, 1, 2)),
        Case("tpu", "fire", packed=True, gates=True, sizes=(2, 1, 1, 2)),
        Case("tpu", "t5", sizes=(1, 1, 2, 2)),
        Case("tpu", "nope", gates=True, sizes=(1, 1, 1, 4), length=1024),
        Case("tpu", "fire", mask=Mask(window=100), packed=True, sizes=(1, 1, 1, 2)),
    ],
    ids=str,
)
def test_the_kernel_as_on_one_device(case):
    check(case)


@pytest.mark.parametrize("slices", [2, 3, 4, 16])
def test_devices_have_equally_many_tiles(slices):
    """Together, they have each tile of the whole sequence once."""
    blocks = Blocks(128, 1, 128 * 4 * slices, slices=slices)
    whole = dataclasses.replace(blocks, slices=1)
    for order in ("by_query", "by_key"):
        of_devices = tiles_of_devices(blocks, order)
        pairs = np.concatenate([of_device[:2].T for of_device in of_devices])
        assert sorted(map(tuple, pairs)) == sorted(map(tuple, tiles(whole, order).T))
        major = of_devices[:, 2 if order == "by_query" else 1]
        assert np.all(np.diff(major, axis=1) >= 0)
        for query, key, own, due in of_devices:  # each block is due once, at its last tile
            changes = np.flatnonzero(np.diff(due, append=-1)) if order == "by_key" else []
            assert len(changes) in (0, 4)
            assert sorted(own[query == key]) == sorted(due[query == key]) == list(range(4))


def test_what_the_kernel_cannot_split_is_refused():
    assert block_of_slices(131_072, 16) == 512
    for case, why in (
        (Case("tpu", length=256), "needs slices of a multiple of 256 tokens on a device, not 64"),
        (Case("tpu", mask=Mask(window=200)), "needs windows of at most 128 tokens"),
    ):
        with pytest.raises(UserError, match=why):
            jax.eval_shape(attended(case, split_over(case)), inputs_of(case))


def check_leaks(case: Case, allowed: Mask) -> None:
    """Check that queries on both sides of a document's edge depend on what `allowed` lets them see.

    The first edge of the packed documents lies within a slice.
    """
    attention, given = output(case, split_over(case)), inputs_of(case)
    segment = documents(case.length)
    tokens = Tokens(restarting(segment), segment)
    edge = case.length // 3

    @jax.jit
    def gradient(query: jax.Array) -> jax.Array:
        return jax.grad(lambda x: jnp.sum(jnp.sin(attention({**given, "x": x})[:, query])))(
            given["x"]
        )

    for query in (edge - 1, edge, edge + 1, case.length - 2):
        slope = np.max(np.abs(gradient(jnp.int32(query))), axis=(3, 4))
        sees = np.asarray(seen(tokens, tokens, allowed)[:, query])
        assert not np.any(slope[1][~sees]) and not np.any(slope[2][~sees]), query
        assert np.all(slope[2][sees] > 0), query


@pytest.mark.ci
@pytest.mark.parametrize(
    "case",
    [
        Case(packed=True, gates=True),
        Case(packed=True, mask=Mask(window=70)),
        Case("tpu", packed=True, gates=True, sizes=(1, 1, 1, 2)),
    ],
    ids=str,
)
def test_documents_and_windows_do_not_leak(case):
    check_leaks(case, case.mask)


@pytest.mark.ci
def test_a_leak_is_noticed():
    short = Case("dense", mask=Mask(window=10), packed=True, length=64)
    for allowed in (Mask(window=9), Mask(window=11)):
        with pytest.raises(AssertionError):
            check_leaks(short, allowed)
