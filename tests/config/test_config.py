"""Configuration: what it gives to the code, what it refuses, what it writes down."""

from __future__ import annotations

import copy
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from sample_config import BASE, FIRE, FIRE_GIN, NO_POSITION, ROPE_GIN, RoPE, load, outcome

from fire_lm import config
from fire_lm.errors import UserError

FILES = {"base": BASE, "fire": FIRE_GIN}


def refusal(folder: Path, *bindings: str, **files: str) -> str:
    with pytest.raises(UserError) as caught:
        outcome(load(folder, *bindings, **files))
    assert caught.value.exit_code == 2
    assert len(str(caught.value).splitlines()) <= 2
    return str(caught.value)


# What the code gets.


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
    other = config.load(
        [], ["f.x=3"], [], configurables={"f": lambda x: x}, roots=["f"], hints=None
    )
    steps = [outcome(loaded)[0]["steps"] for loaded in (first, second)]
    assert (steps, other.call("f")) == ([1, 2], 3)


def test_a_reference_acts_like_the_thing_itself(tmp_path):
    seen: list[Any] = []
    loaded = config.load(
        [],
        ["f.make=@FIRE", "f.again=@FIRE", "FIRE.init_length=64"],
        [],
        configurables={"f": lambda make, again: seen.extend([make, again]), "FIRE": FIRE},
        roots=["f"],
    )
    loaded.call("f")
    make, again = seen
    assert (make(num_heads=2), make(2)) == (FIRE(2, init_length=64.0),) * 2
    with pytest.raises(UserError, match="the code itself gives FIRE its init_length"):
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
    ours = config.load(["a.gin"], [], [str(tmp_path)], configurables=functions, roots=["root"])
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


# Values.

VALUES: list[tuple[Any, str, Any]] = [
    (int, "6e5", 600_000),
    (int, "-3", -3),
    (int, "1_000", 1000),
    (float, "1", 1.0),
    (bool, "True", True),
    (str, "123", "123"),
    (str, "True", "True"),
    (str, "007x", "007x"),
    (str, "1e5", "1e5"),
    (str, "gs://bucket/x.y@100", "gs://bucket/x.y@100"),
    (str, "runs/a#b", "runs/a#b"),
    (str, "5#b", "5#b"),
    (str, "'quoted'", "quoted"),
    (str, '"a" "b"', "ab"),
    (str, "it's", "it's"),
    (str, "a=b", "a=b"),
    (str | None, "None", None),
    (Optional[str], "5", "5"),  # noqa: UP045
    (Union[int, str], "5", 5),  # noqa: UP007
    (int | float, "5.5", 5.5),
    (float | int, "5", 5),
    (int | None, "6e5", 600_000),
    (tuple[int, ...], "[1, 2e3]", (1, 2000)),
    (tuple[int, ...], "5", (5,)),
    (tuple[int, ...] | None, "5", (5,)),
    (tuple[str, ...], "a/b.txt", ("a/b.txt",)),
    (tuple[int, float], "(1, 2)", (1, 2.0)),
    (Sequence[int], "[1]", (1,)),
    (list[float], "(1,)", [1.0]),
    (tuple[tuple[str, int], ...], "(('a', 1e2),)", (("a", 100),)),
    (Literal["full", "last256"], "last256", "last256"),
    (Literal[1, 2], "2", 2),
    (Literal["a"] | None, "None", None),
    (Annotated[int, "steps"], "3.0", 3),
    (Any, "[1, (2, 'x')]", [1, (2, "x")]),
]


def taking(annotation: Any) -> dict[str, Callable[..., Any]]:
    def f(x):
        return x

    f.__annotations__ = {"x": annotation}
    return {"f": f, "FIRE": FIRE}


@pytest.mark.parametrize("through_macro", [False, True])
@pytest.mark.parametrize("annotation, text, expected", VALUES)
def test_values_fit_the_annotation(annotation, text, expected, through_macro):
    bindings = [f"X={text}", "f.x=%X"] if through_macro else [f"f.x={text}"]
    loaded = config.load([], bindings, [], configurables=taking(annotation), roots=["f"])
    value = loaded.call("f")
    assert value == expected and type(value) is type(expected)
    if isinstance(value, tuple | list):
        assert [type(item) for item in value] == [type(item) for item in expected]


