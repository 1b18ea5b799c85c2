"""The documentation is correct: its walk-through runs as printed, and its files exist."""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sample_run import write_text

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
COPIED = ("README.md", "configs", "fire_lm", "pyproject.toml", "scripts", "tests")
# Settings that the printed commands leave open, so that they take seconds: text, batch and model.
TINY = {
    "BATCH_SIZE": 4,
    "size_tiny.num_layers": 1,
    "size_tiny.hidden_size": 32,
    "size_tiny.num_heads": 2,
    "size_tiny.head_dim": 16,
    "size_tiny.mlp_size": 64,
    "TextData.shuffle_buffer": 50,
}
TINY_SWEEP = {"length_sweep.tokens": 32_768, "length_sweep.tokens_per_batch": 2048}

RUN_ALL = """
import json, pathlib, sys
import fire_lm.cli
assert pathlib.Path(fire_lm.__file__).is_relative_to(pathlib.Path.cwd()), fire_lm.__file__
for arguments in json.loads(sys.argv[1]):
    code = fire_lm.cli.main(arguments)
    if code:
        sys.exit(code)
"""


class WalkThrough:
    """The blocks of code in docs/add_an_encoding.md: the commands and two files."""

    def __init__(self) -> None:
        text = (DOCS / "add_an_encoding.md").read_text()
        blocks = re.findall(r"^```\w*\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
        commands, self.code, self.gin = blocks[:3]  # the rest is for a separate package
        self.files = {
            re.findall(r"`(fire_lm/positions/(?!base)\w+\.py)`", text)[0]: self.code,
            re.findall(r"`(configs/positions/\w+\.gin)`", text)[0]: self.gin,
        }
        lines = commands.replace("\\\n", " ").splitlines()
        self.pretrain, self.sweep, self.test = (shlex.split(line) for line in lines)


class Checkout:
    """A copy of the repository that imports its own code, not the installed package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        self.folder.mkdir()
        for name in COPIED:
            if (ROOT / name).is_dir():
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, self.folder / name, ignore=ignore)
            else:
                shutil.copy(ROOT / name, self.folder)
        self.before = self.hashes()

    def hashes(self) -> dict[str, str]:
        """Return the hash of every file except those of runs."""
        return {
            str(path.relative_to(self.folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.folder.rglob("*")
            if path.is_file() and path.relative_to(self.folder).parts[0] != "runs"
        }

    def write(self, files: dict[str, str]) -> None:
        for path, text in files.items():
            (self.folder / path).write_text(text)

    def python(self, *arguments: str) -> tuple[int, str]:
        """Run `python ARGUMENTS` in the copy; return the exit code and all output."""
        environment = {
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",  # only the new files may appear
        }
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout

    def fire_lm(self, *commands: list[str]) -> tuple[int, str]:
        return self.python("-c", RUN_ALL, json.dumps(commands))

    def pytest(self, *arguments: str) -> tuple[int, str]:
        """Run tests of every tier, as `scripts/test --encoding` does."""
        return self.python("-m", "pytest", "-p", "no:cacheprovider", *arguments)


def bindings(values: dict[str, object]) -> list[str]:
    return [f"--gin.{name}={value}" for name, value in values.items()]


def passed(output: str) -> int:
    found = re.search(r"(\d+) passed", output)
    return int(found[1]) if found else 0


@pytest.mark.ci
def test_the_new_encoding_needs_two_files_to_train_sweep_and_be_tested(tmp_path):
    walk, checkout = WalkThrough(), Checkout(tmp_path)
    assert not checkout.before.keys() & walk.files.keys()
    checkout.write(walk.files)

    assert walk.pretrain[0] == walk.sweep[0] == "fire-lm"
    more = bindings({"DATA_DIR": write_text(tmp_path / "text"), **TINY})
    code, output = checkout.fire_lm(
        [*walk.pretrain[1:], *more], [*walk.sweep[1:], *bindings(TINY_SWEEP)]
    )
    assert code == 0, output
    table = (checkout.folder / "runs/recency/length_sweep.csv").read_text()
    assert re.findall(r",full,(\d+),", table) == ["64", "1024"]

    assert walk.test == ["scripts/test", "--encoding", "recency"]
    code, output = checkout.pytest(*walk.test[1:], "tests/positions/test_positions.py")
    assert code == 0 and passed(output) >= 10, output
    # scripts/test starts with these two.
    for arguments in (["format", "--check"], ["check"]):
        code, output = checkout.python(
            "-m", "ruff", *arguments, "--no-cache", next(iter(walk.files))
        )
        assert code == 0 or "No module named ruff" in output, output

    after = checkout.hashes()
    assert {path: after.get(path) for path in checkout.before} == checkout.before
    assert after.keys() - checkout.before.keys() == walk.files.keys()


@pytest.mark.ci
def test_the_property_tests_find_what_is_wrong_with_a_new_encoding(tmp_path):
    """Positions in bfloat16 are the mistake that costs length generalisation."""
    walk, checkout = WalkThrough(), Checkout(tmp_path)
    good = "distance(q_pos_BT, k_pos_BS)"
    assert walk.code.count(good) == 1
    broken = "distance(q_pos_BT.astype(jnp.bfloat16), k_pos_BS.astype(jnp.bfloat16))"
    path, gin = walk.files
    checkout.write({path: walk.code.replace(good, broken), gin: walk.gin})
    code, output = checkout.pytest(
        "-k", "recency and all_bits", "tests/positions/test_positions.py"
    )
    assert code == 1 and "recency lacks the property has_all_bits_of_positions" in output, output
    assert "compute with positions in float32" in output and "Traceback" not in output


def test_every_path_of_the_file_map_is_there():
    table = (DOCS / "architecture.md").read_text().split("## Map of the repository")[1]
    paths = re.findall(r"`([\w./]+/[\w./]*)`", table)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
