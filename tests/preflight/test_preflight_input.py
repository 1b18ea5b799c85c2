"""What `fire-lm preflight` refuses, in a line or two, before anything is compiled."""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bucket_faults import Denied, Status
from jax.experimental import topologies
from preflight_checks import config_of, data, outcomes

from fire_lm.cli import main
from fire_lm.data import only_data_set
from fire_lm.errors import RunFailed, UserError
from fire_lm.experiment import load_experiment
from fire_lm.generation import Greedy
from fire_lm.hardware.slices import compiler_name, parse_slice
from fire_lm.positions.fire import FIRE
from fire_lm.positions.kerple import KERPLELog
from fire_lm.preflight import bundles, check, kernels
from fire_lm.preflight import nearest_fit as fits_of
from fire_lm.preflight.programs import Compiler, DoesNotFit, Prompts
from fire_lm.preflight.report import FAILED, OK
from fire_lm.training import Finetuning, Pretraining

__all__ = ["data"]  # fixtures

C4 = ("--gin_file=configs/runs/c4_125m.gin", "--gin_file=configs/positions/fire.gin")


@pytest.fixture
def nothing_compiles(monkeypatch):
    """Fail the test if anything is compiled or read before the refusal."""
    monkeypatch.setattr(Compiler, "training", lambda *_: pytest.fail("it compiles already"))
    monkeypatch.setattr(check, "check_surroundings", lambda *_: pytest.fail("it reads already"))
    for name in ("LIBTPU_INIT_ARGS", "TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # restores variables that the verb sets
    monkeypatch.setattr(bundles, "FLAGS", ())


@pytest.mark.parametrize(
    "slice_, more, told",
    [
        ("v4-7", (), "v4-8 (4 chips)"),
        (
            "v4-8",
            (),
            "mesh data=8 x fsdp=16 x tensor=1 needs 128 devices, but v4-8 (4 chips) has 4: "
            "set --gin.MeshShape.data=1 --gin.MeshShape.fsdp=4 --gin.MeshShape.tensor=1",
        ),
        (
            "2xv4-8",
            (),
            "2xv4-8 (8 chips) has 8: set --gin.MeshShape.data=2 --gin.MeshShape.fsdp=4 ",
        ),
        (
            "2xv4-8",
            ("--gin.MeshShape.data=1", "--gin.MeshShape.fsdp=8"),
            "MeshShape.data is 1, but 2 slices must share the batch",
        ),
        ("v4-256", ("--gin.BATCH_SIZE=100",), "make BATCH_SIZE a multiple of 128"),
        ("v4-256", ("--gin.BATCH_SIZE=64",), "make BATCH_SIZE a multiple of 128"),
        ("v4-256", ("--gin.pretrain.microbatches=4",), "make BATCH_SIZE a multiple of 512"),
        ("v4-256", ("--gin.TRAIN_STEPS=0",), "train_steps is 0"),
        (
            "v4-64",
            ("--gin.MeshShape.fsdp=1", "--gin.MeshShape.data=4", "--gin.MeshShape.tensor=8"),
            "choose a size of tensor that divides 12",
        ),
        ("v4-256", ("--generate=8x8192",), "'8x8192' is not of the form BATCHxPROMPTxNEW"),
        ("v4-256", ("--generate=8x8192x0",), "'0' is not a whole number of 1 or more"),
        ("v4-256", ("--beams=4",), "--beams needs --generate=BATCHxPROMPTxNEW"),
        ("v4-256", ("--json=no/such/folder/it.json",), "there is no folder no/such/folder"),
        ("v4-256", ("--json=configs",), "--json=configs is a folder"),
        ("v4-256", ("--json=/proc/it.json",), "cannot write to --json /proc"),
        ("v4-256", ("--json=s5://bucket/it.json",), "neither a local path nor a gs:// path"),
        ("v4-256", ("--workdir=s5://bucket/run",), "neither a local path nor a gs:// path"),
    ],
)
def test_what_cannot_work_on_a_slice(slice_, more, told, nothing_compiles, capsys):
    assert main(["preflight", f"--slice={slice_}", *C4, *more]) == 2
    said = capsys.readouterr().err.strip()
    assert told in said and len(said.splitlines()) <= 2, said


def test_without_libtpu(nothing_compiles, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "libtpu" else find(name, *a)
    )
    assert main(["preflight", "--slice=v4-256", *C4]) == 2
    assert "pip install -e '.[tpu]'" in capsys.readouterr().err


HOLD = """
import sys
from fire_lm.generation import Greedy
from fire_lm.hardware.slices import parse_slice
from fire_lm.errors import UserError
try:
    print(len(parse_slice("v4-8").devices()), flush=True)
except UserError as error:
    print(error, flush=True)
sys.stdin.read()
"""


@pytest.mark.ci
def test_while_another_program_has_libtpu():
    """The later of two programs gets the error, or the first if a third already holds libtpu."""
    environment = os.environ | {"ALLOW_MULTIPLE_LIBTPU_LOAD": "0"}
    start: dict[str, Any] = {"env": environment, "text": True, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, **start) as holder:
        assert holder.stdout and holder.stdin
        told = holder.stdout.readline()
        if told == "4\n":
            told = subprocess.run([sys.executable, "-c", HOLD], input="", **start).stdout
        holder.stdin.close()
        told += holder.stdout.read()
    assert "libtpu cannot be loaded (ABORTED" in told
    assert "wait until it ends, or unset ALLOW_MULTIPLE_LIBTPU_LOAD, which is '0' here" in told
    assert len(told.splitlines()) == 2


@pytest.mark.parametrize("shared, lines", [("0", 2), ("1", 1)])
def test_advice_that_is_followed_already_is_not_given(shared, lines, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("it cannot\nat all")

    monkeypatch.setattr(topologies, "get_topology_desc", refuse)
    monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", shared)
    with pytest.raises(UserError, match=r"libtpu cannot be loaded \(it cannot\)") as error:
        parse_slice("v4-8").devices()
    assert len(str(error.value).splitlines()) == lines


def test_nothing_is_left_where_a_run_would_be(data, tmp_path):
    found = outcomes(config_of(data), str(tmp_path / "new" / "run"))
    assert {outcome for outcome, _ in found.values()} == {OK}, found
    assert found["run directory"][1] == f"{tmp_path} is writable"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ci
def test_a_place_that_cannot_be_written(data, tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/nothing/run")):
        outcome, told = outcomes(config_of(data), str(place))["run directory"]
        assert outcome == FAILED and "cannot write to --workdir" in told, (place, told)


@pytest.mark.parametrize(
    "remat, fits, told",
    [
        ("none", {("none", 4)}, "it fits with --gin.pretrain.microbatches=4: 1.00 GiB"),
        (
            "none",
            {("full", 8)},
            "it fits with --gin.build_decoder.remat=full --gin.pretrain.microbatches=8: 1.00 GiB",
        ),
        (
            "none",
            set(),
            "not even with --gin.build_decoder.remat=full: raise MeshShape",
        ),
        ("full", set(), "no number of microbatches makes it fit: raise MeshShape"),
    ],
)
def test_what_is_said_to_fit_was_tried(remat, fits, told, data, monkeypatch):
    def training(_: Compiler, run: Any) -> Any:
        if (run.model.remat, run.microbatches) not in fits:
            raise DoesNotFit(2**31, 2**30)
        return SimpleNamespace(memory=2**30)

    monkeypatch.setattr(Compiler, "training", training)
    config = config_of(data, "BATCH_SIZE=32", "MeshShape.data=-1", f"build_decoder.remat='{remat}'")
    run, compiler = config.train, Compiler(parse_slice("v4-8"), Path())
    assert told in fits_of.training(compiler, run, run.batch_size)
    monkeypatch.setattr(Pretraining, "configurable", Finetuning.configurable)
    assert told.replace("pretrain", "finetune") in fits_of.training(compiler, run, run.batch_size)


def test_text_vocabulary_and_lengths(data, tmp_path):
    assert outcomes(config_of(tmp_path / "no"))["text and vocabulary"][0] == FAILED
    found = outcomes(config_of(data, "VOCABULARY=no/such.model"))["text and vocabulary"]
    assert found[0] == FAILED and "no/such.model" in found[1]
    found = outcomes(config_of(data, "VOCAB_SIZE=100"))["text and vocabulary"]
    assert found[0] == FAILED and "set --gin.VOCAB_SIZE" in found[1]
    found = outcomes(config_of(data, "EVAL_LENGTHS=(100, 8192)"))["sweep"]
    assert found[0] == FAILED and "8192 is longer than a row of text" in found[1]
    found = outcomes(config_of(data, position="learned"))["sweep"]
    assert found[0] == OK and "lengths up to 64" in found[1]
    found = outcomes(config_of(data, "EVAL_LENGTHS=(512, 1024)", position="learned"))["sweep"]
    assert found[0] == FAILED and "EVAL_LENGTHS" in found[1]
    found = outcomes(config_of(data, f"INIT_FROM={tmp_path}"))["INIT_FROM"]
    assert found[0] == FAILED and "contains no run" in found[1]


LARGE = "length_sweep.tokens=2097152"  # rows of 65,536 tokens


@pytest.mark.ci
def test_the_text_of_the_sweep(data, tmp_path):
    found = outcomes(config_of(data))["sweep"]
    assert found == (OK, "lengths up to 1024 on the validation split")
    found = outcomes(config_of(data, "EVAL_LENGTHS=(512, 65536)", LARGE))["sweep"]
    assert found[0] == FAILED and "has less text than one row of 65536 tokens" in found[1]
    found = outcomes(config_of(data, "length_sweep.split=holdout"))["sweep"]
    assert found[0] == FAILED and "no split 'holdout'" in found[1]
    for setting in ("tokens", "tokens_per_batch"):
        with pytest.raises(UserError, match=f"length_sweep.{setting} is 0: it must be 1 or more"):
            outcomes(config_of(data, f"length_sweep.{setting}=0"))
    copy = shutil.copytree(data, tmp_path / "copy")
    for file in copy.rglob("*validation*"):
        file.unlink()
    found = outcomes(config_of(copy))
    assert found["text and vocabulary"][0] == OK
    assert found["sweep"][0] == FAILED and "failed: " in found["sweep"][1], found


@pytest.mark.parametrize(
    "bindings, outcome, told",
    [
        ((), OK, "lengths up to 128 on the validation split"),
        (("TrainingLosses.split='holdout'",), FAILED, "no split 'holdout'"),
        (("TrainingLosses.lengths=(64, 65536)",), FAILED, "less text than one row of 65536"),
        (
            ("TextData.mixture=(('c4/en:3.1.0', 1.0),)",),
            FAILED,
            "A mixture (1 c4/en:3.1.0) cannot be scored as a whole",
        ),
    ],
)
def test_the_text_of_the_evaluation(data, bindings, outcome, told):
    settings = ("TrainingLosses.lengths=(64, 128)", "TrainingLosses.tokens=256", *bindings)
    found = outcomes(config_of(data, *settings, more="validation"))["evaluation"]
    assert found[0] == outcome and told in found[1], found


def test_the_blocks_of_the_sweep(data, tmp_path):
    from fire_lm.data.blocks.writer import write_blocks

    write_blocks(only_data_set(str(data), None), str(tmp_path))
    assert outcomes(config_of(tmp_path, more="data/blocks"))["sweep"][0] == OK
    beyond = config_of(tmp_path, "EVAL_LENGTHS=(64, 65536)", LARGE, more="data/blocks")
    found = outcomes(beyond)["sweep"]
    assert found[0] == FAILED and "no row of 65536 tokens" in found[1]


@pytest.fixture
def seen(monkeypatch):
    """Return a function that runs all of preflight's checks but compiles nothing."""

    def checks(slice_: str, config: Any) -> dict[str, tuple[str, str]]:
        train, score = config.train, config.sweep
        compiler = Compiler(parse_slice(slice_), Path())
        report = check.preflight(compiler, train, score, score.lengths, "", {})
        assert set(report.failures.values()) == {"not compiled"}
        return {found.name: (found.outcome, found.detail) for found in report.checks}

    def refuse(*_: Any) -> None:
        raise RunFailed("not compiled")

    monkeypatch.setattr(Compiler, "training", refuse)
    monkeypatch.setattr(Compiler, "scoring", refuse)
    return checks


@pytest.mark.ci
def test_text_for_every_host_of_the_slice(seen, data):
    """There are 53 documents to train on, and v4-512 has 64 hosts."""
    mesh = ("BATCH_SIZE=256", "MeshShape.data=-1")
    outcome, told = seen("v4-512", config_of(data, *mesh))["text and vocabulary"]
    assert outcome == FAILED and "left for shard 63 of 64: use fewer processes" in told, told
    outcome, told = seen("v4-256", config_of(data, *mesh))["text and vocabulary"]
    assert (outcome, told) == (OK, "53 documents through seqio, read as part 32 of 32")


@pytest.mark.ci
def test_libtpu_by_another_name(seen, data, monkeypatch):
    """The compiler's name is known before it compiles for minutes, whatever its package's name."""

    def none(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", none)
    assert seen("v4-8", config_of(data, "MeshShape.data=-1"))
    assert compiler_name() == "libtpu, unknown version"
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "0.1" if "nightly" in name else none(name)
    )
    assert compiler_name() == "libtpu-nightly 0.1"


def test_a_bias_beyond_the_limits_of_the_kernel_is_found_before_compiling(data):
    """The loss of the first step would be NaN."""
    for width, refused in ((32, False), (256, True)):
        model = config_of(data, f"FIRE.width={width}", "size_tiny.head_dim=64").model
        found = check.checked("attention kernel", lambda: check.check_limits(model, 2048))  # noqa: B023
        assert (found.outcome == FAILED) == refused
        assert not refused or "kinks in a layer, but the TPU kernel supports" in found.detail


def test_the_kinks_of_a_schedule_are_those_of_the_encoding_that_has_any():
    kerple = KERPLELog(num_heads=1, head_dim=64, train_length=256, hidden_size=64)
    fire = FIRE(num_heads=1, head_dim=64, train_length=256, hidden_size=64)
    assert [kernels.has_kinks(encoding, 256) for encoding in (kerple, fire)] == [False, True]


def test_what_is_to_be_generated_must_be_in_reach(seen, data):
    """A learned table has only 64 positions; nothing is compiled to discover that."""
    files = ["configs/runs/quickstart.gin", "configs/positions/learned.gin"]
    settings = [f'DATA_DIR="{data}"', "TRAIN_LENGTH=64", "MeshShape.data=-1"]
    score = load_experiment(files, settings).sweep
    compiler = Compiler(parse_slice("v5e-8"), Path())
    with pytest.raises(UserError, match="beyond the 64 positions"):
        compiler.generation(score.model, score.mesh, Prompts(1, 60, 5, Greedy()))


def test_blocks_for_every_host_of_the_slice(seen, data, tmp_path):
    from fire_lm.data.blocks.writer import write_blocks

    write_blocks(only_data_set(str(data), None), str(tmp_path))
    for batch, expected in ((64, OK), (2**20, FAILED)):
        config = config_of(tmp_path, f"BATCH_SIZE={batch}", "MeshShape.fsdp=1", more="data/blocks")
        outcome, told = seen("v4-128", config)["text and vocabulary"]
        assert outcome == expected, told


@pytest.mark.parametrize(
    "fault, told",
    [
        (Denied(prefix=""), "loopback does not have storage.objects."),
        (Status(status=503), "503, as a fault of the tests"),
    ],
    ids=["forbidden", "unavailable"],
)
def test_a_bucket_that_refuses(fault, told, bucket, data):
    config = config_of(data)
    bucket.faults = [fault]
    found = outcomes(config, bucket.url("run"))
    for name in ("run directory", "checkpoint"):
        assert found[name][0] == FAILED and told in found[name][1], found


def test_a_bucket_is_tried_where_the_run_will_be(bucket, data):
    """With access by prefix, the user may lack permission to write to the folder above."""
    bucket.faults = [Denied(prefix="other")]
    assert check.writable_part(bucket.url("mine/run")).as_posix() == bucket.url("mine/run")
    with pytest.raises(UserError, match="cannot write to --workdir .*other/run: .*does not have"):
        check.writable_part(bucket.url("other/run"))
    assert bucket.objects == {}


def test_a_bug_is_no_outcome():
    with pytest.raises(ZeroDivisionError):
        check.checked("it", lambda: str(1 / 0))
