"""Five hundred typing errors in the real gin files and command lines are reported or visible.

An error is a character dropped, doubled, replaced or swapped with its neighbour, or a value that no
setting can have. Each either ends in a plain message (exit 2) or is visible in the printed
configuration; none ends in a traceback, and no binding is ignored.
"""

import io
import os
import random
import re
import shutil
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from etils import epath

from fire_lm.checkpoints.manifest import write_manifest
from fire_lm.cli import main
from fire_lm.config import checks
from fire_lm.experiment import load_experiment
from fire_lm.runs.saved import save_config

ROOT = Path(__file__).resolve().parents[2]
FLAGS = [
    "--gin_file=configs/runs/quickstart.gin",
    "--gin_file=configs/positions/fire.gin",
    "--gin.TRAIN_STEPS=500",
    "--gin.FIRE.init_c=0.25",
    "--gin.AdamW.learning_rate=3e-4",
    "--gin.EVAL_LENGTHS=512,1024",
    "--gin.CONSTRUCTION=cut",
    "--gin.Checkpointing.keep_every=500",
    "--gin.SEED=3",
    "--gin.VOCAB_SIZE=384",
    "--gin.Watchdog.least_seconds=300.0",
    "--gin.pretrain.z_loss=1e-4",
    "--dry_run",
]
COMMANDS = {
    "pretrain": ["pretrain", "--workdir=runs/fire", *FLAGS],
    "sweep": ["sweep", "runs/fire@20", "--gin.EVAL_LENGTHS=512,1024", "--dry_run"],
}
FILES = ["base.gin", "runs/quickstart.gin", "models/tiny.gin", "positions/fire.gin"]
# The characters of a line in which an error changes more than a comment.
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789_.=@%/'()"
_WILD = ["-1", "0", "1e999", "-3.5", "1e15", "99999999999999999999", "²", "http://x", "1e-9"]

# Values that used to be accepted silently, or ended in a traceback.
REFUSED = [
    "SEED=99999999999999999999", "SEED=4294967296", "SEED=-1", "VOCAB_SIZE=1e15", "VOCAB_SIZE=0",
    "TRAIN_STEPS=1e15", "BATCH_SIZE=1e15", "TRAIN_LENGTH=1e15", "size_tiny.hidden_size=1e15",
    "size_tiny.num_layers=99999999999999999999", "size_tiny.init_std=1e999",
    "AdamW.learning_rate=-1", "AdamW.learning_rate=1e999", "AdamW.clip_norm=0",
    "AdamW.clip_norm=-1", "AdamW.b1=2", "AdamW.b2=2", "AdamW.epsilon=-1", "AdamW.weight_decay=-1",
    "AdamW.final_fraction=-3", "AdamW.warmup_steps=-1", "pretrain.z_loss=-1",
    "pretrain.z_loss=1e999", "Watchdog.silence_seconds=1e-9", "Watchdog.multiple=-1",
    "Watchdog.least_seconds=0",
]  # fmt: skip


def slip(line: str, draw: random.Random) -> str:
    code = re.split(r"\s*#", line)[0]
    place = draw.randrange(len(code))
    before, here, after = code[:place], code[place], code[place + 1 :]
    kind = draw.randrange(5)
    if kind == 4 and "=" in code:
        return code.partition("=")[0] + "=" + draw.choice(_WILD)
    if kind == 0:
        return before + after
    if kind == 1:
        return before + 2 * here + after
    if kind == 2:
        return before + draw.choice(_LETTERS) + after
    return before + after[:1] + here + after[1:]


def meaning(line: str) -> list[str]:
    """Return the tokens of a statement, which are equal for two spellings of one value."""
    if line.startswith(("--gin_file=", "--workdir=")):
        flag, _, path = line.partition("=")
        return [flag, os.path.normpath(path)]
    readable = re.sub("(?<!:)/+", "/", line.removeprefix("--")).replace("%", "percent ")
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(readable).readline))
    except (tokenize.TokenError, SyntaxError):
        return [line]
    words = [t.string for t in tokens if t.string.strip() and t.type != tokenize.COMMENT]
    return [
        str(float(w)) if re.fullmatch(r"[\d_]*\.?[\d_]+(e-?\d+)?|\d+\.", w) else w for w in words
    ]


def slips(draw: random.Random) -> Iterator[tuple[str, str, str]]:
    """Yield (a file or a command's verb, one of its lines or arguments, the same with an error)."""
    lines = [(verb, word) for verb, words in COMMANDS.items() for word in words]
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


