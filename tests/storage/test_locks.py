"""Locks of files on a disk: one holder, or several that share it, until the file is closed."""

import errno
import fcntl
from pathlib import Path

import pytest

from fire_lm.storage import lock_file


def test_a_lock_has_one_holder_or_several_that_share_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as first, path.open() as second, path.open() as third:
        assert lock_file(first) and not lock_file(second) and not lock_file(second, shared=True)
        first.close()
        assert lock_file(second, shared=True) and lock_file(third, shared=True)
        with path.open() as fourth:
            assert not lock_file(fourth)
        third.close()
        second.close()
        with path.open() as fourth:
            assert lock_file(fourth, wait=True)


def test_without_support_for_locks_a_file_counts_as_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (tmp_path / "lock").open("w") as file:
        assert lock_file(file)