@pytest.mark.parametrize(
    "annotation, text, complaint",
    [
        (int, "abc", "f.x expects int, got 'abc'."),
        (int, "5.5", "expects int, got 5.5."),
        (int, "True", "expects int, got True."),
        (int, "None", "expects int, got None."),
        (int, "1e999", "expects int, got 1e999."),
        (float, "'1'", "expects float, got '1'."),
        (float, "9" * 400, "expects float, got 999"),
        (bool, "1", "expects bool, got 1."),
        (bool, "true", "Did you mean True?"),
        (str, "None", "expects str, got None."),
        (str, "[1]", "expects str, got [1]."),
        (tuple[int, ...], "(1, 'a')", "expects a list of int like [a, b], got (1, 'a')."),
        (tuple[int, ...], "512;1024", "expects a list of int like [a, b], got '512;1024'."),
        (tuple[int, int], "(1, 2, 3)", "expects (int, int), got (1, 2, 3)."),
        (Literal["full", "last"], "ful", "one of 'full', 'last', got 'ful'. Did you mean full?"),
        (int | None, "x", "expects int or None, got 'x'."),
        (Callable[..., Any], "FIRE", "A reference is written @FIRE."),
        (Callable[..., Any], "@FIRE()", "Did you mean @FIRE?"),
        (type[FIRE], "3", "expects a reference to a FIRE, like @Name, got 3."),
        (Callable[..., int], "@FIRE", "expects a reference to a int, like @Name, got @FIRE"),
        (tuple[Callable[..., int], ...], "[@FIRE]", "expects a list like [@A, @B], got [@FIRE]"),
        (FIRE, "@FIRE", "Did you mean @FIRE()?"),
        (FIRE, "3", "expects FIRE, got 3."),
        (RoPE, "@FIRE()", "expects RoPE, got @FIRE()."),
        (int, "@FIRE()", "expects int, got @FIRE()."),
        (Literal["a"], "@FIRE()", "expects one of 'a', got @FIRE()."),
        (Literal["a"], "@f()", "expects one of 'a', got @f()."),
        (dict[str, int], "3", "expects dict, got 3."),
        (Any, "{'a': 'b'}", "a value cannot be a dict here; write pairs: (('a', 1), ('b', 2))."),
        (Any, "[{1: 2}]", "cannot read the value"),
        (Any, "'a", "cannot read the value"),
        (Any, "a'", "cannot read the value"),
        (Any, "[1", "cannot read the value"),
        (Any, "@", "cannot read the value"),
        (Any, "%1", "cannot read the value"),
        (Any, "'a\\d'", "cannot read the value"),
        (Any, "@f()", "needs itself"),
    ],
)
def test_wrong_values_are_refused(annotation, text, complaint):
    for bindings in ([f"f.x={text}"], [f"X={text}", "f.x=%X"]):
        words = re.escape(complaint.removeprefix("f.x "))
        with pytest.raises(UserError, match=words) as caught:
            config.load([], bindings, [], configurables=taking(annotation), roots=["f"])
        message = str(caught.value)
        assert len(message.splitlines()) == 1
        if len(bindings) == 2 and "expects" in message:
            assert message.startswith(f"--gin.X={text[:60]}") and "X feeds f.x" in message


# Refusals.


@pytest.mark.parametrize(
    "binding, complaint",
    [
        ("TRAIN_STPES=5", "nothing uses the macro TRAIN_STPES. Did you mean TRAIN_STEPS?"),
        ("train_steps=5", "Did you mean TRAIN_STEPS?"),
        ("TRAIN_STEPS=abc", "TRAIN_STEPS feeds pretrain.steps, which expects int, got 'abc'."),
        ("TRAIN.STEPS=5", "there is no configurable TRAIN. Did you mean TRAIN_STEPS?"),
        ("FIER.hidden_layers=5", "there is no configurable FIER. Did you mean FIRE"),
        ("FIRE.hiden_layers=5", "FIRE has no parameter hiden_layers. Did you mean hidden_layers?"),
        ("POSITION=@FIER", "refers to @FIER, which does not exist. Did you mean @FIRE?"),
        ("TextData.batch=%BACH_SIZE", "%BACH_SIZE, which nothing sets. Did you mean BATCH_SIZE?"),
        ("evl/TextData.batch=5", "never used in the scope evl. Did you mean eval?"),
        ("eval/FIRE.init_length=5", ""),
        ("RoPE.base=3", "nothing in this experiment uses RoPE"),
        ("BATCH_SIZE=%BATCH_SIZE", "the macro BATCH_SIZE refers to itself."),
        ("BATCH_SIZE", "must be of the form --gin.NAME=VALUE."),
        ("BATCH_SIZE=", "no value after '='"),
        ("a b=3", "'a b' is not a name"),
        ("pretrain.workdir=x", "the code itself gives pretrain its workdir; remove it."),
        ("FIRE.num_heads=8", "the code itself gives FIRE its num_heads; remove it."),
        ("BATCH_SIZE=%gin.REQUIRED", "BATCH_SIZE has no value; give one with --gin.BATCH_SIZE"),
    ],
)
def test_command_line_slips_are_told(tmp_path, binding, complaint):
    if not complaint:
        complaint = "FIRE is never used in the scope eval"
    message = refusal(tmp_path, binding)
    assert message.startswith(f"--gin.{binding}: ") and complaint in message


