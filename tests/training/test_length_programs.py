"""The programs of a length schedule: those of constant runs, without leaks at any length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_run import tiny_run

from fire_lm.data import cut
from fire_lm.encoding_properties.in_models import filled
from fire_lm.models import build_decoder, diagnosed_losses, segment_positions, size_tiny
from fire_lm.positions.fire import FIRE
from fire_lm.training import pretraining
from fire_lm.training.description import describe

LENGTHS = (8, 16, 32)


def compiled_with(run, monkeypatch, *lengths) -> list[tuple]:
    """Return what determines the program of a run, or of each of these lengths of it."""
    found = []
    monkeypatch.setattr(pretraining, "compile_training", lambda *a, **k: found.append((a, k)))
    for length in lengths or (None,):
        run.compile("mesh", length)
    return [(model, given) for (model, _, _), given in found]  # an optimizer has no equality


def test_one_entry_compiles_the_program_of_a_run_without_a_schedule(monkeypatch):
    run, plain = tiny_run(train_lengths=((0, 16),)), tiny_run()
    expected = compiled_with(plain, monkeypatch)
    assert compiled_with(run, monkeypatch, *run.row_lengths()) == expected


def test_each_length_compiles_the_program_of_a_run_of_this_length(monkeypatch):
    run = tiny_run(train_lengths=((0, 16), (4, 64)))
    expected = [compiled_with(run.at_length(n), monkeypatch)[0] for n in (16, 64)]
    assert compiled_with(run, monkeypatch, *run.row_lengths()) == expected
    assert [(given["batch_size"], given["row_length"]) for _, given in expected] == [
        (8, 16),
        (2, 64),
    ]
    assert compiled_with(run, monkeypatch, *run.row_lengths(after=4)) == expected[1:]


def test_a_run_prints_each_phase_and_what_encodings_keep():
    text = describe(
        tiny_run(batch_size=32, train_lengths=((0, 16), (6, (32, 64)), (90, 16)))
    ).splitlines()
    first = text.index(
        "lengths 16, then 32 or 64 by step, then 16; every batch is cut from rows of 64 tokens"
    )
    assert text[first + 1].startswith("  steps 1 to 6: 32 x 16 (dense attention, ")
    assert text[first + 2].startswith("  steps 7 to 8: one of 16 x 32 (dense attention, ")
    assert " or 8 x 64 (dense attention, " in text[first + 2]
    assert text[first + 3].startswith("  not reached: 32 x 16 (")
    kept = "  encodings keep for the whole run: position.train_length 16"
    assert text[first + 4 :] == [kept]
    assert "the mean over all steps" in text[first - 1]


@pytest.mark.ci
def test_packed_rows_that_are_cut_have_no_leaks():
    """Each segment of a cut row has the losses that it has alone, in a row of its own."""
    size = size_tiny(num_layers=2, hidden_size=16, num_heads=2, head_dim=8, mlp_size=16)
    model = build_decoder(size, FIRE, 64, train_length=8, dtype="float32")
    params = filled(model)
    segments = np.array([[1] * 5 + [2] * 14 + [3] * 9 + [0] * 4, [1] * 32], np.int32)
    targets = np.random.default_rng(0).integers(1, 64, segments.shape, np.int32)
    targets *= segments > 0
    losses = jax.jit(lambda *rows: diagnosed_losses(model, params, *rows)[0], static_argnums=())
    for length in LENGTHS:
        batch = cut({"targets": targets, "segment_ids": segments}, length)
        row_pos = jnp.arange(length)[None]
        pos = segment_positions(row_pos, jnp.asarray(batch["segment_ids"]))
        found = np.asarray(losses(batch["targets"], pos, batch["segment_ids"]))
        assert np.isfinite(found).all()  # also in rows that are all padding
        alone, where = [], []
        for row, own in enumerate(batch["segment_ids"]):
            for segment in set(own) - {0}:
                place = np.flatnonzero(own == segment)
                alone.append(np.pad(batch["targets"][row, place], (0, length - len(place))))
                where.append((row, place))
        expected = np.asarray(losses(np.stack(alone), row_pos, None))
        for (row, place), of_segment in zip(where, expected, strict=True):
            np.testing.assert_allclose(found[row, place], of_segment[: len(place)], atol=1e-5)
