"""Values in gin files are converted to the annotation of their parameter, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from sample_config import FIRE, RoPE

from fire_lm import config
from fire_lm.errors import UserError

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
    (tuple[str, ...], "2024-01-01, 2024-02-01", ("2024-01-01", "2024-02-01")),
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
    loaded = config.load(
        config.read([], bindings, []), configurables=taking(annotation), roots=["f"]
    )
    value = loaded.call("f")
    assert value == expected and type(value) is type(expected)
    if isinstance(value, tuple | list):
        assert [type(item) for item in value] == [type(item) for item in expected]


@pytest.mark.parametrize(
    "annotation, text, complaint",
    [
        (int, "abc", "f.x expects int, got 'abc'"),
        (int, "5.5", "expects int, got 5.5"),
        (int, "True", "expects int, got True"),
        (int, "None", "expects int, got None"),
        (int, "1e999", "expects int, got 1e999"),
        (float, "'1'", "expects float, got '1'"),
        (float, "9" * 400, "expects float, got 999"),
        (bool, "1", "expects bool, got 1"),
        (bool, "true", "Did you mean True?"),
        (str, "None", "expects str, got None"),
        (str, "[1]", "expects str, got [1]"),
        (tuple[int, ...], "(1, 'a')", "expects a list of int like [a, b], got (1, 'a')"),
        (tuple[int, ...], "512;1024", "expects a list of int like [a, b], got '512;1024'"),
        (tuple[int, int], "(1, 2, 3)", "expects (int, int), got (1, 2, 3)"),
        (Literal["full", "last"], "ful", "one of 'full', 'last', got 'ful'. Did you mean full?"),
        (int | None, "x", "expects int or None, got 'x'"),
        (Callable[..., Any], "FIRE", "A reference is written @FIRE"),
        (Callable[..., Any], "@FIRE()", "Did you mean @FIRE?"),
        (type[FIRE], "3", "expects a reference to a FIRE, like @Name, got 3"),
        (Callable[..., int], "@FIRE", "expects a reference to a int, like @Name, got @FIRE"),
        (tuple[Callable[..., int], ...], "[@FIRE]", "expects a list like [@A, @B], got [@FIRE]"),
        (FIRE, "@FIRE", "Did you mean @FIRE()?"),
        (FIRE, "3", "expects FIRE, got 3"),
        (RoPE, "@FIRE()", "expects RoPE, got @FIRE()"),
        (int, "@FIRE()", "expects int, got @FIRE()"),
        (Literal["a"], "@FIRE()", "expects one of 'a', got @FIRE()"),
        (Literal["a"], "@f()", "expects one of 'a', got @f()"),
        (dict[str, int], "3", "expects dict, got 3"),
        (Any, "{'a': 'b'}", "a value cannot be a dict here: write pairs: (('a', 1), ('b', 2))"),
        (Any, "[{1: 2}]", "cannot read the value"),
        (Any, "'a", "cannot read the value"),
        (Any, "a'", "cannot read the value"),
        (Any, "[1", "cannot read the value"),
        (Any, "@", "cannot read the value"),
        (Any, "%1", "cannot read the value"),
        (Any, "'a\\d'", "cannot read the value"),
        (Any, "@f()", "depends on itself"),
    ],
)
def test_wrong_values_are_refused(annotation, text, complaint):
    for bindings in ([f"f.x={text}"], [f"X={text}", "f.x=%X"]):
        words = re.escape(complaint.removeprefix("f.x "))
        with pytest.raises(UserError, match=words) as caught:
            config.load(
                config.read([], bindings, []), configurables=taking(annotation), roots=["f"]
            )
        message = str(caught.value)
        assert len(message.splitlines()) == 1 and not re.search(r"[^.]\.$", message)
        if len(bindings) == 2 and "expects" in message:
            assert message.startswith(f"--gin.X={text[:60]}") and "X sets f.x" in message
