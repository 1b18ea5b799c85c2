"""What other libraries computed, kept in tests/golden: the tests run without those libraries.

A file holds the libraries' versions beside their numbers. Where the libraries are installed, a test
computes the numbers anew and compares; UPDATE_GOLDEN=1 writes them.
"""

import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "golden"


def of(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())["numbers"]


def updated(name: str, numbers: Any, *libraries: str) -> Any:
    """The numbers that are kept, once those given have replaced them if that is asked for."""
    if os.environ.get("UPDATE_GOLDEN"):
        versions = {library: importlib.metadata.version(library) for library in libraries}
        content = {"versions": versions, "numbers": numbers}
        (FOLDER / name).write_text(json.dumps(content, indent=1) + "\n")
    return of(name)
