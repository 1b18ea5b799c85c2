"""Encodings from the user's own package: `import` in a gin file, `--import` on the command line."""

import sys

import pytest
from sample_run import command, write_text

import fire_lm
from fire_lm.cli import main
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.results import SweepRow, read_table

MODULE = '''
import dataclasses

from fire_lm.positions.alibi import ALiBi, alibi_slopes
from fire_lm.positions.base import PositionalEncoding


@dataclasses.dataclass(frozen=True)
class GentleALiBi(ALiBi):
    """ALiBi at half its slopes."""

    factor: float = 0.5

    def bias(self, params, q_pos_BT, k_pos_BS, context_length):
        return self.factor * super().bias(params, q_pos_BT, k_pos_BS, context_length)

    def common_bias(self, params, context_length):
        return None
'''
GIN = "import gentle_encodings.alibi\nPOSITION = @GentleALiBi\nENCODING = 'gentle'\n"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Yield a folder with the user's package and a gin file for it."""
    package = tmp_path / "gentle_encodings"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "alibi.py").write_text(MODULE)
    (tmp_path / "gentle.gin").write_text(GIN)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("gentle_encodings")]:
        del sys.modules[name]


def test_a_class_of_the_users_package_is_named_in_gin(own):
    files = ["configs/runs/quickstart.gin", str(own / "gentle.gin")]
    config = load_experiment(files, ["GentleALiBi.factor=0.25"])
    assert config.model.encodings[0].factor == 0.25
    assert "import gentle_encodings.alibi\n" in config.text()
    (own / "saved.gin").write_text(config.text())
    assert load_experiment([str(own / "saved.gin")]) == config, "what a run saves opens by itself"


def test_the_flag_does_the_same(own):
    files = ["configs/runs/quickstart.gin", "configs/positions/nope.gin"]
    position = ["POSITION=@GentleALiBi"]
    config = load_experiment(files, position, imports=["gentle_encodings.alibi"])
    assert "import gentle_encodings.alibi\n" in config.text()
    assert config.label == "GentleALiBi"


@pytest.mark.parametrize(
    "text, told",
    [
        ("import gentle_encodings.nowhere", "cannot import gentle_encodings.nowhere"),
        ("import gentle_encodings.broken", "cannot import gentle_encodings.broken: division"),
        ("import gentle_encodings", "gentle_encodings defines no dataclass"),
        ("import gentle_encodings.twice", "twice.FIRE has the same name as fire_lm.positions"),
    ],
)
def test_what_cannot_be_imported(own, capsys, text, told):
    (own / "gentle_encodings" / "broken.py").write_text("1 / 0")
    twice = "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass FIRE:\n    x: int = 0\n"
    (own / "gentle_encodings" / "twice.py").write_text(twice)
    (own / "more.gin").write_text(text)
    files = ["--gin_file=configs/runs/quickstart.gin", "--gin_file=configs/positions/fire.gin"]
    assert main(["pretrain", "--dry_run", *files, f"--gin_file={own / 'more.gin'}"]) == 2
    words = capsys.readouterr().err.strip()
    assert told in words and words.count("\n") <= 1


def test_annotations_that_cannot_be_read_are_told(own):
    """Values are checked against annotations, so without them nothing would be checked."""
    (own / "gentle_encodings" / "typed.py").write_text(
        "from __future__ import annotations\nimport dataclasses, typing\n"
        "if typing.TYPE_CHECKING:\n    import elsewhere\n"
        "@dataclasses.dataclass(frozen=True)\nclass Typed:\n    width: elsewhere.Width\n"
    )
    with pytest.raises(UserError, match="Typed: name 'elsewhere' is not defined") as caught:
        load_experiment(["configs/runs/quickstart.gin"], imports=["gentle_encodings.typed"])
    assert "not only under TYPE_CHECKING" in str(caught.value)


@pytest.mark.ci
def test_it_trains_and_is_swept(own):
    text, run = write_text(own / "text"), own / "run"
    given = [f"--gin_file={own / 'gentle.gin'}", "--gin.TRAIN_STEPS=4"]
    arguments = [one for one in command(text, run, *given) if "configs/positions" not in one]
    assert main(arguments) == 0
    assert main(["sweep", str(run), "--gin.EVAL_LENGTHS=16,32"]) == 0
    assert {row.encoding for row in read_table(run / "length_sweep.csv", SweepRow)} == {"gentle"}
    assert type(fire_lm.open_run(str(run)).model.encodings[0]).__name__ == "GentleALiBi"
