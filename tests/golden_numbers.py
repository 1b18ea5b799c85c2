"""Numbers from other libraries, kept in tests/golden so that tests run without those libraries.

A file contains the libraries' versions next to their numbers. Where the libraries are installed, a
test computes the numbers again and compares; UPDATE_GOLDEN=1 writes them.
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
    """Return the stored numbers, after replacing them by `numbers` if UPDATE_GOLDEN is set."""
    if os.environ.get("UPDATE_GOLDEN"):
        versions = {library: importlib.metadata.version(library) for library in libraries}
        content = {"versions": versions, "numbers": numbers}
        (FOLDER / name).write_text(json.dumps(content, indent=1) + "\n")
    return of(name)
