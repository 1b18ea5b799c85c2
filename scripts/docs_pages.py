"""Write the input of MkDocs, or check the built site.

    python scripts/docs_pages.py REPOSITORY FOLDER
    python scripts/docs_pages.py check FOLDER

The first form writes the pages and images to FOLDER in the same layout as in the repository, so
that links work, with a page for each notebook, an API page for each package of fire_lm, and a copy
of docs/mkdocs.yml whose nav ends with these API pages. The second form finds resources that the
built site would load from the network. The program needs only the standard library and imports
nothing from fire_lm.
"""

import ast
import json
import re
import shutil
import sys
from pathlib import Path

COPIED = ("README.md", "CHANGELOG.md", "CITATION.cff", "docs/*.md", "docs/*.ipynb", "tpu/README.md")
IMAGES = "docs/evidence/**/*"
# Matches resources that a browser would fetch to display a page, but not links for the reader.
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//[^"'>\s]*"""
    r"""|<link\b(?![^>]*rel=["']?(?:canonical|next|prev)\b)[^>]*\bhref=["']?(?:https?:)?//[^"'>\s]*"""
    r"""|(?:@import\s+["']?|url\(["']?)(?:https?:)?//[^"')\s]*""",
    flags=re.IGNORECASE,
)


def public_modules(repository: Path) -> dict[str, Path]:
    """Return the paths of fire_lm's modules by dotted name; names with a leading _ are private."""
    found = {}
    for path in sorted((repository / "fire_lm").rglob("*.py")):
        parts = path.relative_to(repository).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if not any(part.startswith("_") for part in parts):
            found[".".join(parts)] = path
    return found


def undocumented(modules: dict[str, Path]) -> list[str]:
    """Return the modules that lack a docstring; an empty module does not need one."""
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules.items()}
    return [name for name, tree in trees.items() if tree.body and not ast.get_docstring(tree)]


def api_pages(modules: dict[str, Path]) -> dict[str, str]:
    """Return the text of each API page by path; there is one page per package, with its modules."""
    members: dict[str, list[str]] = {}
    for name, path in modules.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        members.setdefault(package, []).append(name)
    return {
        f"api/{package}.md": f"# {package}\n\n"
        + "".join(f"::: {name}\n    options:\n      show_submodules: false\n\n" for name in names)
        for package, names in sorted(members.items())
    }


def notebook_page(text: str) -> str:
    """Return the cells of a notebook as a Markdown page: text as it is, code and outputs in blocks.

    Images become part of the page.
    """
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            shown = output.get("text") or data.get("text/plain")
            if "image/png" in data:
                image = "".join(data["image/png"]).strip()
                parts.append(f"![output](data:image/png;base64,{image})")
            elif shown:
                parts.append(f"```\n{''.join(shown).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def fetched(folder: Path) -> list[str]:
    """Return the resources that a site's pages and style sheets would load from the network."""
    found = []
    for path in sorted([*folder.rglob("*.html"), *folder.rglob("*.css")]):
        text = path.read_text(encoding="utf-8")
        found += [f"{path.relative_to(folder)}: {match[0]}" for match in _FETCHED.finditer(text)]
    return found


def write(repository: Path, folder: Path) -> None:
    """Write the pages, the images, the API pages and mkdocs.yml into `folder`."""
    pages = folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    images = [path for path in repository.glob(IMAGES) if path.suffix in (".png", ".svg")]
    for path in [*(found for name in COPIED for found in repository.glob(name)), *images]:
        target = pages / path.relative_to(repository)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for path in repository.glob("docs/*.ipynb"):
        page = pages / path.relative_to(repository).with_suffix(".md")
        page.write_text(notebook_page(path.read_text(encoding="utf-8")), encoding="utf-8")
    written = api_pages(public_modules(repository))
    (pages / "api").mkdir()
    for name, text in written.items():
        (pages / name).write_text(text, encoding="utf-8")
    settings = (repository / "docs/mkdocs.yml").read_text(encoding="utf-8")
    settings = settings.replace(
        "        python:\n", f"        python:\n          paths: ['{repository}']\n"
    )
    nav = "  - API:\n" + "".join(f"      - {name}\n" for name in written)
    (folder / "mkdocs.yml").write_text(settings + nav, encoding="utf-8")


def main(arguments: list[str]) -> int:
    if arguments[0] == "check":
        if found := fetched(Path(arguments[1])):
            print("The site would load these resources from the network:", *found[:20], sep="\n  ")
        return int(bool(found))
    repository, folder = (Path(name).resolve() for name in arguments)
    if missing := undocumented(public_modules(repository)):
        print("These public modules have no docstring:", *missing, sep="\n  ")
        return 1
    write(repository, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
