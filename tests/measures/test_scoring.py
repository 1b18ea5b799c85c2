"""`fire_lm.measures.scoring`: how the processes of a job read a checkpoint."""

import jax
import pytest
from sample_checkpoints import one_array, saved
from sample_run import tiny_run

from fire_lm.errors import RunFailed
from fire_lm.measures import scoring
from fire_lm.sharding import MeshShape, make_mesh


def test_a_process_does_not_restore_a_checkpoint_that_process_0_finds_damaged(
    tmp_path, monkeypatch
):
    """In a restore, processes wait for each other, so that none may fail before it alone."""
    folder = saved(tmp_path, 3, make=one_array) / "checkpoints" / "3"
    for path in folder.glob("state/**/d/*"):
        path.write_bytes(b"")
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(scoring, "by_first", lambda work: work())  # as process 0 does
    monkeypatch.setattr(scoring, "restore_params", lambda *_: pytest.fail("a restore began"))
    with pytest.raises(RunFailed, match="checkpoint 3 of .* is damaged: .*has changed"):
        scoring.read_params(str(tmp_path), 3, tiny_run().model, make_mesh(MeshShape()))
