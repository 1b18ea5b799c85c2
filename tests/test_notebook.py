"""docs/notebook.ipynb: its cells run in order on runs like the quick start's."""

import json
import re
import warnings
from pathlib import Path

import matplotlib
import pytest
from sample_run import command, write_text

from fire_lm.cli import main

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())


def cells(kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == kind]


def test_the_notebook_is_stored_without_results():
    """Results would depend on the machine, and images would fill the repository."""
    assert NOTEBOOK["nbformat"] == 4 and len(cells("code")) >= 5
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None


def test_the_links_of_the_notebook_resolve():
    for link in re.findall(r"\]\(([^)]+)\)", "\n".join(cells("markdown"))):
        assert (ROOT / "docs" / link).is_file(), link


@pytest.mark.ci
def test_the_cells_run_in_order(tmp_path, monkeypatch, capsys, caplog):
    matplotlib.use("Agg")
    text = write_text(tmp_path / "text")
    for name in ("fire", "rope"):
        workdir = tmp_path / "runs" / "quickstart" / name
        assert main(command(text, workdir, "--gin.TRAIN_STEPS=4", position=name)) == 0
    (tmp_path / "runs" / "quickstart" / "report").mkdir()
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*non-interactive")  # of `plt.show()` with Agg
        for code in cells("code"):
            exec(compile(code, "notebook", "exec"), names)
    said, errors = capsys.readouterr()
    assert said.startswith("fire (fire, step 4), rope (rope, step 4)\n"), said
    assert "rope: def main(" in said and said.count("%") >= 5
    assert not errors and not caplog.records
    bias = {name: found.bias for name, found in names["found"].items()}  # type: ignore[attr-defined]
    assert bias["fire"][:, -1].any() and not bias["rope"][:, -1].any()
