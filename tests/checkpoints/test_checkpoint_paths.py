"""Checkpoints in folders whose names are patterns to libraries, and unreadable saves."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import orbax.checkpoint as ocp
import pytest
from bucket import Bucket
from etils import epath
from sample_checkpoints import INFO, POSITION, assert_equal, one_array, recovered, restored, saved

from fire_lm.checkpoints import (
    Checkpointing,
    Checkpoints,
    available_steps,
    check_arrays,
    check_params,
    choose_step,
    restore_params,
)
from fire_lm.checkpoints.manifest import write_manifest
from fire_lm.errors import RunFailed, UserError

PATTERNS = ("run [1]", "[!x]", "a**b", "{a?b}%41#~")


@pytest.mark.parametrize("name", PATTERNS)
def test_a_folder_whose_name_is_a_pattern(name, tmp_path):
    folder = saved(tmp_path / name, 3, make=one_array)
    assert_equal(restored(folder, 3, one_array())[0], one_array(scale=3))
    like = one_array()["params"]
    assert_equal(
        restore_params(folder, choose_step(folder, None), like)[0], one_array(1, 3)["params"]
    )


def test_a_backslash_is_refused(tmp_path):
    """Tensorstore takes it as a slash, so it would write the arrays to another folder."""
    with pytest.raises(UserError, match=r"a.b cannot hold a run: .* must not contain a backslash"):
        saved(tmp_path / "a\\b", 3, make=one_array)


@pytest.mark.ci
@pytest.mark.parametrize("name", ["run [1]", "a*b", "a\\[b]"])
def test_a_folder_in_a_bucket_whose_name_is_a_pattern(name, bucket: Bucket):
    for folder, step in (("axb", 4), (name, 3)):  # the other folder matches a*b
        with contextlib.closing(Checkpoints(bucket.url(folder), Checkpointing())) as writer:
            writer.save(3, one_array(scale=step), POSITION, INFO)
    with contextlib.closing(Checkpoints(bucket.url(name), Checkpointing())) as reader:
        assert reader.recover() == 3
        found = reader.restore(3, one_array())
    assert found is not None
    assert_equal(found[0], one_array(scale=3))


def test_a_save_that_cannot_be_opened_is_not_complete(tmp_path, monkeypatch, capsys):
    async def omitted(*_, **__) -> None:
        pass

    merge = "orbax.checkpoint._src.serialization.ocdbt_utils.merge_ocdbt_per_process_files"
    monkeypatch.setattr(merge, omitted)
    with pytest.raises(RunFailed, match="could not be saved: its arrays cannot be read"):
        saved(tmp_path, 3, make=one_array, failures_allowed=0)
    assert available_steps(tmp_path) == []


def unmerged(run: Path, step: int = 3) -> Path:
    """Change a checkpoint to what earlier versions wrote in a folder such as `run [1]`."""
    folder = run / "checkpoints" / str(step)
    (folder / "state" / "manifest.ocdbt").unlink()
    shutil.rmtree(folder / "state" / "d")
    (folder / "manifest.sha256").unlink()
    write_manifest(epath.Path(folder))
    return folder


@pytest.mark.parametrize("use", ["restore", "params", "check", "arrays"])
def test_a_checkpoint_of_an_earlier_version_is_completed(use, tmp_path, capsys):
    run = saved(tmp_path / "run [1]", 3, make=one_array)
    folder = unmerged(run)
    like = one_array()
    if use == "restore":
        assert recovered(run) == 3
        assert_equal(restored(run, 3, like)[0], one_array(scale=3))
    elif use == "params":
        assert_equal(restore_params(run, 3, like["params"])[0], one_array(scale=3)["params"])
    elif use == "check":
        assert check_params(run, 3, like["params"])[1] == []
    else:
        check_arrays(run, 3, like)
    told = capsys.readouterr().err
    assert "checkpoint 3 of" in told and "Traceback" not in told
    assert (folder / "state" / "manifest.ocdbt").exists()
    assert "state/manifest.ocdbt" in (folder / "manifest.sha256").read_text()
    assert choose_step(run, 3) == 3


def test_a_checkpoint_that_cannot_be_completed_names_the_remedy(tmp_path, monkeypatch):
    async def denied(*_, **__) -> None:
        raise PermissionError("read-only")

    run = saved(tmp_path / "run [1]", 3, make=one_array)
    folder, like = unmerged(run), one_array()["params"]
    monkeypatch.setattr(ocp.type_handlers, "merge_ocdbt_per_process_files", denied)
    with pytest.raises(RunFailed) as error:
        restore_params(run, 3, like)
    command = f"cp -r '{folder}/state/ocdbt.process_0/manifest.ocdbt' "
    command += f"'{folder}/state/ocdbt.process_0/d' '{folder}/state/'"
    assert f"`{command}`" in str(error.value)
    subprocess.run(["sh", "-c", command], check=True)
    assert_equal(restore_params(run, 3, like)[0], one_array(scale=3)["params"])
