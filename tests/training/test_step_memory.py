"""A training step that does not fit in memory is refused, with a setting that should fit."""

import dataclasses
import types
from typing import Any

import pytest
from sample_run import command, tiny_run

from fire_lm.cli import main
from fire_lm.hardware.memory import Free, TooLarge
from fire_lm.sharding import MeshShape, make_mesh
from fire_lm.training import loop, memory
from fire_lm.training.memory import check_before_compiling, check_compiled, kept_bytes

RUN = tiny_run(batch_size=64, mesh=MeshShape(4, 1, 1))
MIB = 2**20


def with_free(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda devices: Free(int(size), "this machine has"))


def program(temporary: float) -> Any:
    sizes = {"temp_size_in_bytes": int(temporary), "output_size_in_bytes": 90}
    stats = types.SimpleNamespace(**sizes, alias_size_in_bytes=90)
    return types.SimpleNamespace(memory_analysis=lambda: stats)


def test_the_smallest_number_of_microbatches_that_fits_is_suggested(monkeypatch):
    mesh = make_mesh(RUN.mesh)
    with_free(monkeypatch, 100 * MIB)
    check_compiled(program(99 * MIB), RUN, mesh, 16)
    with pytest.raises(TooLarge) as told:
        check_compiled(program(160 * MIB), RUN, mesh, 16)
    assert str(told.value) == (
        "a training step of 64 x 16 tokens at a time needs 0.2 GiB of memory, but this machine has "
        "only 0.1 GiB free\n"
        "it should fit with --gin.pretrain.microbatches=4; or lower BATCH_SIZE or TRAIN_LENGTH"
    )  # half would be just enough, which is not sure; a third does not divide the batch
    whole = dataclasses.replace(RUN, microbatches=16)
    with pytest.raises(TooLarge, match="one row at a time does not fit either: lower TRAIN_LENGTH"):
        check_compiled(program(200 * MIB), whole, mesh, 16)


def test_a_step_that_cannot_fit_is_refused_before_it_is_compiled(monkeypatch):
    mesh = make_mesh(RUN.mesh)
    kept = kept_bytes(RUN, mesh, 16)
    per_token = kept / (16 * 16)
    assert 1_000 < per_token < 30_000
    assert kept < memory.generous_bytes(RUN, mesh, 16)
    with_free(monkeypatch, kept / 4)
    with pytest.raises(TooLarge, match=r"64 x 16 tokens at a time needs at least"):
        check_before_compiling(RUN, mesh, 16)
    with_free(monkeypatch, 2**40)
    monkeypatch.setattr(memory, "kept_bytes", lambda *_: 1 / 0)  # not computed without need
    check_before_compiling(RUN, mesh, 16)


@pytest.mark.ci
def test_a_run_that_cannot_fit_is_refused_before_its_data_are_opened(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loop, "open_data", lambda *_: 1 / 0)
    with_free(monkeypatch, MIB)
    workdir = tmp_path / "run"
    assert main(command("/nowhere", workdir, "--gin.BATCH_SIZE=1024")) == 2
    told = capsys.readouterr().err
    assert "a training step of 1024 x 32 tokens at a time needs at least" in told
    assert not (workdir / "config.gin").exists()
