"""How documents become rows: no token is lost or invented, and packing does not change losses.

Random documents pass through the seqio preprocessors and are compared with each construction in
plain Python.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gin_files import CLASSES, ONE_OF_EACH_KIND, tier
from sample_blocks import expected_rows

from fire_lm.data.spec import CONSTRUCTIONS, Construction
from fire_lm.experiment import load_experiment
from fire_lm.models import build_decoder, size_tiny, token_losses
from fire_lm.models.loss import shift_right
from fire_lm.models.segments import segment_positions
from fire_lm.positions.fire import FIRE
from fire_lm.training.optimizer import AdamW
from fire_lm.training.step import init_state, train_step

EOS = 1
Rows = dict[str, np.ndarray]


def random_documents(seed: int) -> list[bytes]:
    """Return documents of 1 to 70 bytes, a few of 300, and a few empty ones, which are skipped."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 70, random.integers(1, 80))
    sizes[random.random(len(sizes)) < 0.05] = 300
    documents = [bytes(random.integers(97, 123, size, dtype=np.uint8)) for size in sizes]
    return [b"" if random.random() < 0.05 else document for document in documents]


def build(construction: Construction, documents: list[bytes], length: int) -> Rows:
    """Return all rows of one finite pass over the documents, with the byte vocabulary."""
    from fire_lm.data import vocabularies
    from fire_lm.data.on_the_fly import preprocessors
    from fire_lm.data.quiet_tensorflow import tf

    texts = tf.data.Dataset.from_tensor_slices({"text": documents})
    groups = preprocessors.Tokenize(vocabularies.load("bytes"), byte_counts=True)(texts)
    built = preprocessors.CONSTRUCT[construction](groups, {"targets": length})
    groups = list(built.as_numpy_iterator())
    counted = {name: sum(g[name] for g in groups) for name in preprocessors.COUNTERS}
    features = ("byte_counts", *FEATURES[construction])
    return counted | {name: np.concatenate([g[name] for g in groups]) for name in features}


FEATURES = {name: ("targets",) for name in CONSTRUCTIONS} | {"packed": ("targets", "segment_ids")}


def tokens_of(documents: list[bytes]) -> list[list[int]]:
    return [[byte + 3 for byte in document] + [EOS] for document in documents if document]


def assert_conserved(rows: Rows, construction: str, documents: list[bytes], length: int) -> None:
    """Check every row, token by token, and that there is nothing else."""
    kept = tokens_of(documents)
    expected = expected_rows(construction, kept, length)
    for name in set(rows) & {"targets", "byte_counts", "segment_ids"}:
        assert rows[name].dtype == np.int32 and rows[name].shape == (len(expected), length)
        values = {
            "targets": lambda segment, number: segment,
            "byte_counts": lambda segment, number: [int(token != EOS) for token in segment],
            "segment_ids": lambda segment, number: [number] * len(segment),
        }[name]
        for row, segments in zip(rows[name], expected, strict=True):
            wanted = [v for number, s in enumerate(segments, 1) for v in values(s, number)]
            assert row.tolist() == wanted + [0] * (length - len(wanted)), name
    total, found = sum(map(len, kept)), int((rows["targets"] != 0).sum())
    lost = {"concat": total % length, "cut": 0, "packed": 0, "long_documents": total - found}
    assert total - found == lost[construction]
    short = sum(len(d) < length for d in kept) if construction == "long_documents" else 0
    counts = (len(documents) - len(kept), len(kept), short)
    assert (rows["skipped"], rows["documents"], rows["short"]) == counts


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
@pytest.mark.parametrize(
    "seed, lengths",
    [
        (0, (7, 64)),
        pytest.param(0, (2, 1000), marks=pytest.mark.ci),
        *(pytest.param(seed, (2, 7, 64, 1000), marks=pytest.mark.slow) for seed in range(1, 6)),
    ],
)
def test_every_token_is_where_it_belongs(construction, seed, lengths):
    documents = random_documents(seed)
    for length in lengths:
        rows = build(construction, documents, length)
        assert_conserved(rows, construction, documents, length)


@pytest.mark.ci
@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_the_conservation_check_can_fail(construction):
    documents = random_documents(0)
    rows = build(construction, documents, 16)
    features = ("byte_counts", *FEATURES[construction])
    changes: list[Callable[[np.ndarray], np.ndarray]] = [
        lambda x: x[1:],
        lambda x: np.concatenate([x, x[:2]]),
        lambda x: x + (np.arange(16) == 3) * (np.arange(len(x))[:, None] == 2),
        lambda x: x[:, ::-1],
    ]
    for name in features:
        for change in changes if name == "targets" else changes[:3]:
            with pytest.raises(AssertionError):
                broken = rows | {name: change(rows[name]).astype(np.int32)}
                assert_conserved(broken, construction, documents, 16)
    with pytest.raises(AssertionError):
        assert_conserved(rows | {"skipped": rows["skipped"] + 1}, construction, documents, 16)


