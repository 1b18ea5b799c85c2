"""Broken command lines, drawn from a seed, each end quickly with a plain message.

Unlike the slips of test_mistypes.py, these are not typing errors but anything that a script can
pass: bindings to values that no parameter accepts, damaged gin files, damaged run directories,
flags of other verbs, empty and huge arguments. Other tests check whether a value should be refused;
here, no command may end in a traceback or without a message, take long, or print more than five
lines.
"""

from __future__ import annotations

import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dry_runs import FILES, QUICKSTART, STEP, prepare

from fire_lm import cli
from fire_lm.cli import pretrain
from fire_lm.experiment import load_experiment

SECONDS = 60.0  # a case takes 0.1 s; the first that needs TensorFlow takes 10 s

# Most of these values are wrong for most parameters. None of them can produce a large model.
VALUES = [
    "", "0", "1", "2", "3", "7", "65536", "-1", "-3.5", "0.5", "1e-9", "1e-300", "1e-400", "1e15",
    "1e999", "nan", "inf", "2147483648", "9" * 30, "9" * 5000, "²", "0x10", "1_000", "01", "1j",
    "None", "True", "false", "'", '"', "''", "' '", "'a\\nb'", "b'x'", "'\\0'", "word", "x" * 5000,
    "a b", "[]", "()", "{}", "[1", "1]", "[[1]]", "(1, 'a')", "{1: 2}", "1,2,", "a,b", "[None]",
    "[" * 300, "@FIRE", "@FIRE()", "@RoPE", "@NoPE", "@YaRN()", "@", "@nope", "@a/FIRE",
    "@pretrain()", "%SEED", "%POSITION", "%NOPE", "%", "-%SEED", "%gin.REQUIRED", "lambda: 1", "#",
    "1 # x", "1; 2", "/", "//", "..", "~", "/dev/null", "/proc/self/mem", "gs://", "http://x",
    "file", "pipe.gin", "dangling.gin", "configs", "runs", "runs/fire", "runs/fire@20",
    "runs/fire@x", "nowhere", "\0", "\x1b[31m", "a\nb", "\ufeff", "\udcff", "\u202e", "🔥" * 300,
]  # fmt: skip

FLAGS = {
    "pretrain": ["--workdir", "--gin_file", "--gin_search_paths", "--debgu"],
    "sweep": ["--also", "--output", "--gin_file", "--gin_search_paths", "--follow", "--workdir"],
    "generate": ["--prompts", "--output", "--new_tokens", "--top_p", "--alpha", "--stop", "--seed"],
    "export": ["--output", "--context_length", "--gin_file", "--gin_search_paths"],
    "import": ["--from", "--output", "--gin_file", "--gin_search_paths"],
    "report": ["--against", "--output", "--agianst", "--slice"],
    "preflight": ["--slice", "--workdir", "--json", "--all_lengths", "--gin_file", "--generate"],
    "corpus": ["--data_dir", "--from", "--name", "--split_on", "--validation_percent", "--runner"],
    "corpus check": ["--lengths", "--documents", "--vocabulary", "--output", "--tfds_name"],
    "corpus vocab": ["--size", "--megabytes", "--output"],
    "bench": ["--lengths", "--encodings", "--rounds", "--json", "--size", "--tokens"],
}  # fmt: skip
# The arguments before the flags. The last argument of some commands prevents them from ever
# starting work that takes minutes.
BEFORE = {
    "pretrain": ["pretrain", "--dry_run", *QUICKSTART],
    "sweep": ["sweep", "runs/fire", "--dry_run"],
    "generate": ["generate", "runs/fire@20", "--prompt=x"],  # its checkpoint is empty
    "export": ["export", "runs/fire@20", "--output=hf"],
    "import": ["import", "--from=hf", "--output=runs/back"],
    "report": ["report", "runs/fire", "--output=file"],
    "preflight": ["preflight", *QUICKSTART, "--slice=v4-7"],
    "corpus": ["corpus", "--data_dir=thesis", "--name=Not a name", "--from=nowhere"],
    "corpus check": ["corpus", "check", "--data_dir=nowhere"],
    "corpus vocab": ["corpus", "vocab", "--data_dir=nowhere", "--output=v.model"],
    "bench": ["bench", "model", "--size=nope"],
}
RUN_FILE = Path("runs/fire/config.gin")


class Hang(BaseException):
    """Raised when a command hangs; not an Exception, so that no handler on the way catches it."""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("mine")
    (tmp_path / "dangling.gin").symlink_to("nowhere")
    return tmp_path


