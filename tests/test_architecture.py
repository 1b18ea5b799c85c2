"""The design, beyond the contracts in `pyproject.toml` about which file may import which."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "fire_lm"

NAMELESS = {"common", "helpers", "misc", "utils"}


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def imported_by(*arguments: str) -> set[str]:
    """Return the top-level packages that `python ARGUMENTS` imports; it must exit 0."""
    done = python("-X", "importtime", *arguments)
    assert done.returncode == 0, re.sub(r"^import time:.*\n", "", done.stderr, flags=re.MULTILINE)
    lines = re.findall(r"^import time:.*\|\s*(\S+)$", done.stderr, flags=re.MULTILINE)
    return {name.partition(".")[0] for name in lines}


BREACHES = {
    "attention/new.py": ("import fire_lm.positions.fire", "fire_lm.attention.new -> "),
    "training/new.py": ("def f():\n    from fire_lm import cli", "fire_lm.training.new -> "),
    "data/new.py": ("from fire_lm.data import other", "- .other -> .new (1 import)"),
    "data/other.py": ("from fire_lm.data import new", "- .other -> .new (1 import)"),
    "models/new.py": ("import gin", "fire_lm.models.new -> gin"),
    "runs/new.py": ("import fire_lm.config", "fire_lm.runs.new -> fire_lm.config"),
    "config/new.py": ("import tpu", "fire_lm.config.new -> tpu"),
}


def broken_contracts(folder: Path, files: dict[str, str]) -> tuple[set[str], str]:
    """Return the contracts that a copy of the package with more files breaks, and the report."""
    for name in ("fire_lm", "tpu"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.c?v"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name, text in files.items():
        (folder / "fire_lm" / name).write_text(text)
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=folder, capture_output=True, text=True)
    broken = set(re.findall("^(.+) BROKEN", done.stdout, flags=re.MULTILINE))
    assert done.returncode == bool(broken), done.stdout + done.stderr
    return broken, done.stdout


@pytest.mark.ci
def test_the_contracts_name_each_breach(tmp_path):
    """`scripts/test` checks the contracts on this tree; this test on copies with files added."""
    texts = {name: text for name, (text, _) in BREACHES.items()}
    broken, said = broken_contracts(tmp_path / "several", texts)
    assert broken >= {
        "imports point down",
        "no circle of files",
        "gin is read in config",
        "a configuration does not leave experiment",
        "the package does not know the launcher",
    }
    for _, breach in BREACHES.values():
        assert breach in said, (breach, said)
    broken, said = broken_contracts(tmp_path / "one", {"newcomer.py": ""})
    assert broken == {"imports point down"} and "newcomer" in said


def test_names_say_what_is_inside():
    assert not [path for path in PACKAGE.rglob("*") if path.stem in NAMELESS]


def test_only_a_line_feed_ends_a_line():
    """str.splitlines() also splits at separators that occur within lines, such as U+2028."""
    files = PACKAGE.rglob("*.py")
    assert not [path for path in files if ".splitlines(" in path.read_text()]


def test_the_top_level_holds_rooms():
    assert len(list(PACKAGE.glob("*.py"))) <= 8


def test_tests_lie_in_the_folder_of_what_they_test():
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir()} | {"studies", "tpu"}
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders and folders <= rooms, folders - rooms


def test_no_test_file_is_long():
    files = (ROOT / "tests").rglob("*.py")
    assert not [path for path in files if len(path.read_text().splitlines()) > 400]


def test_the_core_loads_without_gin_seqio_tensorflow():
    core = ("positions", "attention", "models", "bench.attention", "bench.model")
    loaded = imported_by("-c", "import " + ", ".join(f"fire_lm.{name}" for name in core))
    assert {"fire_lm", "jax"} <= loaded, "the probe sees what is loaded"
    assert not loaded & {"gin", "seqio", "tensorflow"}


def test_metrics_are_logged_without_tensorflow(tmp_path):
    write = f"MetricsLog({str(tmp_path)!r}, 0).write(1, {{'loss': 1.0}})"
    loaded = imported_by("-c", f"from fire_lm.results.trackers import MetricsLog; {write}")
    assert "tensorboard" in loaded
    assert "tensorflow" not in loaded
    assert list(tmp_path.glob("events.out.tfevents.*"))


@pytest.mark.parametrize("verb", [(), ("bench",)])
def test_help_loads_nothing_heavy(verb):
    loaded = imported_by("-m", "fire_lm", *verb, "--help")
    assert {"fire_lm", "argparse"} <= loaded
    assert not loaded & {"jax", "flax", "numpy", "gin", "seqio", "tensorflow", "matplotlib"}


# Assembled from pieces, so that this file does not contain what it searches for.
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


def test_the_launcher_answers_at_once():
    """It imports neither TensorFlow nor JAX until it checks a configuration."""
    for arguments in (("--help",), ("status", "--cluster=v4_8", "--cluster.project=p", "--dry_run",
                                    "--cluster.bucket=b", "--cluster.image=i:1")):  # fmt: skip
        assert not imported_by("-m", "tpu", *arguments) & {"gin", "jax", "tensorflow"}


def test_every_package_is_in_the_wheel():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    ours = {".".join(path.parent.relative_to(ROOT).parts) for path in PACKAGE.rglob("*.py")}
    assert set(settings["packages"]) == ours | {"fire_lm.configs"}


@pytest.mark.ci
def test_a_wheel_finds_its_configs(tmp_path):
    """The wheel is built from this tree and run from a folder that is not inside a checkout."""
    source = tmp_path / "source"
    for folder in ("fire_lm", "configs"):
        shutil.copytree(ROOT / folder, source / folder)
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, source)
    code = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=source, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(source)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < 1.2e6
    files = zipfile.ZipFile(wheel)
    assert not [name for name in files.namelist() if "evidence" in name]
    files.extractall(tmp_path / "site")
    command = [sys.executable, "-m", "fire_lm", "pretrain", "--dry_run", "--gin.DATA_DIR=nowhere"]
    chosen = [f"--gin_file=configs/{name}.gin" for name in ("runs/quickstart", "positions/fire")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [*command, *chosen], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and "ENCODING = 'fire'" in done.stdout, done.stderr


def test_every_folder_of_code_is_a_package():
    """Otherwise import-linter and the documentation site would not find it."""
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []
