"""README.md and docs/: links and anchors resolve, commands are valid, every page is listed."""

import dataclasses
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fire_lm import cli
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.results import LengthAccuracy, PositionLoss, ScoredText, SweepRow, TaskScore

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")),
         ROOT / "tpu" / "README.md"]  # fmt: skip
# One or several lines of our commands, as a shell would read them.
_FENCED = re.compile(r"^ *```[^\n]*\n(.*?)^ *```$", flags=re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PLACEHOLDER = re.compile(r"\.\.\.(?!\w)|[\[|]|RUN|--gin\.NAME")


def prose(text: str) -> str:
    """Return the text without blocks and spans of code, which may contain brackets."""
    return re.sub(r"`[^`\n]*`", "code", _FENCED.sub("", text))


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub and MkDocs form them."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in headings}


def links(page: Path) -> list[str]:
    return [
        link for link in _LINK.findall(prose(page.read_text())) if not re.match(r"https?://", link)
    ]


def broken_links(page: Path) -> list[str]:
    """Return a page's relative links that lead to no file, or to no heading in it."""
    broken = []
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or ROOT not in [target, *target.parents] and name:
            broken.append(link)
        elif anchor and anchor not in anchors(target.read_text()):
            broken.append(link)
    return broken


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the `fire-lm` commands in the code blocks of a page, as lists of arguments."""
    for block in _FENCED.findall(page.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip().startswith("fire-lm ") and not _PLACEHOLDER.search(line):
                yield shlex.split(line, comments=True)[1:]


def of_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=of_page)
def test_links_and_anchors_resolve(page):
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# Other page\n\n```\n# not a heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` (c), d's\n[1](other.md) [2](#a-b-c-ds) [3](other.md#other-page) `[4](x)`\n"
        "[5](none.md) [6](#a-b) [7](other.md#not-a-heading) ![8](none.png) [9](https://x.invalid)\n"
    )
    assert broken_links(page) == ["none.md", "#a-b", "other.md#not-a-heading", "none.png"]


def test_every_page_is_one_click_from_the_readme():
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in links(README)}
    assert [of_page(page) for page in PAGES if page not in {README, *linked}] == []


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 160


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=of_page)
def test_a_page_opens_with_a_command(page):
    """Below the title comes a command or Python code, which is what readers look for."""
    title, _, rest = page.read_text().partition("\n")
    assert title.startswith("# ") and rest.lstrip("\n").startswith("```")


def parse(arguments: list[str]) -> None:
    """Check that a command parses, its files exist, and its configuration is complete."""
    parsed = cli.parse(arguments)
    if (
        getattr(parsed, "gin_file", None)
        and parsed.verb in ("pretrain", "preflight")
        and not any("configs/finetune/" in name for name in parsed.gin_file)
    ):
        files = [name for name in parsed.gin_file if "recency" not in name]  # the reader's own file
        if files != parsed.gin_file:
            files.append("configs/positions/fire.gin")
        load_experiment(files, parsed.bindings, parsed.gin_search_paths)
    for name in getattr(parsed, "gin_file", None) or []:
        assert "recency" in name or (ROOT / name).is_file(), name


@pytest.mark.parametrize("page", PAGES, ids=of_page)
def test_bullets_start_on_lines_of_their_own(page):
    assert not re.search(r"\S - \*\*", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=of_page)
def test_commands_are_valid(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for arguments in commands(page):
        parse(arguments)


def test_commands_are_found():
    """There is a command for every verb."""
    found = [arguments[0] for page in PAGES for arguments in commands(page)]
    verbs = {"pretrain", "finetune", "preflight", "sweep", "evaluate", "generate", "export",
             "import", "report", "corpus", "bench", "test-encoding"}  # fmt: skip
    assert verbs == set(found)
    assert len(found) > 30


def test_a_wrong_command_is_found(tmp_path):
    page = tmp_path / "page.md"
    run = "--gin_file=configs/runs/quickstart.gin --gin_file=configs/positions/fire.gin"
    page.write_text(
        f"```\nfire-lm pretrain {run} \\\n  --gin.SEEDS=1 --workdir=x   # a comment\n"
        "fire-lm sweep x --gin_files=y\nfire-lm sweep RUN\n```\n"
    )
    found = list(commands(page))
    assert len(found) == 2
    for arguments in found:
        with pytest.raises(UserError, match="SEEDS|--gin_files"):
            parse(arguments)


_TESTED_ELSEWHERE = [
    *("add_a_measure.md", "add_a_mixer.md", "add_an_encoding.md", "data.md", "finetuning.md"),
    *("pretraining.md", "python.md"),
]


def python_blocks() -> list[tuple[str, str]]:
    """Return the page and code of each Python block.

    Blocks that need the reader's own file or run are tested in tests/test_readme.py,
    tests/models/test_add_a_mixer.py, tests/measures/test_own_measure.py,
    tests/runs/test_open_run.py,
    tests/runs/test_finetuning_on_pairs.py, tests/training/test_own_optimizer.py and
    tests/data/test_own_data.py.
    """
    return [
        (of_page(page), code)
        for page in PAGES
        for code in re.findall(
            r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE
        )
        if page.name not in _TESTED_ELSEWHERE
    ]


@pytest.mark.ci
@pytest.mark.parametrize("page, code", python_blocks(), ids=lambda value: value.splitlines()[0])
def test_python_runs(page, code):
    """The comment in the last line states the shape and dtype of its result."""
    found: dict[str, Any] = {}
    exec(compile(code, page, "exec"), found)
    last = code.splitlines()[-1]
    name, shape, dtype = re.findall(r"^(\w+) = .*# \[(.*)\] (\w+)$", last)[0]
    assert f"{', '.join(map(str, found[name].shape))}" == shape and found[name].dtype == dtype


def test_every_encoding_is_in_its_page():
    page = (ROOT / "docs" / "encodings.md").read_text()
    names = {path.stem for path in (ROOT / "configs" / "positions").glob("*.gin")}
    assert sorted(name for name in names if f"`{name}`" not in page) == []


@pytest.mark.parametrize(
    ("kind", "name", "page"),
    [
        (SweepRow, "length_sweep", "evaluation"),
        (PositionLoss, "position_losses", "evaluation"),
        (ScoredText, "scored_text", "evaluation"),
        (LengthAccuracy, "length_accuracy", "synthetic"),
        (TaskScore, "task_scores", "synthetic"),
    ],
)
def test_columns_are_those_of_the_files(kind, name, page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    table = text.split(f"### Columns of `{name}.csv`\n")[1].split("\n#")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    columns = [column for row in rows for column in re.findall(r"`(\w+)`", row)]
    assert columns == [field.name for field in dataclasses.fields(kind)]


@pytest.mark.parametrize(
    "files, size, cell",
    [
        (("runs/c4_125m",), "125m", "125M | {:.0f}M |"),
        (("runs/c4_350m",), "350m", "350M | {:.0f}M |"),
        (("runs/quickstart", "models/tiny"), "tiny", "{:.2f}M with the byte vocabulary |"),
        (("runs/quickstart", "models/3m"), "3m", "{:.1f}M with the byte vocabulary |"),
    ],
    ids=["125m", "350m", "tiny", "3m"],
)
def test_sizes_are_those_of_the_models(files, size, cell, capsys):
    """The table states our size, with the vocabulary of the run file, and the paper's name."""
    flags = (f"--gin_file=configs/{name}.gin" for name in (*files, "positions/nope"))
    assert cli.main(["pretrain", "--dry_run", *flags]) == 0
    numbers = re.findall(r"^  (?:[\w/]+) +([\d,]+)$", capsys.readouterr().out, re.MULTILINE)
    total = sum(int(number.replace(",", "")) for number in numbers)
    page = (ROOT / "docs" / "pretraining.md").read_text()
    row = next(line for line in page.splitlines() if f"`configs/models/{size}.gin`" in line)
    assert f"| {cell.format(total / 1e6)}" in row


def test_pre_commit_runs_the_style_of_scripts_test():
    """The hooks run the same commands in the same environment and download nothing."""
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    entries = [hook["entry"].removeprefix(".venv/bin/") for hook in repository["hooks"]]
    script = (ROOT / "scripts" / "test").read_text()
    style = re.findall(r"^  check ((?:ruff|mypy)[^\n]*)$", script, re.MULTILINE)
    assert entries == style and len(style) == 3
    assert all(hook["language"] == "system" for hook in repository["hooks"])


def test_the_citation_names_no_invented_author():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["authors"] == [{"name": "the fire_lm developers"}]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == project["version"] and project["authors"] == citation["authors"]


@pytest.mark.parametrize(
    "name, run, slice_",
    [
        ("c4_125m_fire_v4-256", "125M FIRE", "v4-256"),
        ("c4_125m_fire_2xv4-128", "125M FIRE", "2xv4-128"),
        ("c4_350m_rope_v4-512", "350M RoPE", "v4-512"),
    ],
)
def test_estimates_are_those_that_tests_pin(name, run, slice_):
    """Collectives agree to the MiB; memory also includes the program and its results."""
    page = (ROOT / "docs" / "preflight.md").read_text()
    ((memory, collectives, sweep),) = re.findall(
        rf"^\| {run} \| {slice_}: \d+ \| ([\d.]+) of [\d.]+ \| ([\d,]+) \|.*\| ([\d.]+) GiB,.*\|$",
        page,
        re.MULTILINE,
    )
    golden = json.loads((ROOT / "tests" / "golden" / "preflight" / f"{name}.json").read_text())
    step, scoring = golden["training step"], golden["sweep at 8192"]
    moved = sum(kind["bytes"] for key, kind in step.items() if key != "memory")
    assert int(collectives.replace(",", "")) == round(moved / 2**20)
    for stated, pinned in ((memory, step["memory"]), (sweep, scoring["memory"])):
        assert 0 < float(stated) - sum(pinned.values()) / 2**30 < 0.5