def cases(draw: random.Random) -> Iterator[list[str]]:
    """Yield command lines, damaging the files that some of them refer to."""
    names = [line.partition(" = ")[0] for line in load_experiment(FILES).text().splitlines()]
    names = [name for name in names if name and not name.startswith("#")]
    good = RUN_FILE.read_bytes()
    while True:
        kind = draw.choice(["binding", "binding", "also", "flag", "flag", "file", "run", "words"])
        binding = f"--gin.{draw.choice(names)}={draw.choice(VALUES)}"
        if kind == "binding":
            yield [*BEFORE[draw.choice(["pretrain", "sweep"])], binding]
        elif kind == "also":
            also = binding if draw.random() < 0.7 else draw.choice(VALUES)
            yield [*BEFORE["sweep"], f"--also={also}"]
        elif kind == "flag":
            verb = draw.choice(list(FLAGS))
            wrong = [f"{flag}={draw.choice(VALUES)}" for flag in draw.sample(FLAGS[verb], 1)]
            yield [*BEFORE[verb], *wrong]
        elif kind == "file":
            source = Path(draw.choice([*FILES, "configs/base.gin", str(RUN_FILE)]))
            Path("broken.gin").write_bytes(broken(source.read_bytes(), draw))
            yield ["pretrain", "--dry_run", *QUICKSTART, "--gin_file=broken.gin"]
        elif kind == "run":
            RUN_FILE.write_bytes(broken(good, draw))
            yield draw.choice([BEFORE["sweep"], ["report", "runs/fire", "--output=report"]])
            RUN_FILE.write_bytes(good)
        else:
            words = [draw.choice([*FLAGS, *VALUES]) for _ in range(draw.randrange(3))]
            yield [*words, "--dry_run", f"runs/fire@{draw.choice([STEP, -1, 'x'])}", "--nope"]


def broken(text: bytes, draw: random.Random) -> bytes:
    place, other = sorted(draw.randrange(len(text)) for _ in range(2))
    how = draw.randrange(6)
    if how == 0:
        return text[:place]
    if how == 1:
        return text[:place] + draw.randbytes(3) + text[place:]
    if how == 2:
        return text[:place] + text[other:]
    if how == 3:
        return draw.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"\r\n", b"\t"]) + text
    if how == 4:
        return text[:place] + draw.choice(VALUES).encode("utf-8", "surrogateescape") + text[place:]
    lines = text.splitlines(keepends=True)
    draw.shuffle(lines)
    return b"".join(lines)


def ending(command: list[str], seconds: float) -> str:
    """Return how a command ended: its exit code, or what must not happen."""

    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    # Repeat the alarm, because an exception is lost if it is raised in a callback of the garbage
    # collector.
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        return f"exit code {cli.main(command)}"
    except SystemExit as end:
        return f"exit code {end.code}"
    except Hang:
        return f"no end within {seconds} seconds"
    except Exception as error:
        return f"traceback: {error!r:.200}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def complaint(how: str, error: str) -> str:
    """Return what is wrong with a command's ending and message, or "" if nothing is."""
    lines = error.strip().splitlines()
    if how not in [f"exit code {code}" for code in range(4)]:
        return how
    if len(lines) > 5 or "Traceback" in error:
        return f"{len(lines)} lines"
    if how != "exit code 0" and not lines:
        return f"{how} without a word"
    if any(not c.isprintable() for c in error.replace("\n", "")) or len(error) > 4000:
        return "words that no terminal should have"
    return ""


def fuzz(
    capsys: pytest.CaptureFixture[str], count: int, seconds: float = SECONDS, seed: int = 0
) -> tuple[list[str], Counter[str]]:
    """Return what was wrong with `count` commands, and how often each kind of ending occurred."""
    draw = random.Random(seed)
    wrong, endings = [], Counter[str]()
    drawn = cases(draw)
    for number in range(count):
        command = next(drawn)
        how = ending(command, seconds)
        error = capsys.readouterr().err
        endings[how] += 1
        if found := complaint(how, error):
            wrong.append(f"case {number}: {ascii(command)[:500]}: {found}\n{error[:500]}")
    return wrong, endings


@pytest.mark.parametrize(
    "count", [pytest.param(150, marks=pytest.mark.ci), pytest.param(500, marks=pytest.mark.slow)]
)
def test_broken_commands_end_in_plain_words(count, folder, capsys):
    wrong, endings = fuzz(capsys, count)
    assert not wrong, "\n".join(wrong)
    assert endings["exit code 2"] > count / 2 and endings["exit code 0"] > count / 20
    inside = {path.name for path in folder.iterdir()}
    assert [path.name for path in (folder / "thesis").iterdir()] == ["thesis.txt"], inside


def fails(*_: object, **__: object) -> None:
    raise TypeError("injected")


def hangs(*_: object, **__: object) -> None:
    signal.pause()


def talks(*_: object, **__: object) -> None:
    print("many\nlines\n" * 9, file=sys.stderr)


def leaves(*_: object, **__: object) -> None:
    sys.exit(5)


@pytest.mark.ci
@pytest.mark.parametrize(
    "fault, seconds, told",
    [
        (fails, SECONDS, "traceback: TypeError('injected')"),
        (hangs, 3.0, "no end within 3.0 seconds"),
        (talks, SECONDS, "18 lines"),
        (leaves, SECONDS, "exit code 5"),
    ],
    ids=["fails", "hangs", "talks", "leaves"],
)
def test_the_fuzzer_notices(folder, capsys, monkeypatch, fault: Callable[..., None], seconds, told):
    monkeypatch.setattr(pretrain, "run", fault)
    wrong, _ = fuzz(capsys, 10, seconds)
    assert any(told in one for one in wrong)
