"""Several hosts: disjoint and complete parts of the text, and as many batches on each."""

import collections
import importlib

import jax
import numpy as np
import pytest

import fire_lm.data
from fire_lm import sharding
from fire_lm.data.text import Construction, TextData
from fire_lm.errors import UserError

# The function of the same name hides the module.
sweep = importlib.import_module("fire_lm.evaluation.length_sweep")

HOSTS = (1, 2, 3, 4, 16)
DOCUMENTS = [f"{i}:{'x' * (i * 37 % 53)}".encode() for i in range(96)]


@pytest.fixture(scope="module", params=[32, 6], ids=lambda files: f"{files}_files")
def data_dir(request, tmp_path_factory) -> str:
    """6 files are fewer than 16 hosts: then hosts take documents in turns instead of files."""
    from fire_lm.data import c4_writer

    folder = tmp_path_factory.mktemp(f"files_{request.param}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(c4_writer, "_MAX_FILES_PER_SPLIT", request.param)
        c4_writer.write(folder, {"train": {str(i): d for i, d in enumerate(DOCUMENTS)}})
    return str(folder)


def documents_of_shard(
    data_dir: str, index: int, count: int, construction: Construction
) -> list[bytes]:
    """Whole documents of one epoch of a shard, each from its end-of-document tokens."""
    from fire_lm.data import tasks
    from fire_lm.data.quiet_tensorflow import seqio

    shard = seqio.ShardInfo(index, count) if count > 1 else None
    data = TextData(data_dir, construction=construction)
    groups = tasks.dataset(data, length=64, split="train", seed=None, shard=shard)
    tokens = [group["targets"][group["targets"] != 0] for group in groups.as_numpy_iterator()]
    text = (np.concatenate(tokens) - 3).astype(np.int64)
    return [
        bytes(part[part >= 0].astype(np.uint8))
        for part in np.split(text, np.flatnonzero(text == 1 - 3) + 1)
        if len(part)
    ]


@pytest.mark.parametrize(
    "hosts", [n if n in (2, 3) else pytest.param(n, marks=pytest.mark.ci) for n in HOSTS]
)
@pytest.mark.parametrize("construction", [pytest.param("cut", marks=pytest.mark.ci), "packed"])
def test_the_parts_are_disjoint_and_together_the_text(data_dir, hosts, construction):
    found = [documents_of_shard(data_dir, i, hosts, construction) for i in range(hosts)]
    assert collections.Counter(sum(found, [])) == collections.Counter(DOCUMENTS)
    sizes = [len(part) for part in found]
    assert min(sizes) >= len(DOCUMENTS) // hosts - len(DOCUMENTS) // 6


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
    from fire_lm.data import c4_writer

    c4_writer.write(tmp_path, {"train": {"a": b"one", "b": b"two"}})
    arguments = dict(length=4, batch_size=1, seed=0, shard_index=7, shard_count=16)
    with pytest.raises(UserError, match="is left for shard 7 of 16: use fewer processes"):
        next(fire_lm.data.train_iterator(TextData(str(tmp_path)), **arguments))


@pytest.mark.parametrize("construction", ["packed", "long_documents"])
def test_every_host_scores_the_same_number_of_batches(data_dir, construction):
    """Each holds all of the fixed text and places its part of every batch; the last batch is
    filled up with rows of padding, which weigh nothing, so hosts never wait for one another."""
    data = TextData(data_dir, construction=construction)
    text = fire_lm.data.scoring_text(data, length=16, num_sequences=10**6, split="train")
    rows = len(text.targets)
    batches = list(sweep.batches(text.targets, 16))
    assert {batch.shape for batch in batches} == {(16, 16)}
    padding = sum(int((batch == 0).all(axis=1).sum()) for batch in batches)
    assert padding == -rows % 16
    for hosts in (1, 2, 4):
        mesh = jax.sharding.Mesh(
            np.array(jax.devices()[:hosts]).reshape(hosts, 1, 1), sharding.AXES
        )
        placed = jax.sharding.NamedSharding(mesh, sharding.BATCH)
        parts = placed.devices_indices_map((16, 16)).values()
        assert len(parts) == hosts and len({part[0].indices(16) for part in parts}) == hosts
