"""Several hosts read disjoint parts that together are the text, and equally many batches each."""

import collections
import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from environments import with_devices

import fire_lm.data
from fire_lm import sharding
from fire_lm.data import TextData
from fire_lm.data.batches import ScoringText
from fire_lm.data.spec import Construction
from fire_lm.errors import UserError
from fire_lm.measures import measurements, scoring
from fire_lm.measures.protocols import windows
from fire_lm.models import Decoder, build_decoder, size_tiny
from fire_lm.positions.alibi import ALiBi

# `fire_lm.data` exports a function of the same name, which hides this module.

HOSTS = (1, 2, 3, 4, 16)
LENGTH = 32
DOCUMENTS = [f"{i}:{'x' * (i * 37 % 53)}".encode() for i in range(96)]


@pytest.fixture(scope="module", params=[32, 6], ids=lambda files: f"{files}_files")
def data_dir(request, tmp_path_factory) -> str:
    """Write documents to 32 files or to 6; fewer files than hosts are divided by document."""
    from fire_lm.data.corpora import c4_writer

    folder = tmp_path_factory.mktemp(f"files_{request.param}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(c4_writer, "_MAX_FILES_PER_SPLIT", request.param)
        c4_writer.write(folder, {"train": {str(i): d for i, d in enumerate(DOCUMENTS)}})
    return str(folder)


@functools.lru_cache
def rows_of(data_dir: str, construction: Construction, index: int, count: int) -> np.ndarray:
    """Return the rows of one epoch on one host."""
    from fire_lm.data.on_the_fly import tasks
    from fire_lm.data.quiet_tensorflow import seqio

    shard = seqio.ShardInfo(index, count) if count > 1 else None
    data = TextData(data_dir, construction=construction)
    groups = tasks.groups(data, length=LENGTH, split="train", seed=None, shard=shard)
    return np.concatenate([group["targets"] for group in groups.as_numpy_iterator()])


def documents_of(rows: np.ndarray) -> list[np.ndarray]:
    """Return the tokens of complete documents, each with its end-of-document token."""
    tokens = rows[rows != 0]
    return np.split(tokens, np.flatnonzero(tokens == 1) + 1)[:-1]


def text_of(document: np.ndarray) -> bytes:
    return bytes((document[:-1] - 3).astype(np.uint8))


def quick(hosts: int, *quick_ones: int) -> object:
    return hosts if hosts in quick_ones else pytest.param(hosts, marks=pytest.mark.slow)


@pytest.mark.parametrize("hosts", [quick(n, 2, 3) for n in HOSTS])
@pytest.mark.parametrize("construction", [pytest.param("cut", marks=pytest.mark.ci), "packed"])
def test_the_parts_are_disjoint_and_together_the_text(data_dir, hosts, construction):
    found = [documents_of(rows_of(data_dir, construction, i, hosts)) for i in range(hosts)]
    assert sorted(text_of(d) for part in found for d in part) == sorted(DOCUMENTS)
    files = len(list(Path(data_dir).glob("c4/en/3.1.0/*.tfrecord-*")))
    shares = [len(range(i, files if files >= hosts else 96, hosts)) for i in range(hosts)]
    each = 96 // files if files >= hosts else 1  # documents in each file, or one by one
    assert [len(part) for part in found] == [each * share for share in shares]


@pytest.mark.ci
@pytest.mark.parametrize("hosts", [quick(n, 2) for n in HOSTS])
def test_what_joined_and_long_documents_lose_is_exactly_their_tails(data_dir, hosts):
    """concat and long_documents lose exactly the documented tokens.

    concat joins a host's documents and loses the last tokens that fill no row. long_documents loses
    documents shorter than a row, and what follows the first row of the others.
    """
    given = []
    for i in range(hosts):
        documents = documents_of(rows_of(data_dir, "packed", i, hosts))
        given += documents
        stream = np.concatenate(documents)
        joined = rows_of(data_dir, "concat", i, hosts)
        full = len(stream) // LENGTH * LENGTH
        assert np.array_equal(joined.ravel(), stream[:full]) and joined.shape[1] == LENGTH
        long = rows_of(data_dir, "long_documents", i, hosts)
        heads = [d[:LENGTH] for d in documents if len(d) >= LENGTH]
        assert np.array_equal(long, np.reshape(heads, [-1, LENGTH]))
    # The hosts' documents are those of the text, each exactly once; so are the rows, except for the
    # tails.
    assert sorted(map(text_of, given)) == sorted(DOCUMENTS)


@pytest.mark.ci
def test_each_host_has_its_own_order_and_the_seed_decides_it(data_dir):
    def order(seed: int, index: int) -> bytes:
        iterator = fire_lm.data.train_iterator(
            TextData(data_dir, construction="packed", shuffle_buffer=8),
            length=64, batch_size=4, seed=seed, shard_index=index, shard_count=2,
        )  # fmt: skip
        return b"".join(next(iterator)["targets"].tobytes() for _ in range(6))

    assert order(1, 0) == order(1, 0)
    assert len({order(1, 0), order(1, 1), order(2, 0)}) == 3


def test_more_hosts_than_documents_is_told(tmp_path):
    from fire_lm.data.corpora import c4_writer

    c4_writer.write(tmp_path, {"train": {"a": b"one", "b": b"two"}})
    arguments = dict(length=4, batch_size=1, seed=0, shard_index=7, shard_count=16)
    with pytest.raises(UserError, match="is left for shard 7 of 16: use fewer processes"):
        next(fire_lm.data.train_iterator(TextData(str(tmp_path)), **arguments))


def small_model() -> Decoder:
    size = size_tiny(num_layers=1, hidden_size=16, num_heads=1, head_dim=16, mlp_size=16)
    return build_decoder(size, ALiBi, 259, train_length=16, dtype="float32")


@functools.cache
def small_params() -> Any:
    tokens_BT = jnp.zeros((1, 16), jnp.int32)
    params = jax.jit(small_model().init)(jax.random.key(0), tokens_BT, tokens_BT)["params"]
    return jax.tree.map(np.asarray, params)


def sweep_on(hosts: int, text: ScoringText, tokens_per_batch: int) -> tuple[np.ndarray, list]:
    """Return the nats of each row, and what each host (here, a device) receives, batch by batch."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:hosts]).reshape(hosts, 1, 1), sharding.AXES)
    where = jax.sharding.NamedSharding(mesh, sharding.ACTIVATIONS)
    model = small_model().clone(activation_sharding=where)
    given: dict[int, list[np.ndarray]] = collections.defaultdict(list)
    place = jax.make_array_from_callback

    def placed(shape, where, callback):
        array = place(shape, where, callback)
        for shard in array.addressable_shards:
            given[shard.device.id].append(np.asarray(shard.data))
        return array

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "make_array_from_callback", placed)
        laid = windows("full", 16, text.targets.shape[1])
        nll_RP = scoring.row_losses(
            model, small_params(), text, laid, tokens_per_batch, mesh, "a run"
        )
        nll_R = nll_RP[:, 0]
    targets, weights = ([given[host][i::2] for host in sorted(given)] for i in range(2))
    for target, weight in zip(np.ravel(targets), np.ravel(weights), strict=True):
        assert weight == (target != 0)
    return nll_R, targets


def check_sweeps(every_hosts: tuple[int, ...]) -> None:
    """Check that nats and batches do not depend on the number of hosts, which have equal loads."""
    targets = np.random.default_rng(0).integers(3, 259, (52, 32)).astype(np.int32)
    targets[-2:] = 0  # rows that consist of padding, which are not computed
    text = ScoringText(targets, np.ones_like(targets), 0)
    sequences = targets[:-2].reshape(-1, 16)
    expected, _ = sweep_on(1, text, 16 * 48)
    assert (expected[:-2] > 100).all() and (expected[-2:] == 0).all()
    assert measurements.count(text, windows("full", 16, 32)) == (100, 50 * 32, 52 * 32)
    # A batch of 48 sequences divides by 1, 2, 3, 4 and 16 hosts; the minimum is one per host.
    for hosts, tokens_per_batch, batch_size in [
        *((n, 16 * 48, 48) for n in every_hosts),
        (every_hosts[-1], 1, every_hosts[-1]),
    ]:
        nll_R, given = sweep_on(hosts, text, tokens_per_batch)
        batches = -(-len(sequences) // batch_size)
        assert len(given) == hosts
        for of_host in given:
            assert [part.shape for part in of_host] == [(batch_size // hosts, 16)] * batches
        rows = np.concatenate([part for batch in zip(*given, strict=True) for part in batch])
        assert np.array_equal(rows[: len(sequences)], sequences)
        padding = rows[len(sequences) :]
        assert len(padding) == -len(sequences) % batch_size and not padding.any()
        np.testing.assert_allclose(nll_R, expected, rtol=1e-5)


@pytest.mark.ci
def test_every_host_scores_the_same_number_of_batches():
    """The last batch is filled with rows of padding of weight 0, so that no host has to wait."""
    check_sweeps((3,))


@pytest.mark.ci
def test_so_do_any_number_of_hosts_up_to_16():
    code = "import test_hosts; test_hosts.check_sweeps((2, 3, 4, 16))"
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = with_devices(16) | {"PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=240)
