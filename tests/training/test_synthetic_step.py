"""The training step on exercises: the loss of the answers, for any width of the rows."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sample_run import assert_same_state, tiny_run

from fire_lm import data
from fire_lm.checkpoints import Checkpointing
from fire_lm.data import Synthetic
from fire_lm.models import Layers, build_decoder, size_tiny
from fire_lm.positions.fire import FIRE
from fire_lm.positions.resampling import RandomizedPositions, Resampling
from fire_lm.tasks import synthetic
from fire_lm.training import pretrain
from fire_lm.training.description import describe
from fire_lm.training.step import init_state, train_step

SMALL = size_tiny(num_layers=1, hidden_size=16, num_heads=2, head_dim=8, mlp_size=16)


def stepped(layout, resampling, width, microbatches=1):
    model = build_decoder(
        SMALL, FIRE, vocab_size=5, train_length=25, dtype="float32", resampling=resampling
    )
    task = Synthetic(synthetic.BinaryAddition(), max_length=12, layout=layout)
    batch = next(data.train_iterator(task, length=width, batch_size=4, seed=0))
    optimizer = optax.sgd(0.1)
    state = init_state(model, optimizer, jax.random.key(0))
    settings = dict(seed=0, z_loss=0.0, microbatches=microbatches)
    new, metrics = jax.jit(
        lambda state, batch: train_step(state, batch, model=model, optimizer=optimizer, **settings)
    )(state, {name: jnp.asarray(array) for name, array in batch.items()})
    return model, state, batch, new, metrics


@pytest.mark.ci
@pytest.mark.parametrize("layout", ["slots", "autoregressive"])
def test_the_loss_is_that_of_the_answers_read_from_inputs(layout):
    model, state, batch, _, metrics = stepped(layout, Resampling(), 32)
    positions = jnp.arange(batch["inputs"].shape[1])[None]
    logits = model.apply({"params": state.params}, batch["inputs"], positions)
    log_share = np.asarray(jax.nn.log_softmax(logits))
    rows, places = np.nonzero(batch["weights"])
    expected = -np.mean(log_share[rows, places, batch["targets"][rows, places]])
    np.testing.assert_allclose(float(metrics["loss"]), expected, rtol=1e-5)
    assert float(metrics["tokens"]) == batch["weights"].sum()


@pytest.mark.ci
@pytest.mark.parametrize("resampling", [Resampling(), RandomizedPositions(64)])
def test_padding_and_microbatches_change_nothing(resampling):
    _, _, _, narrow, _ = stepped("slots", resampling, 26)
    for width, microbatches in ((48, 1), (26, 2)):
        _, _, _, wide, _ = stepped("slots", resampling, width, microbatches)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
            narrow.params,
            wide.params,
        )


def test_the_description_says_that_batches_may_be_smaller():
    task = Synthetic(synthetic.BinaryAddition(), max_length=7)
    assert "batch 8 x 16 = up to 128 tokens per step, 8 steps, up to 1024 tokens" in describe(
        tiny_run(data=task)
    )
    assert "batch 8 x 16 = 128 tokens per step, 8 steps, 1024 tokens" in describe(tiny_run())


def test_the_description_lists_the_kinds_of_layer():
    size = size_tiny(num_layers=2, hidden_size=16, num_heads=1, head_dim=16, mlp_size=16)
    layers = (Layers(FIRE, window=4), FIRE)
    model = build_decoder(size, layers, vocab_size=259, train_length=16, dtype="float32")
    lines = describe(tiny_run(model=model)).splitlines()
    (header,) = (number for number, line in enumerate(lines) if line.startswith("  layers  "))
    assert lines[header].split() == ["layers", "encoding", "options", "sees", "parameters", "each"]
    assert lines[header + 1].startswith("  0       FIRE      window 4  4 tokens    ")
    assert lines[header + 2].startswith("  1       FIRE      -         all tokens  ")
    assert "  layers  " not in describe(tiny_run())


@pytest.mark.ci
def test_a_run_whose_batches_have_several_row_lengths_resumes_exactly(tmp_path):
    task = Synthetic(synthetic.BinaryAddition(), max_length=7)
    run = tiny_run(data=task, train_steps=6, checkpoints=Checkpointing(save_every=3))
    batches = data.train_iterator(task, length=16, batch_size=8, seed=0)
    lengths = [next(batches)["targets"].shape[1] for _ in range(6)]
    assert len(set(lengths[:3])) > 1 and len(set(lengths[3:])) > 1
    pretrain(run, str(tmp_path / "whole"))
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / "checkpoints" / "6")
    pretrain(run, str(tmp_path / "resumed"))
    assert_same_state(tmp_path / "resumed", tmp_path / "whole", 6)
