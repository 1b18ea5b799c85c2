"""Five hundred slips of a finger in the real gin files and command line: told, or seen.

A slip is a character dropped, doubled, replaced or swapped with its neighbour. Each either ends in
a plain message (exit 2), or the printed configuration shows it; never a traceback, and never a
binding that does nothing.
"""

import io
import random
import re
import shutil
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from fire_lm.cli import main
from fire_lm.config import checks

ROOT = Path(__file__).resolve().parent.parent
FLAGS = [
    "--gin_file=configs/runs/quickstart.gin",
    "--gin_file=configs/positions/fire.gin",
    "--gin.TRAIN_STEPS=500",
    "--gin.FIRE.init_c=0.25",
    "--gin.AdamW.learning_rate=3e-4",
    "--gin.EVAL_LENGTHS=512,1024",
    "--gin.CONSTRUCTION=cut",
    "--gin.Checkpointing.keep_every=500",
    "--dry_run",
]
FILES = ["base.gin", "runs/quickstart.gin", "models/tiny.gin", "positions/fire.gin"]
# The characters of the line where a slip is no comment.
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789_.=@%/'()"


def slip(line: str, draw: random.Random) -> str:
    code = re.split(r"\s*#", line)[0]
    place = draw.randrange(len(code))
    before, here, after = code[:place], code[place], code[place + 1 :]
    kind = draw.randrange(4)
    if kind == 0:
        return before + after
    if kind == 1:
        return before + 2 * here + after
    if kind == 2:
        return before + draw.choice(_LETTERS) + after
    return before + after[:1] + here + after[1:]


def meaning(line: str) -> list[str]:
    """The tokens of a statement, equal for two spellings of one value."""
    readable = line.removeprefix("--").replace("%", "percent ")
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(readable).readline))
    except (tokenize.TokenError, SyntaxError):
        return [line]
    words = [t.string for t in tokens if t.string.strip() and t.type != tokenize.COMMENT]
    return [
        str(float(w)) if re.fullmatch(r"[\d_]*\.?[\d_]+(e-?\d+)?|\d+\.", w) else w for w in words
    ]


def slips(draw: random.Random) -> Iterator[tuple[str | None, str, str]]:
    """(file or None for the command line, a line of it, the line with a slip)."""
    lines: list[tuple[str | None, str]] = [(None, flag) for flag in FLAGS[2:]]
    overruled = [flag.removeprefix("--gin.").partition("=")[0] for flag in FLAGS]
    for file in FILES:
        for line in (ROOT / "configs" / file).read_text().splitlines():
            if re.match(r"\w", line) and line.partition(" = ")[0] not in overruled:
                lines.append((file, line))
    while True:
        name, line = draw.choice(lines)
        wrong = slip(line, draw)
        if wrong != line:
            yield name, line, wrong


def outcome(folder: Path, name: str | None, line: str, wrong: str) -> str:
    """How the command ends with the slip in its place."""
    flags = FLAGS
    if name is None:
        flags = [wrong if flag == line else flag for flag in FLAGS]
    else:
        path = folder / "configs" / name
        right = path.read_text()
        path.write_text(right.replace(f"{line}\n", f"{wrong}\n", 1))
    try:
        code = main(["pretrain", *flags])
    except SystemExit as ending:
        code = int(str(ending.code))
    finally:
        if name is not None:
            path.write_text(right)
    return {0: "accepted", 2: "refused"}.get(code, f"exit code {code}")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def wrongly_treated(folder: Path, capsys: pytest.CaptureFixture[str], count: int) -> list[str]:
    def shown(name: str | None, line: str, wrong: str) -> tuple[str, str, str]:
        verdict = outcome(folder, name, line, wrong)
        printed = capsys.readouterr()
        configuration, _, _ = printed.out.partition("\nparameters\n")
        return verdict, configuration, printed.err

    verdict, expected, _ = shown(None, FLAGS[2], FLAGS[2])
    assert verdict == "accepted" and "TRAIN_STEPS" in expected
    found, draw = [], slips(random.Random(0))
    for _ in range(count):
        name, line, wrong = next(draw)
        verdict, configuration, error = shown(name, line, wrong)
        lines = error.strip().splitlines()
        plain = len(lines) <= 3 and "Traceback" not in error
        same_name = meaning(wrong.partition("=")[0]) == meaning(line.partition("=")[0])
        seen = meaning(wrong) == meaning(line) or same_name and configuration != expected
        if not (verdict == "refused" and lines and plain or verdict == "accepted" and seen):
            found.append(f"{name}: {line!r} -> {wrong!r}: {verdict}; {error}")
    return found


@pytest.mark.ci
def test_five_hundred_slips_are_told_or_seen(folder, capsys):
    assert wrongly_treated(folder, capsys, 500) == []


@pytest.mark.ci
def test_without_a_check_some_bindings_do_nothing(folder, capsys, monkeypatch):
    monkeypatch.setattr(checks, "check_macros", lambda program: None)
    assert wrongly_treated(folder, capsys, 200)
