"""Data sets of suites that are written and read back, for tests of both."""

from pathlib import Path

import numpy as np
import pytest
import sample_suites

from fire_lm.cli import main
from fire_lm.data import suites
from fire_lm.tasks.suites import TASKS

QASPER = TASKS["scrolls_qasper"]
EOS = 1


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Write folders of SCROLLS."""
    return sample_suites.write_suite("scrolls", tmp_path_factory.mktemp("scrolls"))


def write(task, source: Path, data_dir: Path):
    from fire_lm.data.suites import sources

    (found,) = sources.find_all([task], str(source)).values()
    return sources.write_official(task, found, str(data_dir))


@pytest.fixture(scope="module")
def data_dir(source, tmp_path_factory) -> Path:
    """Write Qasper and ContractNLI as `corpus tasks` does."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("scrolls_qasper", "scrolls_contract_nli"):
        assert write(TASKS[name], source, folder).written
    return folder


def examples(name: str, data_dir: Path, split: str, **lengths: int) -> list[dict]:
    task = suites.task_or_mixture(name, str(data_dir), "bytes")
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
