"""Checkpoints in folders whose names are patterns to libraries, and unreadable saves."""

import contextlib

import pytest
from bucket import Bucket
from sample_checkpoints import INFO, POSITION, assert_equal, one_array, restored, saved

from fire_lm.checkpoints import (
    Checkpointing,
    Checkpoints,
    available_steps,
    choose_step,
    restore_params,
)
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
