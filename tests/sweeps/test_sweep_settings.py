"""`fire-lm sweep --also`: several settings of a run, or of a folder of runs, in one sweep."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from etils import epath
from sample_run import command, write_text

from fire_lm.cli import main, parse
from fire_lm.cli.sweep import Sweep
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.results import SweepRow, read_table
from fire_lm.sweeps.settings import Setting, flags_of, resolved_settings

YARN = "--also=--gin.RoPE.scaling=@YaRN()"
SWEEP = ["--gin.EVAL_LENGTHS=32,64", "--gin.length_sweep.tokens=2048"]


@pytest.fixture
def runs(tmp_path) -> dict[str, epath.Path]:
    """Save the configurations of three runs, without checkpoints."""
    found = {}
    for name in ("fire", "rope", "alibi"):
        files = ["configs/runs/quickstart.gin", f"configs/positions/{name}.gin"]
        found[name] = epath.Path(tmp_path) / name
        found[name].mkdir()
        # Not data/embedded, which exists in a checkout after the quick start.
        text = load_experiment(files, [f"DATA_DIR={tmp_path / 'data'}"]).text()
        (found[name] / "config.gin").write_text(text)
    return found


def asked(run: epath.Path, *flags: str) -> list[tuple[str, str]]:
    """Return (variant, TFDS name) of each setting."""
    found = Sweep(parse(["sweep", str(run), *flags])).settings(run)
    return [(one.run_model.variant, text(one).tfds_name) for one in found]


def text(setting: Setting) -> Any:
    """Return the text that a setting scores."""
    return setting.measure.identity(setting.run_model)["data"]


def resolve(run: epath.Path, *flags: str) -> tuple[list[Setting], dict[str, str]]:
    command = Sweep(parse(["sweep", "x", *flags]))
    return resolved_settings(command.measure_of, command.arguments, run)


def check_effects(runs: Iterable[epath.Path], *flags: str) -> None:
    Sweep(parse(["sweep", "x", *flags])).check(runs)


def test_each_run_has_the_settings_that_concern_it(runs, capsys):
    flags = [
        YARN,
        "--also=--gin.ALiBi.interpolate=True",
        "--also=--gin.TextData.tfds_name=arxiv:1.0.0 --gin.DATA_DIR='/a b'",
    ]
    ((_, plain),) = asked(runs["fire"])
    arxiv = ("", "arxiv:1.0.0")
    assert asked(runs["fire"], *flags) == [("", plain), arxiv]
    assert asked(runs["rope"], *flags) == [("", plain), ("yarn", plain), arxiv]
    assert asked(runs["alibi"], *flags) == [("", plain), ("interpolate", plain), arxiv]
    asked(runs["fire"], *flags)
    told = capsys.readouterr().out
    line = f"{runs['fire']}: --also='--gin.RoPE.scaling=@YaRN()' is skipped: "
    assert told.count(line) == 1 and "nothing in this experiment uses RoPE" in told
    found, _ = resolve(runs["fire"], *flags)
    assert text(found[1]).data_dir == "/a b"


def test_one_that_concerns_no_run_is_refused(runs):
    check_effects(runs.values(), YARN)
    with pytest.raises(UserError, match="changes nothing for any of these runs: .* uses RoPE"):
        check_effects([runs["fire"], runs["alibi"]], YARN)
    for idle in ("--gin.ALiBi.interpolate=False", "--gin.build_decoder.remat=full"):
        with pytest.raises(UserError, match="changes nothing for any of these runs: it has no"):
            check_effects([runs["alibi"]], f"--also={idle}")
    twice = [YARN, "--also=--gin.RoPE.scaling='@YaRN()'"]
    with pytest.raises(UserError, match="it is equivalent to --also='--gin.RoPE.scaling=@YaRN"):
        check_effects([runs["rope"]], *twice)


def test_two_texts_of_one_name_are_refused(runs):
    """Their rows would have equal keys."""
    elsewhere = "--also=--gin.DATA_DIR=/elsewhere"
    with pytest.raises(UserError, match="scores another text that is also called c4"):
        resolve(runs["rope"], elsewhere)
    for apart in ("TextData.tfds_name=arxiv:1.0.0", "CONSTRUCTION=cut", "RoPE.scaling=@YaRN()"):
        found, _ = resolve(runs["rope"], f"{elsewhere} --gin.{apart}")
        assert len(found) == 2


def test_other_amounts_of_one_text_are_refused(runs):
    """Another set of lengths does not change the amount."""
    more, yarn = "--gin.length_sweep.tokens=65536", YARN.removeprefix("--also=")
    with pytest.raises(UserError, match="scores a different number of tokens of c4"):
        resolve(runs["rope"], f"--also={more}")
    for also in (f"{more} {yarn}", "--gin.EVAL_LENGTHS=64,2048"):
        assert len(resolve(runs["rope"], f"--also={also}")[0]) == 2


def test_lengths_are_checked_before_the_first_setting_is_computed(runs):
    with pytest.raises(UserError, match="1000000"):
        resolve(runs["rope"], "--also=--gin.EVAL_LENGTHS=(64,1000000)")


@pytest.mark.parametrize("also", ["--gin.RoPE.scalin=@YaRN()", "--gin.POSITION=@NoPE"])
def test_a_slip_is_no_setting_without_effect(runs, also):
    with pytest.raises(UserError, match="scalin|as it was trained"):
        resolve(runs["rope"], f"--also={also}")


def test_claims_tell_settings_apart(runs):
    """A setting has the same claim in a sweep that has it as its main setting."""
    also = "--gin.TextData.tfds_name=arxiv:1.0.0"

    def claims(*flags: str, step: int = 10) -> list[str]:
        found = resolve(runs["rope"], *flags)[0]
        return [cell.claim for one in found for cell in one.measure.plan(one.run_model, step)]

    found = claims(YARN, f"--also={also}")
    assert len(set(found)) == 3 and found[0] != claims(step=9)[0]
    assert claims(also) == found[2:]
    assert claims("--gin.EVAL_LENGTHS=64,128") == found[:1], "lengths are in one file"


@pytest.mark.parametrize(
    "also, told",
    [
        ("", "--also is empty"),
        ("--gin.X='1", "check its quotes"),
        ("--workdir=here", "'--workdir=here' is neither --gin_file=FILE nor --gin.NAME=VALUE"),
        ("--gin_file=a.gin b.gin", "'b.gin' is neither"),
    ],
)
def test_flags_that_cannot_be_read(also, told):
    with pytest.raises(UserError, match=told):
        flags_of(also)


def test_flags_are_split_as_a_shell_does():
    assert flags_of("--gin_file=a.gin --gin.P='a b' --gin.Q=@F()") == (
        ["a.gin"],
        ["P=a b", "Q=@F()"],
    )


@pytest.mark.slow
def test_a_folder_of_runs_with_variants_and_another_text(tmp_path, capsys):
    """Rows occur once, even if a follower repeats the sweep; a dry run lists all settings."""
    text, other = write_text(tmp_path / "text"), write_text(tmp_path / "other", documents=90)
    for name in ("fire", "rope"):
        assert main(command(text, tmp_path / "runs" / name, position=name)) == 0
    flags = [*SWEEP, YARN, f"--also=--gin.DATA_DIR='{other}' --gin.length_sweep.split=train"]
    runs = [str(tmp_path / "runs"), *flags]
    assert main(["sweep", *runs, "--dry_run"]) == 0
    assert capsys.readouterr().out.count("@12 at (32, 64) also") == 3
    assert main(["sweep", *runs]) == 0
    path = epath.Path(tmp_path) / "runs" / "length_sweep.csv"
    found = [(row.run, row.variant, row.split, row.length) for row in read_table(path, SweepRow)]
    settings = [("fire", "", "validation"), ("fire", "", "train"), ("rope", "", "validation")]
    settings += [("rope", "yarn", "validation"), ("rope", "", "train")]
    assert sorted(found) == sorted((*one, n) for one in settings for n in (32, 64))
    before = Path(path).read_text()
    assert main(["sweep", *runs, "--follow"]) == 0
    assert main(["sweep", *runs]) == 0 and Path(path).read_text() == before
    assert main(["sweep", str(tmp_path / "runs" / "fire"), *SWEEP, YARN]) == 2
    assert "changes nothing for any of these runs" in capsys.readouterr().err
    assert main(["sweep", str(tmp_path / "runs" / "fire"), *SWEEP, YARN, "--follow"]) == 2
