"""The text of the runs of this folder."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir(trained) -> Path:
    return trained / "text"


@pytest.fixture(scope="session")
def blocks(trained) -> Path:
    return trained / "blocks"
