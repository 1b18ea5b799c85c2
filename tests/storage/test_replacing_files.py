"""Files on a disk that are replaced or created as a whole."""

import errno
import os
from pathlib import Path

import pytest

from fire_lm.storage import create_text, replace_text


def test_a_full_disk_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "inputs.json").write_text("before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_text(tmp_path / "inputs.json", "after", durable=True)
    with pytest.raises(OSError, match="No space"):
        create_text(tmp_path / "config.gin", "SEED = 1")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"inputs.json": "before"}


def test_without_hard_links_no_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", refuse)
    assert create_text(tmp_path / "config.gin", "mine")
    assert not create_text(tmp_path / "config.gin", "theirs")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"config.gin": "mine"}


def test_a_rename_leaves_the_file_that_another_writer_puts_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In containers that share a file system, two writers may have one process number."""
    replace, others = Path.replace, tmp_path / f"a.{os.getpid()}.tmp"

    def and_another_writes(self: Path, target: Path) -> Path:
        replaced = replace(self, target)
        others.write_text("theirs")
        return replaced

    monkeypatch.setattr(Path, "replace", and_another_writes)
    replace_text(tmp_path / "a", "mine")
    assert (tmp_path / "a").read_text() == "mine" and others.read_text() == "theirs"