def outcome(folder: Path, name: str, line: str, wrong: str) -> str:
    """Return how the command ends when `wrong` replaces `line`."""
    command = COMMANDS.get(name, COMMANDS["pretrain"])
    if name in COMMANDS:
        command = [wrong if word == line else word for word in command]
    else:
        path = folder / "configs" / name
        right = path.read_text()
        path.write_text(right.replace(f"{line}\n", f"{wrong}\n", 1))
    try:
        code = main(command)
    except SystemExit as ending:
        code = int(str(ending.code))
    except Exception as error:
        return f"traceback: {error!r}"
    finally:
        if name not in COMMANDS:
            path.write_text(right)
    return {0: "accepted", 2: "refused"}.get(code, f"exit code {code}")


@pytest.fixture
def folder(tmp_path, monkeypatch, capsys):
    """Return a folder with the configurations and a run that can be swept in a dry run."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "fire"
    (run / "checkpoints" / "20" / "state").mkdir(parents=True)
    (run / "checkpoints" / "20" / "state" / "array").write_text("never read")
    write_manifest(epath.Path(run / "checkpoints" / "20"))
    save_config(load_experiment([flag.partition("=")[2] for flag in FLAGS[:2]]), run)
    return tmp_path


def wrongly_treated(folder: Path, capsys: pytest.CaptureFixture[str], count: int) -> list[str]:
    def shown(name: str, line: str, wrong: str) -> tuple[str, str, str]:
        verdict = outcome(folder, name, line, wrong)
        printed = capsys.readouterr()
        configuration, _, _ = printed.out.partition("\nparameters\n")
        return verdict, configuration, printed.err

    expected = {}
    for verb, command in COMMANDS.items():
        verdict, expected[verb], _ = shown(verb, command[0], command[0])
        assert verdict == "accepted" and "EVAL_LENGTHS" in expected[verb]
    found, draw = [], slips(random.Random(0))
    for _ in range(count):
        name, line, wrong = next(draw)
        verdict, configuration, error = shown(name, line, wrong)
        lines = error.strip().splitlines()
        plain = len(lines) <= 3 and "Traceback" not in error
        same_name = meaning(wrong.partition("=")[0]) == meaning(line.partition("=")[0])
        other = configuration != expected.get(name, expected["pretrain"])
        unread = same_name and line.startswith("--workdir=")  # a dry run ignores it
        seen = meaning(wrong) == meaning(line) or same_name and other or unread
        if not (verdict == "refused" and lines and plain or verdict == "accepted" and seen):
            found.append(f"{name}: {line!r} -> {wrong!r}: {verdict}; {error}")
    return found


@pytest.mark.parametrize("binding", REFUSED)
@pytest.mark.ci
def test_a_value_that_cannot_work_is_refused(folder, capsys, binding):
    words = ["pretrain", "--dry_run", *FLAGS[:2], f"--gin.{binding}"]
    name, value = binding.split("=")
    assert main(words) == 2, name
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) <= 2
    assert name.rpartition(".")[2].lower() in error.lower()


@pytest.mark.ci
def test_a_place_that_cannot_be_is_told(folder, capsys):
    pretrain, data = ["pretrain", *FLAGS[:2]], "--gin.DATA_DIR=http://x"
    commands = [[*pretrain, "--workdir=http://x"], [*pretrain, "--workdir=new", data]]
    for place in ("²", "http://x", "runs/fire@²", "runs/fire@" + "9" * 5000):
        commands += [["sweep", place], [*pretrain, "--workdir=new", f"--gin.INIT_FROM={place}"]]
    for command in commands:
        assert main(command) == 2, command
        told = capsys.readouterr().err.strip()
        assert re.search("²|http://x|999", told) and len(told.splitlines()) <= 2


@pytest.mark.parametrize(
    "count", [pytest.param(150, marks=pytest.mark.ci), pytest.param(500, marks=pytest.mark.slow)]
)
def test_slips_are_told_or_seen(count, folder, capsys):
    found = wrongly_treated(folder, capsys, count)
    assert not found, "\n".join(found)


@pytest.mark.ci
def test_without_a_check_some_bindings_do_nothing(folder, capsys, monkeypatch):
    monkeypatch.setattr(checks, "check_macros", lambda program: None)
    assert wrongly_treated(folder, capsys, 100)
