"""The design, checked: imports point down, heavy packages stay where they belong.

The table below is the whole rule. A new top-level module of fire_lm gets a line here.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "fire_lm"

# Module of fire_lm -> the modules of fire_lm that it may import.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "absent_tpu": set(),
    "storage": {"errors"},
    "config": {"storage", "errors"},
    "data": {"storage", "errors"},
    "reporting": {"storage", "errors"},
    "sharding": {"absent_tpu", "errors"},
    "checkpoints": {"sharding", "storage", "errors"},
    "tensorboard_events": {"storage"},
    "metrics": {"storage", "tensorboard_events", "errors"},
    "attention": {"absent_tpu", "errors"},
    "positions": {"attention", "errors"},
    "models": {"positions", "attention", "errors"},
    "training": {
        *("models", "attention", "sharding", "metrics", "checkpoints", "data", "storage", "errors"),
    },
    "evaluation": {
        "storage",
        "models",
        "sharding",
        "metrics",
        "checkpoints",
        "data",
        "reporting",
        "errors",
    },
}
ALLOWED["tpu_topology"] = {"errors"}
ALLOWED["preflight"] = {*ALLOWED, "preflight"} - {"config", "reporting", "checkpoints"}
ALLOWED["encoding_label"] = {"config", "errors"}
ALLOWED["kept_lengths"] = {"config"}
ALLOWED["verbs"] = set(ALLOWED) - {"preflight", "tpu_topology"}
ALLOWED["preflight_verb"] = {
    *("verbs", "preflight", "training", "evaluation", "checkpoints", "tpu_topology", "storage"),
    "errors",
}
ALLOWED["sweep_runs"] = {"verbs", "checkpoints", "storage", "errors"}
ALLOWED["sweep_settings"] = {
    "evaluation",
    "sweep_runs",
    "verbs",
    "config",
    "data",
    "models",
    "errors",
}
ALLOWED["sweep_survey"] = {
    *("evaluation", "sweep_runs", "verbs", "training", "reporting", "checkpoints", "errors"),
}
ALLOWED["arms"] = {"config", "reporting"}
ALLOWED["sweep_tables"] = {"arms", "verbs", "config", "reporting", "storage"}
ALLOWED["sweep_verb"] = {
    *("sweep_runs", "sweep_settings", "sweep_survey", "sweep_tables", "verbs"),
    *("evaluation", "reporting", "checkpoints", "sharding", "storage", "errors"),
}
ALLOWED["paper_rows"] = {"verbs", "sweep_runs", "config", "reporting", "errors"}
ALLOWED["report_probes"] = {
    *("arms", "config", "data", "evaluation", "models", "checkpoints", "reporting", "sharding"),
    "errors",
}
ALLOWED["report_runs"] = {
    *("arms", "report_probes", "verbs", "sweep_runs", "config", "data", "training", "evaluation"),
    *("models", "reporting", "metrics", "storage", "errors"),
}
ALLOWED["report_verb"] = {
    "metrics",
    "verbs",
    "paper_rows",
    "report_runs",
    "reporting",
    "storage",
    "errors",
}
ALLOWED["corpus_verbs"] = {"data", "metrics", "reporting", "storage", "errors"}
ALLOWED["bench"] = {
    *ALLOWED["training"],
    *ALLOWED["evaluation"],
    *("training", "evaluation", "preflight", "positions", "tpu_topology", "absent_tpu"),
}
ALLOWED["cli_parser"] = {"errors"}
ALLOWED["cli"] = {
    "cli_parser",
    *("verbs", "preflight_verb", "sweep_verb", "report_verb", "corpus_verbs", "bench"),
    *("storage", "errors"),
}
ALLOWED["__init__"] = set()
ALLOWED["__main__"] = {"cli"}

# Package from outside -> the only modules of fire_lm that may import it.
CONFINED = {
    "apache_beam": {"data"},
    "gin": {"config"},
    "matplotlib": {"reporting"},
    "seqio": {"data"},
    "tensorflow": {"data", "storage"},
    "tensorflow_datasets": {"data"},
    "tensorstore": {"data", "storage"},
    "torch": {"bench"},
}

# What the launcher in tpu/ may use of fire_lm: the command line that it runs, slices, files.
LAUNCHER = {"cli", "cli_parser", "errors", "storage", "tpu_topology", "verbs"}

NAMELESS = {"common", "helpers", "misc", "utils"}


def imported_names(tree: ast.AST, package: tuple[str, ...]) -> list[tuple[int, str]]:
    """Every import of a file as (line, absolute dotted name), also those inside functions.

    `package` is the dotted package that the file lies in, for relative imports.
    """
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *filter(None, [node.module])])
            # `from fire_lm import cli` imports a module, not a name of __init__.
            names += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return names


def violations(package: Path) -> list[str]:
    """All breaches of the rules above in the tree at `package` (a folder called fire_lm)."""
    found = []
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        own = relative.parts[0].removesuffix(".py")
        if NAMELESS & {part.removesuffix(".py") for part in relative.parts}:
            found.append(f"{relative}: a name that says nothing")
        if own not in ALLOWED:
            found.append(f"{relative}: module '{own}' is not in the table of imports")
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        for line, name in imported_names(tree, (package.name, *relative.parts[:-1])):
            top, _, rest = name.partition(".")
            if own not in CONFINED.get(top, {own}):
                places = " and ".join(sorted(CONFINED[top]))
                found.append(f"{relative}:{line}: {top} belongs in {places} only")
            target = rest.partition(".")[0]
            # A name that is no module, like __version__, comes from the package's __init__.
            if top == package.name and target in ALLOWED and target not in {own, *ALLOWED[own]}:
                found.append(f"{relative}:{line}: {own} may not import {target}")
    return found


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def imported_by(*arguments: str) -> set[str]:
    """Top-level packages that `python ARGUMENTS` imports; it must exit 0."""
    done = python("-X", "importtime", *arguments)
    assert done.returncode == 0, re.sub(r"^import time:.*\n", "", done.stderr, flags=re.MULTILINE)
    lines = re.findall(r"^import time:.*\|\s*(\S+)$", done.stderr, flags=re.MULTILINE)
    return {name.partition(".")[0] for name in lines}


def test_imports_point_down():
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    "file, text, complaint",
    [
        ("attention/dense.py", "import fire_lm.positions.fire", "may not import positions"),
        ("attention/dense.py", "from fire_lm import models", "may not import models"),
        ("attention/dense.py", "from ..positions import base", "may not import positions"),
        ("sharding.py", "from .models import decoder", "may not import models"),
        ("training/loop.py", "def f():\n    from fire_lm.cli import main", "may not import cli"),
        ("config.py", "from fire_lm import positions", "may not import positions"),
        ("models/decoder.py", "import gin", "gin belongs in config only"),
        (
            "training/loop.py",
            "import tensorflow as tf",
            "tensorflow belongs in data and storage only",
        ),
        ("evaluation/sweep.py", "import seqio", "seqio belongs in data only"),
        ("cli.py", "from tensorflow_datasets.core import x", "tensorflow_datasets belongs in data"),
        ("data/plot.py", "import matplotlib.pyplot as plt", "matplotlib belongs in reporting only"),
        ("models/utils.py", "", "a name that says nothing"),
        ("common/x.py", "", "a name that says nothing"),
        ("newcomer.py", "", "not in the table"),
    ],
)
def test_the_walker_finds_each_breach(tmp_path, file, text, complaint):
    path = tmp_path / "fire_lm" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert complaint in "\n".join(violations(tmp_path / "fire_lm"))


def test_the_walker_passes_what_is_allowed(tmp_path):
    path = tmp_path / "fire_lm" / "models" / "decoder.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import jax\n"
        "from fire_lm import __version__, errors\n"
        "from fire_lm.attention import dense\n"
        "from fire_lm.positions.base import NoPE\n"
        "from . import layers\n"
        "from .layers import LayerNorm\n"
    )
    assert violations(tmp_path / "fire_lm") == []


def test_the_core_loads_without_gin_seqio_tensorflow():
    core = ("positions", "attention", "models", "bench.attention", "bench.model")
    loaded = imported_by("-c", "import " + ", ".join(f"fire_lm.{name}" for name in core))
    assert {"fire_lm", "jax"} <= loaded
    assert not loaded & {"gin", "seqio", "tensorflow"}


def test_the_probe_sees_what_is_loaded():
    assert "gin" in imported_by("-c", "import gin")


@pytest.mark.parametrize("verb", [(), ("bench",)])
def test_help_loads_nothing_heavy(verb):
    loaded = imported_by("-m", "fire_lm", *verb, "--help")
    assert {"fire_lm", "argparse"} <= loaded
    assert not loaded & {"jax", "flax", "numpy", "gin", "seqio", "tensorflow", "matplotlib"}


# Pieced together, so that this file does not hold what it looks for.
REGISTRY_ADDRESS = re.compile(
    "|".join(
        [
            "pypi" + r"\.(?:org|python)",
            "python" + r"hosted\.org",
            r"https?://[^\s\"'<>]*/" + r"simple\b",
            r"https?://[^\s\"'<>]*(?:arti" + "factory|/ne" + "xus/|/dev" + "pi/)",
            r"(?:index-url|find-links|trusted-host)[ =]+" + r"\S*[./]\S*",
            "libtpu" + r"-releases\b",
        ]
    ),
    flags=re.IGNORECASE,
)


@pytest.mark.parametrize(
    "line",
    [
        "https://" + "pypi" + ".org/project/jax",
        "https://files." + "python" + "hosted.org/x.whl",
        "--index-url" + " https://mirror.example",
        "--find-links" + "=/srv/wheels",
        "https://mirror.example/a/" + "simple",
    ],
)
def test_registry_addresses_are_recognised(line):
    assert REGISTRY_ADDRESS.search(line)


def test_no_registry_address_in_the_tree():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout, so there is no list of its files")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert ROOT / "requirements.lock" in files
    found = []
    for path in files:
        if path.is_file():
            text = path.read_bytes().decode("utf-8", errors="replace")
            found += [f"{path.relative_to(ROOT)}: {m[0]}" for m in REGISTRY_ADDRESS.finditer(text)]
    assert found == []


def launcher_violations(folder: Path) -> list[str]:
    """What files of tpu/ import of ours or of gin, and should not."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        for line, name in imported_names(tree, (folder.name,)):
            top, _, rest = name.partition(".")
            if top in CONFINED or (top == "fire_lm" and rest.partition(".")[0] not in LAUNCHER):
                found.append(f"{path.name}:{line}: {name}")
    return found


def test_the_launcher_stands_on_the_command_line(tmp_path):
    """Where a run takes place and what it is do not know each other."""
    assert launcher_violations(ROOT / "tpu") == []
    for line in ("import gin", "from fire_lm import training", "import fire_lm.models.build"):
        (tmp_path / "x.py").write_text(line)
        assert launcher_violations(tmp_path)
    for path in PACKAGE.rglob("*.py"):
        names = imported_names(ast.parse(path.read_text()), ("fire_lm",))
        assert "tpu" not in {name.partition(".")[0] for _, name in names}, path


def test_the_launcher_answers_at_once():
    """No TensorFlow, no JAX, until a configuration is to be checked."""
    for arguments in (("--help",), ("status", "--cluster=v4_8", "--cluster.project=p", "--dry_run",
                                    "--cluster.bucket=b", "--cluster.image=i:1")):  # fmt: skip
        assert not imported_by("-m", "tpu", *arguments) & {"gin", "jax", "tensorflow"}
