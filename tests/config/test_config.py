"""Configuration: the values that it passes to the code, and the files that it is read from."""

from __future__ import annotations

import copy
import inspect
import re
import subprocess
import sys
from typing import Any

import pytest
from sample_config import BASE, FIRE, FIRE_GIN, ROPE_GIN, RoPE, load, outcome

from fire_lm import config
from fire_lm.errors import UserError


def test_code_gets_real_objects_and_fitted_values(tmp_path):
    trained, swept = outcome(load(tmp_path))
    assert trained["decoder"].position == FIRE(num_heads=4, hidden_layers=(32,))
    assert type(trained["decoder"].position) is FIRE
    assert (trained["steps"], type(trained["steps"])) == (600_000, int)
    assert trained["learning_rate"] == 3e-4 and trained["data"].shuffle is False
    assert swept["lengths"] == (512, 1024)
    assert (trained["data"].batch, swept["data"].batch) == (8, 2)


def test_a_direct_call_is_not_configured(tmp_path):
    load(tmp_path)
    assert FIRE(num_heads=1).hidden_layers == (32, 32)


def test_later_files_win_and_the_command_line_wins_last(tmp_path):
    trained, _ = outcome(load(tmp_path, base=BASE, fire=FIRE_GIN, rope=ROPE_GIN))
    assert trained["decoder"].position == RoPE(num_heads=4, base=5e5)
    late = load(tmp_path, "TRAIN_STEPS=7", base=BASE, fire=FIRE_GIN, more="TRAIN_STEPS = 9")
    assert outcome(late)[0]["steps"] == 7


def test_configurations_do_not_disturb_each_other(tmp_path):
    first = load(tmp_path, "TRAIN_STEPS=1")
    second = load(tmp_path, "TRAIN_STEPS=2")
    stated = config.read([], ["f.x=3"], [])
    other = config.load(stated, configurables={"f": lambda x: x}, roots=["f"], hints=None)
    steps = [outcome(loaded)[0]["steps"] for loaded in (first, second)]
    assert (steps, other.call("f")) == ([1, 2], 3)


def test_a_reference_acts_like_the_thing_itself(tmp_path):
    seen: list[Any] = []
    loaded = config.load(
        config.read([], ["f.make=@FIRE", "f.again=@FIRE", "FIRE.init_length=64"], []),
        configurables={"f": lambda make, again: seen.extend([make, again]), "FIRE": FIRE},
        roots=["f"],
    )
    loaded.call("f")
    make, again = seen
    assert (make(num_heads=2), make(2)) == (FIRE(2, init_length=64.0),) * 2
    with pytest.raises(UserError, match="the code sets the init_length of FIRE"):
        make(2, init_length=1.0)
    assert make == again and hash(make) == hash(again) and copy.deepcopy(make) is make
    assert inspect.signature(make) == inspect.signature(FIRE)
    assert make.__name__ == "FIRE"


def test_same_meaning_as_gin(tmp_path):
    """gin itself, given the same files, calls everything with the same values."""
    import gin

    text = """
NUMBER = 3
PAIR = (%NUMBER, @inner/leaf())
root.plain = @leaf()
root.scoped = @inner/leaf()
root.nested = @inner/deep/node()
root.items = [1, %PAIR, ('a', @leaf())]
root.make = @inner/leaf
leaf.a = %NUMBER
inner/leaf.a = 4
inner/deep/leaf:
  a = 5
  b = -6
inner/deep/leaf.c = 'x' 'y'
node.child = @leaf()
node.other = @inner/leaf()
"""

    def leaf(a, b=1, c=None):
        return (a, b, c)

    def node(child, other):
        return [child, other]

    def root(plain, scoped, nested, items, make):
        return plain, scoped, nested, items, make(), make(a=9)

    functions = {"leaf": leaf, "node": node, "root": root}
    (tmp_path / "a.gin").write_text(text)
    ours = config.load(
        config.read(["a.gin"], [], [str(tmp_path)]), configurables=functions, roots=["root"]
    )
    gin.clear_config()
    configured = {
        name: gin.external_configurable(fn, name, module="same_meaning")
        for name, fn in functions.items()
    }
    gin.parse_config(text)
    try:
        assert ours.call("root") == configured["root"]()
    finally:
        gin.clear_config()


# --- Files


def test_files_are_found_and_included(tmp_path, monkeypatch):
    inner = tmp_path / "first" / "configs"
    inner.mkdir(parents=True)
    (inner / "base.gin").write_text("f.x = 1\nf.y = 1")
    (tmp_path / "run.gin").write_text("include 'configs/base.gin'\nf.y = 2")
    monkeypatch.chdir(tmp_path)

    def loaded(files: list[str], paths: list[str]) -> Any:
        functions = {"f": lambda x, y: (x, y)}
        return config.load(
            config.read(files, [], paths), configurables=functions, roots=["f"]
        ).call("f")

    assert loaded(["run.gin"], ["first"]) == (1, 2)
    assert loaded([str(tmp_path / "run.gin")], [str(tmp_path / "first")]) == (1, 2)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "base.gin").write_text("f.x = 3\nf.y = 3")
    assert loaded(["run.gin"], ["first"]) == (1, 2)  # a given path precedes '.'
    assert loaded(["run.gin"], []) == (3, 2)
    # An include does not read base.gin a second time, so it does not undo the run's own value.
    (tmp_path / "other.gin").write_text("include 'configs/base.gin'\nf.x = 4")
    assert loaded(["run.gin", "other.gin"], []) == (4, 2)
    assert loaded(["run.gin", "configs/base.gin"], []) == (3, 3)
    (tmp_path / "circle.gin").write_text("include 'circle.gin'\nf.x = 5\nf.y = 5")
    assert loaded(["circle.gin"], []) == (5, 5)


@pytest.mark.parametrize(
    "name, complaint",
    [
        ("configs/positions/fier.gin", "Did you mean configs/positions/fire.gin?"),
        ("configs/position/fire.gin", "Did you mean configs/positions/fire.gin?"),
        ("fire.gin", "Did you mean configs/positions/fire.gin?"),
        ("nothing_like_it.gin", "no gin file 'nothing_like_it.gin' in "),
        ("configs", "is not a gin file"),
        ("a" * 5000, "cannot read"),
        ("a\0b", "gin file"),
        ("binary.gin", "cannot read"),
    ],
)
def test_a_missing_file_is_told(tmp_path, name, complaint):
    positions = tmp_path / "configs" / "positions"
    positions.mkdir(parents=True)
    (positions / "fire.gin").write_text(FIRE_GIN)
    (tmp_path / "binary.gin").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=re.escape(complaint)) as caught:
        config.load(config.read([name], [], [str(tmp_path)]), configurables={}, roots=[])
    assert len(str(caught.value).splitlines()) == 1


# --- Queries


def test_macros_can_be_asked(tmp_path):
    loaded = load(tmp_path, "DATA_DIR=123")
    names = ["TRAIN_STEPS", "POSITION", "EVAL_LENGTHS", "DATA_DIR", "NOTHING"]
    assert [loaded.macro(name) for name in names] == [600_000, "@FIRE", (512, 1024), "123", None]


def test_import_is_light():
    heavy = "{'jax', 'flax', 'tensorflow', 'seqio', 'numpy', 'etils'}"
    code = f"import fire_lm.config, sys; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