def test_a_huge_document_is_skipped_and_counted(monkeypatch):
    from fire_lm.data.on_the_fly import preprocessors

    monkeypatch.setattr(preprocessors, "LONGEST_DOCUMENT", 50)
    rows = build("cut", [b"x" * 50, b"y" * 51, b"z"], 64)
    assert (rows["skipped"], rows["documents"]) == (1, 2)
    assert rows["byte_counts"].sum() == 51


SEGMENTS = np.array([[1, 1, 1, 2, 2, 3, 0, 0], [4, 4, 4, 4, 5, 5, 5, 5]], np.int32)
SEGMENT_POSITIONS = [[0, 1, 2, 0, 1, 0, 0, 1], [0, 1, 2, 3, 0, 1, 2, 3]]


def test_positions_and_inputs_start_anew_in_each_segment():
    pos = segment_positions(jnp.arange(8)[None], jnp.asarray(SEGMENTS))
    np.testing.assert_array_equal(pos, SEGMENT_POSITIONS)
    spread = segment_positions(10 * jnp.arange(8, dtype=jnp.float32)[None], jnp.asarray(SEGMENTS))
    np.testing.assert_array_equal(spread, 10 * np.array(SEGMENT_POSITIONS))
    targets = jnp.arange(1, 17).reshape(2, 8)
    read = shift_right(targets, jnp.asarray(SEGMENTS))
    np.testing.assert_array_equal(read, [[0, 1, 2, 0, 4, 0, 0, 7], [0, 9, 10, 11, 0, 13, 14, 15]])


def losses(position: str, rows: Rows) -> list[np.ndarray]:
    """Return the nats of the tokens of each segment, in order."""
    config = load_experiment(
        ["configs/runs/quickstart.gin", f"configs/positions/{position}.gin"],
        ["size_tiny.num_layers=2", "size_tiny.hidden_size=32", "size_tiny.num_heads=2"]
        + ["size_tiny.head_dim=16", "size_tiny.mlp_size=32", "TRAIN_LENGTH=64"],
    )
    model = config.model
    shapes = jax.eval_shape(model.init, jax.random.key(0), *[jnp.zeros((1, 1), jnp.int32)] * 2)
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda x: jnp.float32(random.normal(0, 0.3, x.shape)), shapes["params"])
    targets = jnp.asarray(rows["targets"])
    segments = rows.get("segment_ids")

    @jax.jit
    def function(*segment):
        pos = jnp.arange(64)[None]
        pos = segment_positions(pos, *segment) if segment else pos
        return token_losses(model, params, targets, pos, *segment)[0]

    nll = np.asarray(function() if segments is None else function(jnp.asarray(segments)))
    if segments is None:
        return [row[scored] for row, scored in zip(nll, rows["targets"] != 0, strict=True)]
    return [
        row[ids == number]
        for row, ids in zip(nll, segments, strict=True)
        for number in range(1, ids.max() + 1)
    ]


@pytest.mark.parametrize(
    "position",
    [pytest.param(name, marks=tier(name, (), (*ONE_OF_EACH_KIND, "t5"))) for name in CLASSES],
)
def test_packed_documents_have_the_losses_that_they_have_alone(position):
    documents = random_documents(3)[:12]
    packed, alone = (build(name, documents, 64) for name in ("packed", "cut"))
    assert len(packed["targets"]) < len(alone["targets"])
    expected = losses(position, alone)
    for ours, theirs in zip(losses(position, packed), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    # Without segments, each document would see those before it.
    del packed["segment_ids"]
    joined = np.concatenate(losses(position, packed))
    assert np.max(np.abs(joined - np.concatenate(expected))) > 0.05


@pytest.mark.ci
def test_a_step_on_packed_documents_is_a_step_on_separate_ones():
    """Loss, gradient and token count are equal, also over microbatches."""
    documents = random_documents(3)[:14]
    packed, alone = (build(name, documents, 64) for name in ("packed", "cut"))
    model = build_decoder(size_tiny(num_layers=2), FIRE, 259, train_length=64, dtype="float32")
    optimizer = AdamW(learning_rate=1e-3, warmup_steps=0).build(train_steps=9)
    state = jax.jit(functools.partial(init_state, model, optimizer))(jax.random.key(0))

    def step(rows: Rows, microbatches: int) -> dict[str, float]:
        batch = {}
        for name in set(rows) & {"targets", "segment_ids"}:
            filled = np.pad(rows[name], ((0, -len(rows[name]) % 4), (0, 0)))
            batch[name] = jnp.asarray(filled)
        batch["weights"] = batch["targets"] != 0
        run = functools.partial(
            train_step,
            model=model,
            optimizer=optimizer,
            seed=0,
            z_loss=1e-3,
            microbatches=microbatches,
        )
        metrics = jax.jit(run)(state, batch)[1]
        del metrics["batch_hash"]  # the batches differ
        metrics |= metrics.pop("learned")
        return {name: float(value) for name, value in metrics.items()}

    expected = step(alone, 1)
    assert expected["tokens"] == (alone["targets"] != 0).sum() == (packed["targets"] != 0).sum()
    assert step(packed, 1) == pytest.approx(expected, rel=1e-4)
    assert step(packed, 2) == pytest.approx(expected, rel=1e-4)
    del packed["segment_ids"]
    assert step(packed, 1) != pytest.approx(expected, rel=1e-4)
