"""Compiled programs that later processes reuse: `fire_lm.hardware.program_cache`."""

import subprocess
import sys

import jax
import pytest
from environments import with_devices
from jax._src import compilation_cache
from sample_run import STEPS, command_on_blocks, logged, saved_state, write_token_blocks

from fire_lm.hardware import program_cache
from fire_lm.hardware.program_cache import ProgramFolder, cpu_lines, keep_programs, machine

X86 = (
    "processor : 0\nmodel name : AMD EPYC\nflags : fma avx2{}\nbogomips : 5192.1\n\nprocessor : 1\n"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Yield the folder that `keep_programs` may use, with JAX as it is when a process starts."""
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setattr(compilation_cache, "get_file_cache", compilation_cache.get_file_cache)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield tmp_path / "fire_lm" / "programs"
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


def compiled_sum(constant: float) -> float:
    """Return 1 plus a constant by a program that this process has not compiled before."""
    return float(jax.jit(lambda x: x + constant)(1.0))


def test_a_program_is_reused_and_never_serves_for_another_constant(folder, monkeypatch):
    keep_programs()
    assert compiled_sum(2.0) == 3.0
    assert len([*folder.iterdir()]) == 1
    put = []
    monkeypatch.setattr(ProgramFolder, "put", lambda _, key, value: put.append(value))
    assert compiled_sum(2.0) == 3.0 and not put, "it is compiled again"
    assert compiled_sum(3.0) == 4.0 and put


def test_a_program_under_another_name_is_not_served(tmp_path):
    programs = ProgramFolder(tmp_path, "cpu")
    programs.put("one", b"program")
    assert programs.get("one") == b"program"
    (tmp_path / "one-cpu").rename(tmp_path / "two-cpu")
    assert programs.get("two") is None


@pytest.mark.parametrize("damage", ["half", "a flipped bit", "empty", "unreadable"])
def test_a_damaged_program_is_compiled_and_written_again_in_silence(folder, damage):
    keep_programs()
    assert compiled_sum(2.0) == 3.0
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    if damage == "unreadable":
        file.unlink()
        file.symlink_to(folder / "absent")
    else:
        flipped = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
        file.write_bytes({"half": whole[: len(whole) // 2], "empty": b""}.get(damage, flipped))
    assert compiled_sum(2.0) == 3.0  # warnings are errors
    assert len(file.read_bytes()) > len(whole) // 2 and [*folder.iterdir()] == [file]
    put_again = file.stat().st_mtime_ns
    assert compiled_sum(2.0) == 3.0 and file.stat().st_mtime_ns >= put_again


def refuse(*_, **__):
    raise OSError(30, "Read-only file system")


@pytest.mark.parametrize("operation", ["tempfile.mkstemp", "os.replace", "os.utime"])
def test_a_folder_that_cannot_be_written_changes_nothing(folder, monkeypatch, operation):
    keep_programs()
    assert compiled_sum(2.0) == 3.0
    files = [*folder.iterdir()]
    monkeypatch.setattr(f"fire_lm.hardware.program_cache.{operation}", refuse)
    assert compiled_sum(2.0) == 3.0 and compiled_sum(3.0) == 4.0
    if operation != "os.utime":
        assert [*folder.iterdir()] == files, "part of a program is left behind"


def test_programs_that_were_not_read_for_long_are_removed(tmp_path):
    programs = ProgramFolder(tmp_path, "cpu", most_bytes=1000)
    (tmp_path / "part of a program of a killed process").write_bytes(b"x" * 300)
    for number, path in enumerate(tmp_path.iterdir()):
        program_cache.os.utime(path, (number, number))
    for number in range(9):
        programs.put(f"key {number}", bytes(200))
        program_cache.os.utime(tmp_path / f"key {number}-cpu", (100 + number,) * 2)
        assert programs.get("key 0") == bytes(200), "it was read a moment ago"
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000
    assert programs.get("key 1") is None and programs.get("key 8") == bytes(200)
    assert not [path for path in tmp_path.iterdir() if "killed" in path.name]


def test_programs_of_other_cpus_cores_and_flags_have_other_names(tmp_path, monkeypatch):
    names, cpus = set(), []
    for features in ("", " avx512f"):
        cpuinfo = tmp_path / f"cpuinfo{features}"
        cpuinfo.write_text(X86.format(features))
        cpus.append(cpu_lines(cpuinfo))
        monkeypatch.setattr(program_cache, "cpu_lines", lambda lines=cpus[-1]: lines)
        for cores in ({0}, {0, 1}):
            monkeypatch.setattr(program_cache, "usable_cores", lambda cores=cores: cores)
            for flags in ("", "--xla_cpu_enable_fast_math=true"):
                monkeypatch.setenv("XLA_FLAGS", flags)
                names.add(machine())
                assert machine() in names, "it changes by itself"
    assert len(names) == 8
    assert cpus[1] == ["model name : AMD EPYC", "flags : fma avx2 avx512f"]
    arm = tmp_path / "arm"
    arm.write_text("processor : 0\nFeatures : asimd sve\nCPU part : 0xd4f\n")
    assert cpu_lines(arm) == ["CPU part : 0xd4f", "Features : asimd sve"]
    assert cpu_lines(tmp_path / "absent") == []


@pytest.mark.parametrize(
    "why", ["job", "chosen", "off", "dump", "open to others", "of another user", "no home"]
)
def test_nothing_is_kept(folder, monkeypatch, why):
    if why == "job":
        monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "localhost:1")
    elif why == "dump":
        monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp/programs")
    elif why == "open to others":
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    elif why == "of another user":
        monkeypatch.setattr(program_cache.os, "geteuid", lambda: 12345)
    elif why == "no home":
        (folder.parent).write_text("a file where the folder should be")
    elif why == "chosen":
        jax.config.update("jax_compilation_cache_dir", "chosen")
    chosen = jax.config.jax_compilation_cache_dir
    before = jax.config.jax_enable_compilation_cache
    try:
        jax.config.update("jax_enable_compilation_cache", why != "off")
        keep_programs()
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
    assert jax.config.jax_compilation_cache_dir == chosen


@pytest.mark.ci
def test_a_run_with_kept_programs_is_bit_equal(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    blocks, kept = write_token_blocks(tmp_path), []
    runs = [tmp_path / name / "run" for name in ("compiled", "reused")]
    for run in runs:
        command = [sys.executable, "-m", "fire_lm", *command_on_blocks(blocks, run)]
        done = subprocess.run(command, env=with_devices(1), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "persistent" not in done.stderr and "machine features" not in done.stderr
        programs = (tmp_path / "cache" / "fire_lm" / "programs").iterdir()
        kept.append({path.name: path.stat().st_ino for path in programs})
    assert kept[0] == kept[1] and any("train_step" in name for name in kept[0])
    assert logged(runs[0]) == logged(runs[1])
    state, other = (saved_state(run, STEPS) for run in runs)
    assert state.keys() == other.keys()
    assert all((state[name] == other[name]).all() for name in state)