@pytest.mark.parametrize(
    "text, where, complaint",
    [
        ("pretrain.stesp = 5", "more.gin:1", "Did you mean steps?"),
        ("\n\nTRAIN_STEPS 5", "more.gin:3", "cannot read 'TRAIN_STEPS 5'"),
        ("DATA_DIR = gs://a", "more.gin:1", "a string goes in quotes"),
        ("DATA_DIR = 'a", "more.gin:1", "a string goes in quotes"),
        ("EVAL_LENGTHS = [1,\n2", "more.gin:", "cannot read"),
        ("X = '''a", "more.gin:", "cannot read"),
        ("TRAIN_STEPS = 5 6", "more.gin:1", "cannot read"),
        ("TRAIN_STEPS = -%BATCH_SIZE", "more.gin:1", "A minus needs a number."),
        ("TRAIN_STEPS = 2*3", "more.gin:1", "cannot read"),
        ("DATA_DIR = 'a\\d'", "more.gin:1", "cannot read"),
        ("import os.path", "more.gin:1", "os.path has no dataclass"),
        ("import os.path as p", "more.gin:1", "names have no module path here"),
        ("from __gin__ import dynamic_registration", "more.gin:1", "names have no module path"),
        ("WIDTHS = {'a': 1}", "more.gin:1", "write pairs: (('a', 1), ('b', 2))"),
        ("positions.FIRE.init_length = 3", "more.gin:1", "Did you mean FIRE?"),
        ("POSITION = @my.long.path.positions.FIRE", "more.gin:1", "Did you mean @FIRE?"),
        ("import no_such_package", "more.gin:1", "put the folder that holds it on PYTHONPATH"),
        ("TRAIN_STEPS = 1\n# no\nTRAIN_STEPS = 2", "more.gin:3", "already set at more.gin:1"),
        ("FIRE:\n  init_length = 1\nFIRE.init_length = 2", "more.gin:3", "already set at"),
        ("include 'nowhere.gin'", "more.gin:1", "there is no gin file 'nowhere.gin'"),
        ("WARMUP = 5", "more.gin:1", "nothing uses the macro WARMUP."),
        ("RoPE.base = 5", "more.gin:1", "nothing in this experiment uses RoPE"),
        ("TextData.vocabulary = %gin.REQUIRED", "more.gin:1", "--gin.TextData.vocabulary=VALUE"),
    ],
)
def test_slips_in_files_are_told(tmp_path, text, where, complaint):
    message = refusal(tmp_path, **FILES, more=text)
    assert message.startswith(where) and complaint in message


def test_idle_bindings_of_an_overridden_choice_are_fine(tmp_path):
    both = load(tmp_path, base=BASE, rope=ROPE_GIN, fire=FIRE_GIN)
    assert both == load(tmp_path)
    message = refusal(tmp_path, "RoPE.base=3", base=BASE, rope=ROPE_GIN, fire=FIRE_GIN)
    assert "nothing in this experiment uses RoPE" in message


def test_a_macro_that_only_an_overridden_binding_uses_is_used(tmp_path):
    loaded = load(tmp_path, "pretrain.steps=3", "TRAIN_STEPS=4")
    assert outcome(loaded)[0]["steps"] == 3
    chain = load(tmp_path, "STEPS=4", "TRAIN_STEPS=%STEPS")
    assert outcome(chain)[0]["steps"] == 4
    assert "nothing uses" in refusal(tmp_path, "A=%B", "B=1")


def test_no_encoding_chosen_is_told_by_the_hint(tmp_path):
    assert refusal(tmp_path, base=BASE) == NO_POSITION


