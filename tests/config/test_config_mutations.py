"""Every small slip in a configuration is harmless or reported: never ignored, never a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_config import BASE, FIRE_GIN, load, outcome

from fire_lm.config import checks, coercion, syntax
from fire_lm.errors import UserError

COMMAND_LINE = (
    "TRAIN_STEPS=5",
    "DATA_DIR=gs://bucket/c4",
    "FIRE.hidden_layers=[8, 8]",
    "eval/TextData.batch=4",
    "TextData.vocabulary='a b'",
    "pretrain.lengths=(1, 2)",
)
WORDS = {"TextData.vocabulary", "TextData.directory", "DATA_DIR"}  # any text is valid


def slips(statement: str) -> Iterator[str]:
    """Yield `statement` with one error each: none of the results may load with another meaning."""
    key, value = re.split(r" ?= ?", statement, maxsplit=1)
    for word in re.finditer(r"\w+", key):
        start, end = word.span()
        middle = (start + end) // 2
        yield f"{key[:middle]}{key[middle + 1 :]} = {value}"  # a missing letter
        yield f"{key[:middle]}{key[middle]}{key[middle:]} = {value}"  # a doubled letter
        yield f"{key[:start]}{word[0].swapcase()}{key[end:]} = {value}"
    yield f"{key} {value}"  # no equals sign
    yield f"{key}. = {value}"
    yield f" = {value}"
    yield f"{key} ="
    for name in re.finditer(r"[@%][\w/]+", value):
        yield f"{key} = {value[: name.end() - 1]}{value[name.end() :]}"
        yield f"{key} = {value[: name.start()]}-{value[name.start() :]}"
    for mark in re.finditer(r"['\"()\[\]]", value):
        if value[mark.start() :] != ")" or "@" in value:
            yield f"{key} = {value[: mark.start()]}{value[mark.end() :]}"
    if key not in WORDS:
        for wrong in ("'wrong'", "{1: 2}", "None", "@FIRE", "@pretrain()", "[[1]]", "2.5j"):
            if value != wrong:
                yield f"{key} = {wrong}"


def mutations() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield (base.gin, fire.gin, command line) with one slip in one of them."""
    for line in BASE.splitlines():
        for slip in slips(line):
            yield BASE.replace(line + "\n", slip + "\n", 1), FIRE_GIN, COMMAND_LINE
    for line in FIRE_GIN.splitlines():
        for slip in slips(line):
            yield BASE, FIRE_GIN.replace(line, slip), COMMAND_LINE
    for index, binding in enumerate(COMMAND_LINE):
        for slip in slips(binding):
            bindings = list(COMMAND_LINE)
            bindings[index] = slip.replace(" = ", "=")
            yield BASE, FIRE_GIN, tuple(bindings)


def failures(folder: Path) -> list[str]:
    """Return the mutations that are neither harmless nor reported in at most two lines."""
    expected = outcome(load(folder, *COMMAND_LINE, base=BASE, fire=FIRE_GIN))
    found = []
    for base, fire, bindings in mutations():
        try:
            if outcome(load(folder, *bindings, base=base, fire=fire)) == expected:
                continue
            verdict = "loads with another meaning"
        except UserError as error:
            lines = str(error).splitlines()
            if len(lines) <= 2 and all(len(line) < 300 for line in lines):
                continue
            verdict = f"too long: {error}"
        except Exception as error:
            verdict = f"{type(error).__name__}: {error}"
        changed = set(f"{base}\n{fire}".splitlines()) - set(f"{BASE}\n{FIRE_GIN}".splitlines())
        found.append(f"{changed or set(bindings) - set(COMMAND_LINE)} {verdict}")
    return found


def test_slips_are_harmless_or_told(tmp_path):
    assert len(list(mutations())) > 150
    assert failures(tmp_path) == []


@pytest.mark.parametrize("check", ["check_names", "check_macros", "check_bindings_used"])
def test_without_a_check_slips_pass(tmp_path, monkeypatch, check):
    monkeypatch.setattr(checks, check, lambda program: None)
    assert failures(tmp_path)


def test_without_types_slips_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(coercion.Fitter, "fit", lambda self, node, parameter: syntax.plain(node))
    assert failures(tmp_path)
