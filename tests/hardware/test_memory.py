"""The memory that is free, and what is refused because it needs more."""

import types
from pathlib import Path

import jax
import numpy as np
import pytest

from fire_lm import cli
from fire_lm.cli.out_of_memory import out_of_memory
from fire_lm.hardware import memory
from fire_lm.hardware.memory import TooLarge, available_bytes, check_fits, free_memory

GIB = 2**30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a folder with the files of a machine with 10 GiB available and 1 GiB of swap space."""
    monkeypatch.setattr(memory, "_PROC", tmp_path)
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "_kept_by_malloc", lambda: 0)
    lines = f"MemTotal: {2**24} kB\nMemAvailable: {10 * 2**20} kB\nSwapFree: {2**20} kB\n"
    (tmp_path / "meminfo").write_text(lines)
    return tmp_path


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def test_the_memory_of_a_machine(machine):
    assert available_bytes() == 11 * GIB
    (machine / "meminfo").unlink()
    assert available_bytes() is None, "as on another system than Linux"


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_control_group(version, machine):
    """The limit of a parent counts as well; cached files would be freed."""
    (machine / "self").mkdir()
    line, top = (
        ("4:memory:/job/step", "groups/memory") if version == 1 else ("0::/job/step", "groups")
    )
    (machine / "self" / "cgroup").write_text(f"9:cpu:/\n{line}\n")
    limit, used = ("memory__limit_in_bytes", "memory__usage_in_bytes")
    if version == 2:
        limit, used = "memory__max", "memory__current"
    stat = f"anon 5\ninactive_file {GIB}"
    files = {limit: 5 * GIB, used: 3 * GIB, "memory__stat": stat}
    write(machine / top / "job", **files)
    assert available_bytes() == 3 * GIB
    write(machine / top / "job" / "step", **{**files, limit: "max"})
    assert available_bytes() == 3 * GIB
    (machine / top / "job" / limit.replace("__", ".")).write_text("max")
    assert available_bytes() == 11 * GIB


def test_what_malloc_has_kept_is_available(machine, monkeypatch):
    kept = memory._kept_by_malloc
    monkeypatch.undo()
    assert 0 <= memory._kept_by_malloc() < 2**40 and kept() == 0
    blocks = [np.ones(100_000, np.uint8) for _ in range(200)]
    last = np.ones(100_000, np.uint8)  # what lies below it cannot be returned to the kernel
    before = memory._kept_by_malloc()
    del blocks
    assert memory._kept_by_malloc() > before + 10_000_000 and last.any()


def test_devices_on_a_cpu_share_its_memory(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 8 * GIB)
    for count in (1, 4):
        free = free_memory(jax.devices()[:count])
        assert free is not None and free.bytes == 8 * GIB // count


def test_an_accelerator_has_what_its_limit_leaves():
    gpu = types.SimpleNamespace(platform="gpu", process_index=0, device_kind="NVIDIA H200")
    gpu.memory_stats = lambda: {"bytes_limit": 9 * GIB, "bytes_in_use": 2 * GIB}
    other = types.SimpleNamespace(process_index=1)
    free = free_memory([other, gpu])
    assert free is not None and free.bytes == 7 * GIB
    with pytest.raises(TooLarge) as told:
        check_fits(8.5 * GIB, free, "a step", "lower it")
    expected = "a step needs 8.5 GiB of memory, but NVIDIA H200 has only 7.0 GiB free\nlower it"
    assert str(told.value) == expected and told.value.exit_code == 2
    check_fits(7 * GIB, free, "a step", "")
    gpu.memory_stats = lambda: None
    assert free_memory([gpu]) is None and free_memory([other]) is None
    check_fits(7e30, None, "a step", "")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError("Unable to allocate 57.1 GiB"), "Unable to allocate 57.1 GiB"),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"),
            "RESOURCE_EXHAUSTED: Out",
        ),
    ],
)
def test_an_exhausted_memory_is_reported_with_the_settings_to_change(
    error, words, monkeypatch, capsys
):
    def perform(parsed: object) -> None:
        raise error

    monkeypatch.setattr(cli, "perform", perform)
    assert cli.main(["sweep", "runs/rope"]) == 1
    told = capsys.readouterr().err.strip()
    assert told.startswith(f"fire-lm: out of memory: {words}") and len(told.splitlines()) == 2
    assert "length_sweep.tokens_per_batch" in told
    assert "raise finetune.microbatches" in out_of_memory(error, ["finetune", "--workdir=x"])
    monkeypatch.setattr(cli, "perform", lambda parsed: exec("raise ValueError('a mistake')"))
    with pytest.raises(ValueError, match="a mistake"):
        cli.main(["sweep", "runs/rope"])