@pytest.mark.parametrize("line", ["TextData.vocabulary = 'bytes'", "pretrain.steps = %TRAIN_STEPS"])
def test_a_missing_value_is_told_before_the_call(tmp_path, line):
    key = line.split(" = ")[0]
    base = BASE.replace(line + "\n", "")
    base = base.replace("TRAIN_STEPS = 6e5\n", "") if "TRAIN_STEPS" in line else base
    assert f"{key} has no value" in refusal(tmp_path, base=base, fire=FIRE_GIN)


def test_only_the_verb_that_is_called_needs_its_values(tmp_path):
    base = BASE.replace("length_sweep.lengths = %EVAL_LENGTHS\n", "")
    loaded = load(tmp_path, base=base.replace("EVAL_LENGTHS = [512, 1024]\n", ""), fire=FIRE_GIN)
    loaded.call("pretrain", workdir="w")
    with pytest.raises(UserError, match="length_sweep.lengths has no value"):
        loaded.call("length_sweep")
    assert loaded.call("length_sweep", lengths=(1,))["lengths"] == (1,)


def test_bindings_may_repeat_what_the_code_gives(tmp_path):
    loaded = load(tmp_path, "FIRE.num_heads=4", "pretrain.dry_run=False")
    assert loaded.call("pretrain", workdir="w", dry_run=True)["dry_run"] is True


# Files.


def test_files_are_found_and_included(tmp_path, monkeypatch):
    inner = tmp_path / "first" / "configs"
    inner.mkdir(parents=True)
    (inner / "base.gin").write_text("f.x = 1\nf.y = 1")
    (tmp_path / "run.gin").write_text("include 'configs/base.gin'\nf.y = 2")
    monkeypatch.chdir(tmp_path)

    def loaded(files: list[str], paths: list[str]) -> Any:
        functions = {"f": lambda x, y: (x, y)}
        return config.load(files, [], paths, configurables=functions, roots=["f"]).call("f")

    assert loaded(["run.gin"], ["first"]) == (1, 2)
    assert loaded([str(tmp_path / "run.gin")], [str(tmp_path / "first")]) == (1, 2)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "base.gin").write_text("f.x = 3\nf.y = 3")
    assert loaded(["run.gin"], ["first"]) == (1, 2)  # a given path comes before '.'
    assert loaded(["run.gin"], []) == (3, 2)
    # An include does not read base.gin again, and so does not undo the run's own value.
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
        ("nothing_like_it.gin", "Looked in "),
        ("configs", "there is no gin file"),
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
        config.load([name], [], [str(tmp_path)], configurables={}, roots=[])
    assert len(str(caught.value).splitlines()) == 1


# Text.

AWKWARD = ["", "a'b", 'a"b', "a\\b", "a\nb", "%x", "@y", "é…\udcff", "# no comment", "  ", "None"]


def test_text_loads_into_an_equal_configuration(tmp_path):
    for extra in [
        (),
        ("DATA_DIR=gs://bucket/x", "TRAIN_STEPS=5"),
        ("DATA_DIR=007", "EVAL_LENGTHS=512"),
        ("eval/FIRE.init_length=3", "length_sweep.decoder=@eval/build_decoder()"),
        ("STEPS=1e3", "TRAIN_STEPS=%STEPS", "pretrain.lengths=(%STEPS,)"),
    ]:
        first = load(tmp_path, *extra)
        again = load(tmp_path, only=first.text())
        assert again == first and again.text() == first.text()
        assert outcome(again) == outcome(first)
        assert config.differences(first.text(), again, root="pretrain") == []
        assert first != load(tmp_path, *extra, "pretrain.learning_rate=0.5")


@pytest.mark.parametrize("text", AWKWARD)
def test_text_keeps_awkward_strings(tmp_path, text):
    loaded = load(tmp_path, f"DATA_DIR={text!r}")
    again = load(tmp_path, only=loaded.text())
    assert outcome(again)[0]["data"].directory == text


def test_text_is_complete_and_as_written(tmp_path):
    lines = load(tmp_path, "DATA_DIR=a/b").text().splitlines()
    assert {
        "TRAIN_STEPS = 6e5",
        "DATA_DIR = 'a/b'",
        "POSITION = @FIRE",
        "pretrain.steps = %TRAIN_STEPS",
        "pretrain.lengths = ()",
        "eval/TextData.batch = 2",
        "FIRE.hidden_layers = (32,)",
        "FIRE.init_length = 512.0",
    } <= set(lines)
    assert not any(
        line.startswith(("FIRE.num_heads", "RoPE", "pretrain.workdir")) for line in lines
    )


