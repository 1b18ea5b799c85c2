"""Data sets of suites that are written and read back, for tests of both."""

import functools
from pathlib import Path

import numpy as np
import pytest
import sample_suites

from fire_lm.cli import main
from fire_lm.data.suites import seqio_tasks
from fire_lm.tasks.suites import TASKS

QASPER = TASKS["scrolls_qasper"]
EOS = 1


@functools.cache
def of_scrolls(session: Path) -> Path:
    """Write folders of SCROLLS once in a session of tests, which copy and never change them."""
    return sample_suites.write_suite("scrolls", session / "scrolls")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return of_scrolls(tmp_path_factory.getbasetemp())


def write(task, source: Path, data_dir: Path):
    from fire_lm.data.suites import sources

    (found,) = sources.find_all([task], str(source)).values()
    return sources.write_official(task, found, str(data_dir))


@functools.cache
def of_tasks(session: Path) -> Path:
    """Write Qasper and ContractNLI as `corpus tasks` does, once in a session of tests."""
    folder = session / "data_of_tasks"
    for name in ("scrolls_qasper", "scrolls_contract_nli"):
        assert write(TASKS[name], of_scrolls(session), folder).written
    return folder


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    return of_tasks(tmp_path_factory.getbasetemp())


def examples(name: str, data_dir: Path, split: str, **lengths: int) -> list[dict]:
    task = seqio_tasks.task_or_mixture(name, str(data_dir), "bytes")
    read = task.get_dataset(lengths or None, split=split, shuffle=False)
    return list(read.as_numpy_iterator())


def raw(ids: np.ndarray) -> bytes:
    return (ids - 3).astype(np.uint8).tobytes()


def text_of(ids: np.ndarray) -> str:
    assert ids[-1] == EOS and EOS not in ids[:-1]
    return raw(ids[:-1]).decode()


def by_id(found: list[dict]) -> dict[str, dict]:
    return {example["id"].decode(): example for example in found}


def command(*arguments: str) -> int:
    return main(["corpus", "tasks", *arguments])
