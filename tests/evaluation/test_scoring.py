"""`fire_lm.evaluation.scoring`: how the processes of a job read a checkpoint."""

from typing import Any

import pytest

from fire_lm.errors import RunFailed
from fire_lm.evaluation import scoring


def test_a_checkpoint_is_verified_before_any_process_restores_it(monkeypatch):
    """In a restore, processes wait for each other, so that one of them must not fail before it."""

    def refuse(_: Any) -> None:
        raise RunFailed("damaged, as process 0 says")

    monkeypatch.setattr(scoring, "by_first", refuse)
    monkeypatch.setattr(scoring, "restore_params", lambda *_: pytest.fail("a restore began"))
    with pytest.raises(RunFailed, match="as process 0 says"):
        scoring.read_params("run", 1, None, None)  # type: ignore[arg-type]
