"""Examples of an input and its target for tests/pair_tasks.py."""

import importlib
import os
from pathlib import Path

import pytest


def write_pairs(folder: Path) -> Path:
    """Files for tests/pair_tasks.py: a letter, and how often it is asked for."""
    folder.mkdir()
    for split, count in (("train", 200), ("validation", 30)):
        for file in range(2):
            lines = [
                f"{n}\t{'abcdef'[n % 6]} x{n % 4 + 1}:\t{'abcdef'[n % 6] * (n % 4 + 1)}|never"
                for n in range(file, count, 2)
            ]
            (folder / f"{split}-{file}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module", autouse=True)
def pairs(tmp_path_factory):
    """tests/pair_tasks.py, reading files written here, for each module that imports this."""
    folder = write_pairs(tmp_path_factory.mktemp("tasks") / "pairs")
    os.environ["PAIR_TASKS_TEXT"] = str(folder)
    module = importlib.import_module("pair_tasks")
    module.FILES.update({split: f"{folder}/{split}-*.txt" for split in module.FILES})
    yield module
    del os.environ["PAIR_TASKS_TEXT"]
