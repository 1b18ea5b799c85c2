"""docs/notebook.ipynb: its cells run in order on runs like the quick start's."""

import copy
import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from sample_run import command, write_text

from fire_lm.cli import main

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "scripts"))  # last, as scripts/bucket.py has a test module's name
import run_notebook  # noqa: E402

NOTEBOOK = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())


def cells(kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == kind]


def test_the_notebook_is_stored_with_small_results():
    """GitHub and the site show the stored results; `scripts/run_notebook.py` writes them again."""
    assert NOTEBOOK["nbformat"] == 4 and len(cells("code")) >= 5
    outputs = [output for cell in code_cells(NOTEBOOK) for output in cell["outputs"]]
    kinds = [output["output_type"] for output in outputs]
    assert kinds.count("display_data") >= 3 and kinds.count("stream") >= 3
    assert set(kinds) == {"display_data", "stream"}  # no errors
    for output in outputs:
        assert list(output.get("data", {"image/png": ""})) == ["image/png"]
    text = json.dumps(outputs)
    assert len(text) < 400_000 and not re.search(r"/(work|tmp|home|root)\b", text)
    counts = [cell["execution_count"] for cell in code_cells(NOTEBOOK)]
    assert counts == list(range(1, len(counts) + 1))


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_links_of_the_notebook_resolve():
    for link in re.findall(r"\]\(([^)]+)\)", "\n".join(cells("markdown"))):
        assert (ROOT / "docs" / link).is_file(), link


@pytest.mark.ci
def test_the_cells_run_in_order(tmp_path, monkeypatch, capsys, caplog):
    text = write_text(tmp_path / "text")
    for name in ("fire", "rope"):
        workdir = tmp_path / "runs" / "quickstart" / name
        assert main(command(text, workdir, "--gin.TRAIN_STEPS=4", position=name)) == 0
    (tmp_path / "runs" / "quickstart" / "report").mkdir()
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    notebook = copy.deepcopy(NOTEBOOK)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = run_notebook.execute(notebook)
    outputs = [output for cell in code_cells(notebook) for output in cell["outputs"]]
    said = "".join(line for output in outputs for line in output.get("text", ()))
    stored = [output["output_type"] for cell in code_cells(NOTEBOOK) for output in cell["outputs"]]
    assert [output["output_type"] for output in outputs] == stored
    errors = capsys.readouterr().err
    assert said.startswith("fire (fire, step 4), rope (rope, step 4)\n"), said
    assert "rope: def main(" in said and said.count("%") >= 5
    assert not errors and not caplog.records
    bias = {name: found.bias for name, found in names["found"].items()}
    assert bias["fire"][:, -1].any() and not bias["rope"][:, -1].any()
