"""`fire-lm test-encoding`: encodings outside the repository, what is loaded, and what is told."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fire_lm import encoding_properties
from fire_lm.cli import main
from fire_lm.cli import test_encoding as verb
from fire_lm.encoding_properties import encodings_of, in_models, of_hooks
from fire_lm.errors import UserError
from fire_lm.experiment import POSITIONS, load_experiment

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "add_an_encoding.md").read_text()
(RECENCY,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
GIN = "import {module}\nENCODING = '{label}'\nPOSITION = @{name}\n"
# Runs the command without pytest, which users need not have.
WITHOUT_PYTEST = (
    "import sys; sys.modules['pytest'] = None\n"
    "from fire_lm.cli import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture
def package(tmp_path, monkeypatch) -> str:
    """Write a package outside the repository; its name is new, as Python imports each name once."""
    name = f"outside_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "recency.py").write_text(RECENCY)
    (folder / "fire.py").write_text(RECENCY.replace("class Recency", "class FIRE"))
    (folder / "several.py").write_text(
        RECENCY.replace("class Recency", "class Near")
        + "\n\nclass _Hidden(Near):\n    pass\n\n\nclass Far(Near):\n    pass\n"
    )
    (folder / "needy.py").write_text(
        RECENCY.replace("class Recency", "class Needy").replace(
            "init_weight: float = 1.0",
            "def __post_init__(self):\n        raise ValueError('train_length must be 2048')",
        )
    )
    (folder / "failing.py").write_text("import module_that_is_nowhere\n")
    (folder / "empty.py").write_text("from fire_lm.positions.fire import FIRE\nNOT_ONE = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return name


def gin_file(path: Path, module: str, label: str, name: str) -> str:
    path.write_text(GIN.format(module=module, label=label, name=name))
    return str(path)


def test_a_module_a_class_and_a_gin_file_are_loaded(package, tmp_path):
    (of_module,) = encodings_of(f"{package}.recency").values()
    assert encodings_of(f"{package}.recency.Recency") == {"Recency": of_module}
    assert (of_module.num_heads, of_module.train_length) == (12, 64)
    own = gin_file(tmp_path / "own.gin", f"{package}.recency", "recency", "Recency")
    assert encodings_of(own) == {"recency": of_module}
    assert list(encodings_of(f"{package}.several")) == ["Far", "Near"]
    assert list(encodings_of("fire_lm.positions.rope.RoPE")) == ["RoPE"]
    both = encodings_of("configs/positions/fire_and_rope.gin")
    assert set(both) == {"fire_and_rope (FIRE)", "fire_and_rope (RoPE)"}
    long = tmp_path / "long.gin"
    gemma = (POSITIONS / "gemma.gin").read_text()
    long.write_text(gemma.replace("count = 5", "count = 6").replace("'gemma'", "'long'"))
    assert list(encodings_of(str(long))) == ["long (RoPE 1)", "long (RoPE 2)"], "of seven layers"
    two = encodings_of("configs/positions/gemma.gin")
    assert {name: rope.base for name, rope in two.items()} == {
        "gemma (RoPE 1)": 10_000, "gemma (RoPE 2)": 1_000_000
    }  # fmt: skip


@pytest.mark.parametrize(
    "spec, words",
    [
        ("nowhere.at.all", "cannot import nowhere.at.all: No module named 'nowhere'"),
        ("{package}.recency.Recensy", "has no class Recensy. Did you mean Recency?"),
        ("{package}.failing", "cannot import {package}.failing: No module named 'module_that_is"),
        ("{package}.empty", "{package}.empty defines no encoding: it needs a class derived from"),
        ("{package}.empty.NOT_ONE", "is not a subclass of fire_lm.positions.PositionalEncoding"),
        ("{package}.needy", "cannot construct {package}.needy.Needy: train_length must be 2048"),
        ("nowhere.gin", "nowhere.gin"),
        # Copies inside the package and outside it.
        ("{package}.fire", "two encodings with the name FIRE: {package}.fire (outside the package) "
         "and fire_lm.positions.fire (inside)"),
        ("label.gin", "two encodings with the name fire: label.gin (outside the package) and "),
        ("class.gin", "{package}.fire.FIRE has the same name as fire_lm.positions.fire.FIRE: "
         "remove one if it is a copy of the other"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_told_in_two_lines(spec, words, package, tmp_path, capsys):
    gin_file(tmp_path / "label.gin", f"{package}.recency", "fire", "Recency")
    gin_file(tmp_path / "class.gin", f"{package}.fire", "mine", "FIRE")
    assert main(["test-encoding", spec.replace("{package}", package)]) == 2
    said = capsys.readouterr().err.strip()
    assert words.replace("{package}", package) in said, said
    assert len(said.splitlines()) <= 2 and "Traceback" not in said


def test_a_file_of_the_package_is_not_a_copy_of_itself(monkeypatch):
    monkeypatch.chdir("/")
    assert list(encodings_of("configs/positions/nope.gin")) == ["nope"]
    assert list(encodings_of(str(ROOT / "configs/positions/nope.gin"))) == ["nope"]


def test_each_property_is_told_and_a_missing_one_explained(package, tmp_path, monkeypatch, capsys):
    few = (of_hooks.has_the_documented_size, of_hooks.has_all_bits_of_positions)
    monkeypatch.setattr(verb, "PROPERTIES", few)
    assert main(["test-encoding", f"{package}.recency"]) == 0
    assert capsys.readouterr().out == (
        "Recency has_the_documented_size: yes\nRecency has_all_bits_of_positions: yes\n"
        "all 2 properties hold\n"
    )
    good = "distance(q_pos_BT, k_pos_BS)"
    rounded = "distance(q_pos_BT.astype(jnp.bfloat16), k_pos_BS.astype(jnp.bfloat16))"
    (tmp_path / package / "rounded.py").write_text(RECENCY.replace(good, rounded))
    assert main(["test-encoding", f"{package}.rounded"]) == 1
    captured = capsys.readouterr()
    assert "Recency has_all_bits_of_positions: no" in captured.out
    assert "compute with positions in float32" in captured.out
    assert captured.err == (
        "\nfire-lm: Recency lacks 1 of 2 properties: has_all_bits_of_positions\n"
    )


def test_a_property_that_fails_says_what_was_found_without_pytest():
    """pytest rewrites assertions of the tests; nothing rewrites those of the package."""
    for module in (of_hooks, in_models):
        code = Path(str(module.__file__)).read_text()
        assert not re.search(r"^\s*assert\b", code, re.MULTILINE)


def test_repeated_names_are_refused_when_a_run_is_configured(package):
    with pytest.raises(UserError, match="remove one if it is a copy"):
        load_experiment(
            ["configs/runs/quickstart.gin", "configs/positions/fire.gin"],
            imports=[f"{package}.fire"],
        )


@pytest.mark.ci
def test_the_command_needs_neither_the_repository_nor_pytest(package, tmp_path):
    """The page's encoding has every property, without Python's assertions too."""
    code = textwrap.dedent(WITHOUT_PYTEST)
    done = subprocess.run(
        [sys.executable, "-O", "-c", code, "test-encoding", f"{package}.recency"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    count = len(encoding_properties.PROPERTIES)
    assert done.stdout.count(": yes") == count and f"all {count} properties hold" in done.stdout
    assert done.stderr == ""
