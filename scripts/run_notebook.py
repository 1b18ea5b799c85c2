"""Execute docs/notebook.ipynb, and store what its cells print and draw in it.

    .venv/bin/python scripts/run_notebook.py [FOLDER]

FOLDER contains the quick start's runs, as runs/quickstart (default: this repository). Images are
small, so that GitHub and the site can show the notebook, and neither dates nor versions are stored.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "notebook.ipynb"
_DPI = 60


def execute(notebook: dict[str, Any]) -> dict[str, Any]:
    """Run the code cells in order, in one namespace, and store their outputs in the notebook.

    Returns:
      The namespace.
    """
    import matplotlib

    matplotlib.use("Agg")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    code_cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code_cells, start=1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*non-interactive")  # of `plt.show()`
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), namespace)
        cell["execution_count"] = number
        cell["outputs"] = [*_texts(printed.getvalue()), *_images()]
    return namespace


def _texts(printed: str) -> Iterator[dict[str, Any]]:
    if printed:
        yield {"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)}


def _images() -> Iterator[dict[str, Any]]:
    """Yield the open figures as PNGs, and close them."""
    from matplotlib import pyplot

    for number in pyplot.get_fignums():
        data = io.BytesIO()
        figure = pyplot.figure(number)
        figure.savefig(data, dpi=_DPI, bbox_inches="tight", metadata={"Software": None})
        pyplot.close(figure)
        image = base64.b64encode(data.getvalue()).decode()
        yield {"data": {"image/png": image}, "metadata": {}, "output_type": "display_data"}


def main(folder: str = "") -> int:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    os.chdir(folder or NOTEBOOK.parent.parent)
    execute(notebook)
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    NOTEBOOK.write_text(f"{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