def test_text_does_not_depend_on_the_order_of_statements(tmp_path):
    reversed_base = "\n".join(reversed(BASE.splitlines()))
    assert load(tmp_path, fire=FIRE_GIN, base=reversed_base).text() == load(tmp_path).text()


def test_text_leaves_out_defaults_that_gin_cannot_write():
    def f(
        a=float("inf"),
        b=print,
        c: tuple[int, ...] = [1],  # type: ignore[assignment]  # noqa: B006
        d: int = None,  # type: ignore[assignment]
        e=(1, ("k", [2.5])),
        f={"k": 1},  # noqa: B006
    ):
        return a, b, c, d, e, f

    loaded = config.load([], [], [], configurables={"f": f}, roots=["f"])
    body = [line for line in loaded.text().splitlines() if line and not line.startswith("#")]
    assert body == ["f.d = None", "f.e = (1, ('k', [2.5]))"]


# Differences.


def difference(folder: Path, old: config.Config, *new: str, **files: str) -> list[Any]:
    found = config.differences(old.text(), load(folder, *new, **files), root="pretrain")
    return [(d.name, d.old, d.new) for d in found]


def test_differences_are_named_as_the_user_would_bind_them(tmp_path):
    old = load(tmp_path)
    assert difference(tmp_path, old, "TRAIN_STEPS=5") == [("TRAIN_STEPS", 600_000, 5)]
    assert difference(tmp_path, old, "pretrain.steps=5") == [("pretrain.steps", 600_000, 5)]
    assert difference(tmp_path, old, "FIRE.hidden_layers=4") == [
        ("FIRE.hidden_layers", (32,), (4,))
    ]
    rope = {"base": BASE, "rope": ROPE_GIN}
    assert difference(tmp_path, old, **rope) == [("POSITION", "@FIRE", "@RoPE")]


def test_what_makes_no_difference(tmp_path):
    old = load(tmp_path)
    assert difference(tmp_path, old, "TRAIN_STEPS=600_000") == []
    assert difference(tmp_path, old, "N=600000", "TRAIN_STEPS=%N") == []
    assert difference(tmp_path, old, "pretrain.lengths=[]") == []
    assert difference(tmp_path, old, "EVAL_LENGTHS=3", "eval/TextData.batch=3") == []
    sweep = config.differences(old.text(), load(tmp_path, "EVAL_LENGTHS=3"), root="length_sweep")
    assert [str(d) for d in sweep] == ["EVAL_LENGTHS: (512, 1024) -> (3,)"]


def test_differences_from_other_code(tmp_path):
    """The saved text may know parameters that are gone, and lack those that are new."""
    old = load(tmp_path).text().replace("FIRE.init_length", "FIRE.init_l")
    old = old.replace("pretrain.learning_rate = 3e-4", "pretrain.learning_rate = 'high'")
    old += "Gone.x = 1\n"
    found = config.differences(old, load(tmp_path), root="pretrain")
    assert [(d.name, d.old, d.new) for d in found] == [
        ("pretrain.learning_rate", "high", 3e-4),
        ("FIRE.init_l", 512.0, config.ABSENT),
    ]


def test_differences_refuses_a_broken_text(tmp_path):
    with pytest.raises(UserError, match="saved config:1: cannot read"):
        config.differences("TRAIN STEPS", load(tmp_path), root="pretrain")


# Saving and asking.


def test_every_start_saves_its_own_file(tmp_path):
    first, second = load(tmp_path), load(tmp_path, "TRAIN_STEPS=5")
    run = tmp_path / "runs" / "a"
    names = [config.save(c, run).name for c in (first, second, first)]
    assert names == ["config.gin", "config_1.gin", "config_2.gin"]
    assert sorted(os.listdir(run)) == names
    assert [(run / name).read_text() for name in names] == [
        first.text(),
        second.text(),
        first.text(),
    ]


def test_an_unwritable_workdir_is_told(tmp_path):
    loaded = load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the configuration there"):
        config.save(loaded, tmp_path / "file" / "run")


def test_macros_can_be_asked(tmp_path):
    loaded = load(tmp_path, "DATA_DIR=123")
    names = ["TRAIN_STEPS", "POSITION", "EVAL_LENGTHS", "DATA_DIR", "NOTHING"]
    assert [loaded.macro(name) for name in names] == [600_000, "@FIRE", (512, 1024), "123", None]


def test_import_is_light():
    heavy = "{'jax', 'flax', 'tensorflow', 'seqio', 'numpy', 'etils'}"
    code = f"import fire_lm.config, sys; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
