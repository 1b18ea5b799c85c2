"""Every encoding trains a few steps of the tiny model and is swept at 1 and 16 times its length.

One of them is in the quick tier. An embedding, a bias, alternating encodings, log n and resampling
are in the ci tier; all others and all combinations are in --all.
"""

import itertools
import math
import re

import pytest
from etils import epath
from gin_files import CONFIGS, TEXTS, by_tier, layers
from sample_run import command

from fire_lm.cli import main
from fire_lm.results import SweepRow, read_table

LENGTH = 32
QUICK = ("learned",)  # it refuses lengths
IN_CI = ("sinusoidal", "t5", "fire_and_rope")


def train(data_dir, workdir, name, *more):
    """Train the tiny model for three steps, with enough layers for encodings to alternate."""
    tiny = {
        "num_layers": layers(name, 4 if "POSITION = [" in TEXTS[name] else 2),
        "hidden_size": 96,
        "num_heads": 3,
        "head_dim": 32,
        "mlp_size": 384,
    }
    bindings = {"TRAIN_STEPS": 3, **{f"size_tiny.{key}": value for key, value in tiny.items()}}
    flags = [f"--gin.{key}={value}" for key, value in bindings.items()]
    assert main(command(data_dir, workdir, *flags, *more, position=name)) == 0


def sweep(run, lengths, *more):
    bindings = {"EVAL_LENGTHS": list(lengths), "length_sweep.tokens": 32 * max(lengths)}
    return main(["sweep", str(run), *(f"--gin.{k}={v}" for k, v in bindings.items()), *more])


@pytest.mark.parametrize("name", by_tier(QUICK, IN_CI))
def test_trains_and_sweeps(name, data_dir, tmp_path, capsys):
    train(data_dir, tmp_path / name, name)
    capsys.readouterr()
    lengths = (LENGTH, 16 * LENGTH)
    assert sweep(tmp_path / name, lengths) == 0
    if "POSITION = @Learned" in TEXTS[name]:
        told = f"{name} is not scored at length {16 * LENGTH}: "
        assert told in capsys.readouterr().out
        lengths = (LENGTH,)
    rows = read_table(epath.Path(tmp_path / name / "length_sweep.csv"), SweepRow)
    assert [(row.encoding, row.length) for row in rows] == [(name, length) for length in lengths]
    assert all(math.isfinite(row.nll) and 3 < row.nll < 7 for row in rows)


@pytest.fixture(scope="module")
def rope(data_dir, tmp_path_factory):
    run = tmp_path_factory.mktemp("rope") / "rope"
    train(data_dir, run, "rope")
    return run


@pytest.mark.ci
def test_sweep_extrapolates_without_retraining(rope, capsys):
    """Bindings over an existing checkpoint suffice, and each variant has its own rows."""
    lengths = (LENGTH, 16 * LENGTH)
    for flags in (
        (),
        ("--gin.RoPE.scaling=@YaRN()", "--gin.YaRN.factor=16"),
        ("--gin.RoPE.scaling=@PositionInterpolation()",),
        ("--gin_file=configs/log_n/inference.gin",),
    ):
        assert sweep(rope, lengths, *flags) == 0
    rows = read_table(epath.Path(rope / "length_sweep.csv"), SweepRow)
    nll = {(row.variant, row.length): row.nll for row in rows}
    assert {variant for variant, _ in nll} == {"", "yarn-16x", "pi", "log_n-clipped"}
    assert (
        nll["pi", LENGTH]
        == nll["", LENGTH]
        == nll["log_n-clipped", LENGTH]
        != nll["yarn-16x", LENGTH]
    )
    assert len({value for (_, length), value in nll.items() if length == lengths[-1]}) == 4
    table = capsys.readouterr().out
    assert "yarn-16x" in table and "pi" in table
    assert sweep(rope, lengths, "--gin.RoPE.base=500000") == 2
    assert "position.base 10000.0 -> 500000.0" in capsys.readouterr().err


@pytest.mark.ci
def test_layers_that_take_turns_do_not_start_from_layers_that_do_not(
    rope, data_dir, tmp_path, capsys
):
    start = command(data_dir, tmp_path / "new", f"--gin.INIT_FROM={rope}", position="fire_and_rope")
    assert main([*start, *command_of(rope)]) == 2
    told = "has RoPE, but this run has FIRE, RoPE: the number of alternating encodings"
    assert told in capsys.readouterr().err


def command_of(run):
    """Return the sizes of the model that `train` trained, as flags."""
    saved = (run / "config.gin").read_text()
    return [f"--gin.{k}={v}" for k, v in re.findall(r"^(size_tiny\.\w+) = (.*)$", saved, re.M)]


@pytest.mark.ci
def test_parameters_of_the_same_name_in_another_encoding_are_not_taken(data_dir, tmp_path, capsys):
    """KERPLE's two variants have the same names for parameters of different meaning."""
    assert main(command(data_dir, tmp_path / "log", position="kerple_log")) == 0
    start = command(
        data_dir, tmp_path / "new", f"--gin.INIT_FROM={tmp_path / 'log'}", position="kerple_power"
    )
    assert main(start) == 2
    told = capsys.readouterr().err
    assert "has KERPLELog, but this run has KERPLEPower" in told
    flags = re.findall(r"'(--gin.pretrain.init_allow_\w+=[^']+)'", told)
    assert len(flags) == 2 and main([*start, *flags]) == 0
    # Nor can the run itself continue with the other variant.
    on = command(data_dir, tmp_path / "log", "--gin.TRAIN_STEPS=20", position="kerple_power")
    assert main([*on, "--allow_config_change"]) == 2
    told = capsys.readouterr().err
    assert (
        "was trained with KERPLELog, so it cannot be continued with KERPLEPower" in told
        and "INIT_FROM" in told
    )


# From the start of training; test_sweep_extrapolates has inference.gin.
LOG_N_IN_CI = {("fire", "training")}


@pytest.mark.parametrize(
    "name, piece",
    [
        pytest.param(*case, marks=pytest.mark.ci if case in LOG_N_IN_CI else pytest.mark.slow)
        for case in itertools.product(
            ["fire", "kerple_log"], sorted(path.stem for path in (CONFIGS / "log_n").glob("*.gin"))
        )
    ],
)
def test_log_n_composes(piece, name, data_dir, tmp_path):
    train(data_dir, tmp_path / "run", name, f"--gin_file=configs/log_n/{piece}.gin")
    assert sweep(tmp_path / "run", (LENGTH, 16 * LENGTH)) == 0


RESAMPLED = ["fire", "alibi", "rope", "kerple_power", "sandwich", "xpos", "sinusoidal", "t5"]
# One that acts at each point, with each distribution.
RESAMPLED_IN_CI = {("fire", "beta"), ("rope", "exponential"), ("sinusoidal", "random")}


@pytest.mark.parametrize(
    "name, piece",
    [
        pytest.param(*case, marks=pytest.mark.ci if case in RESAMPLED_IN_CI else pytest.mark.slow)
        for case in itertools.product(RESAMPLED, ["random", "exponential", "beta"])
        if case not in {("t5", "exponential"), ("t5", "beta")}  # these are refused
    ],
)
def test_resampling_composes(piece, name, data_dir, tmp_path):
    train(data_dir, tmp_path / "run", name, f"--gin_file=configs/resampling/{piece}.gin")
    assert sweep(tmp_path / "run", (LENGTH, 16 * LENGTH)) == 0
