"""scripts/docs: the site has every page and public module, is complete, and loads nothing."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "scripts"))  # last, as scripts/bucket.py has a test module's name

import docs_pages  # noqa: E402


def test_the_navigation_lists_every_page():
    nav = (ROOT / "docs/mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = re.findall(r"- ([\w/]+\.md)$", nav, re.MULTILINE)
    pages = [*ROOT.glob("docs/*.md"), *(ROOT / n for n in ("README.md", "CHANGELOG.md"))]
    pages.append(ROOT / "tpu" / "README.md")
    pages += [path.with_suffix(".md") for path in ROOT.glob("docs/*.ipynb")]  # written by the site
    assert sorted(listed) == sorted(str(page.relative_to(ROOT)) for page in pages)


def test_each_public_module_is_in_one_api_page():
    modules = docs_pages.public_modules(ROOT)
    assert len(modules) > 100 and docs_pages.undocumented(modules) == []
    text = "".join(docs_pages.api_pages(modules).values())
    assert sorted(re.findall(r"^::: (\S+)$", text, re.MULTILINE)) == sorted(modules)


def test_a_notebook_becomes_a_page_with_its_outputs():
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": ["x = 1\n", "x"], "outputs": [
            {"output_type": "stream", "text": ["said\n"]},
            {"output_type": "execute_result", "data": {"text/plain": ["1"]}},
            {"output_type": "display_data", "data": {"image/png": "iVBO"}},
        ]},
    ]  # fmt: skip
    assert docs_pages.notebook_page(json.dumps({"cells": cells})) == (
        "# Title\ntext\n\n```python\nx = 1\nx\n```\n\n```\nsaid\n```\n\n```\n1\n```\n\n"
        "![output](data:image/png;base64,iVBO)\n"
    )


def test_a_module_without_a_docstring_is_refused(tmp_path):
    for name in ("fire_lm/a/__init__.py", "fire_lm/a/bare.py", "fire_lm/_private.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("" if "__init__" in name else "x = 1\n")
    assert docs_pages.undocumented(docs_pages.public_modules(tmp_path)) == ["fire_lm.a.bare"]
    assert docs_pages.main([str(tmp_path), str(tmp_path / "site")]) == 1


@pytest.mark.parametrize(
    "html, found",
    [
        ('<script src="https://cdn.invalid/x.js"></script>', True),
        ('<link rel="stylesheet" href="//fonts.invalid/css">', True),
        ("<style>@import url(https://fonts.invalid/css)</style>", True),
        ('<img src="../biases.png"> <a href="https://example.invalid">read</a>', False),
        ('<link rel="stylesheet" href="assets/main.css">', False),
    ],
)
def test_what_a_page_would_load_from_the_network_is_found(tmp_path, html, found):
    (tmp_path / "index.html").write_text(html)
    assert bool(docs_pages.fetched(tmp_path)) == found


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    """Installs docs/requirements.lock into .venv-docs if it does not exist."""
    done = subprocess.run(
        [str(ROOT / "scripts" / "docs"), str(tmp_path)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    for name in (
        "index.html",
        "docs/encodings.html",
        "docs/notebook.html",
        "api/fire_lm.positions.html",
    ):
        assert (tmp_path / "site" / name).is_file()


@pytest.mark.slow
def test_a_broken_link_fails_the_build(tmp_path):
    """`mkdocs --quiet` does not count warnings, so that --strict would let them all pass."""
    assert 'mkdocs" build --strict' in (ROOT / "scripts" / "docs").read_text()
    folder, python = tmp_path / "site", ROOT / ".venv-docs" / "bin" / "python"
    subprocess.run([str(ROOT / "scripts" / "docs"), str(folder)], check=True, timeout=600)
    page = folder / "pages" / "docs" / "blocks.md"
    page.write_text(page.read_text() + "\n[broken](nowhere.md)\n")
    done = subprocess.run(
        [str(python), "-m", "mkdocs", "build", "--strict", "-f", str(folder / "mkdocs.yml")],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode != 0 and "nowhere.md" in done.stderr
