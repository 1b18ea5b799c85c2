"""A run that continues at another length keeps what its encoding derived from the first length.

The tests use the command line: configurations are saved and resolved, but nothing is trained.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_run import command

from fire_lm.cli import main, parse
from fire_lm.experiment import load_experiment
from fire_lm.models import changes
from fire_lm.models.layer_position import positioned
from fire_lm.runs.resuming import Start
from fire_lm.runs.saved import read_saved, save_config, saved_experiment, saved_run
from fire_lm.runs.variants import experiment_at_evaluation
from fire_lm.storage import place

SHORT, LONG = 32, 128


@pytest.fixture
def source(tmp_path):
    """Return a function that saves the configuration of a run of SHORT tokens, with some flags.

    It returns the run's directory.
    """

    def saved(*flags, position="fire", name="source"):
        folder = tmp_path / name
        save_config(config_of(tmp_path, folder, *flags, position=position), str(folder))
        return folder

    return saved


def config_of(tmp_path, workdir, *flags, position="fire"):
    words = command(tmp_path, workdir, *flags, position=position)
    files = [word.removeprefix("--gin_file=") for word in words if word.startswith("--gin_file=")]
    return load_experiment(files, [word[6:] for word in words if word.startswith("--gin.")])


def started(*arguments, **options):
    """Return the model of a run of LONG tokens at its start; see `start_of`."""
    return start_of(*arguments, **options).experiment.model


def start_of(tmp_path, *flags, position="fire", workdir="new", allow_change=False):
    """Return the start of a run of LONG tokens."""
    flags = (f"--gin.TRAIN_LENGTH={LONG}", *flags)
    asked = config_of(tmp_path, tmp_path / workdir, *flags, position=position)
    run = str(tmp_path / workdir)
    return Start(asked, run, read_saved(run), allow_change)


CASES = {
    "fire": (),
    "fire_from_kerple": (),
    "fire_frozen": (),
    "fire_t": (),
    "alibi_pi": (),
    "rope_yarn": (),
    "rope_llama3": (),
    "rope_dynamic_ntk": (),
    "nope": ("--gin_file=configs/log_n/training.gin",),
}
IN_CI = (
    "fire_from_kerple",
    "fire_frozen",
    "rope_llama3",
    "rope_dynamic_ntk",
)  # like the others of their class


@pytest.mark.parametrize(
    "position",
    [pytest.param(name, marks=pytest.mark.ci if name in IN_CI else ()) for name in CASES],
)
def test_attention_at_step_0_is_that_of_the_source(position, source, tmp_path):
    """It is compared at the length of the second run, with the parameters of the first."""
    trained = source(*CASES[position], position=position)
    flags = (*CASES[position], f"--gin.INIT_FROM={trained}")
    new = started(tmp_path, *flags, position=position)
    old = saved_experiment(trained).model
    assert changes(old, new) == {}
    moved = started(tmp_path, *CASES[position], position=position)
    assert changes(old, moved) != {}
    params = old.encodings[0].init(jax.random.key(0))
    wanted, found, other = (acts(model, params) for model in (old, new, moved))
    jax.tree.map(np.testing.assert_array_equal, wanted, found)
    same = jax.tree.map(np.array_equal, wanted, other)
    assert not all(jax.tree.leaves(same)), "the comparison does not see a length that was not kept"


def acts(model, params):
    """Return queries, keys, their scales and the bias for a complete input of LONG tokens."""
    (encoding,) = model.encodings
    pos = jnp.arange(LONG)[None]
    x = jnp.ones((1, LONG, encoding.num_heads, encoding.head_dim))
    *acted, bias = positioned(encoding, params, model.turns[0].log_n, x, x, pos, pos, pos + 1, LONG)
    return *acted, bias(pos, pos)


def test_a_dry_run_resolves_and_names_what_is_kept(source, tmp_path, capsys):
    trained = source("--gin.FIRE.init_L=12")
    flags = (f"--gin.TRAIN_LENGTH={LONG}", f"--gin.INIT_FROM={trained}")
    assert main(command(tmp_path, tmp_path / "new", "--dry_run", *flags)) == 0
    told = capsys.readouterr().out
    assert "\nFIRE.init_L = 12" in told and f"\nbuild_decoder.train_length = {SHORT}\n" in told
    assert "\npretrain.train_length = %TRAIN_LENGTH\n" in told
    gone = (flags[0], f"--gin.INIT_FROM={tmp_path / 'gone'}")
    assert main(command(tmp_path, tmp_path / "new", "--dry_run", *gone)) == 0
    assert (
        "gone contains no run (no config.gin); the configuration below lacks"
        in capsys.readouterr().out
    )


def test_the_comparison_names_what_is_kept(source, tmp_path):
    old, new = (SHORT, LONG)
    trained = saved_run(source())
    kept = start_of(tmp_path, f"--gin.INIT_FROM={tmp_path / 'source'}")
    assert kept.compared_with(trained) == (
        f"model compared with {trained.workdir}: unchanged; kept from that run: "
        "position.train_length 32, position.init_L 8.0"
    )
    moved = start_of(tmp_path).compared_with(trained)
    assert f"position.init_L {old / 4} -> {new / 4}" in moved and "kept" not in moved


@pytest.mark.parametrize(
    "binding, init_L",
    [("FIRE.init_L=5", 5), ("build_decoder.train_length=%TRAIN_LENGTH", LONG / 4)],
)
def test_what_is_bound_explicitly_is_not_kept(binding, init_L, source, tmp_path):
    new = started(tmp_path, f"--gin.INIT_FROM={source()}", f"--gin.{binding}")
    assert new.encodings[0].init_L == init_L


def test_a_fresh_encoding_follows_its_own_length(source, tmp_path):
    """When finetuning across encodings, the new one has not learned anything yet."""
    new = started(tmp_path, f"--gin.INIT_FROM={source(position='rope')}")
    assert new.encodings[0].init_L == LONG / 4


def test_run_directories_keep_their_meaning(source, tmp_path):
    """A run that has begun resolves as it is saved, without the run that it started from.

    One run continued another, and resumes after that other was removed; one continues itself at
    another length.
    """
    start = f"--gin.INIT_FROM={tmp_path / 'gone'}"
    source(f"--gin.TRAIN_LENGTH={LONG}", start, name="old")
    assert started(tmp_path, start, workdir="old").encodings[0].init_L == LONG / 4
    source(name="own")
    assert started(tmp_path, workdir="own").encodings[0].init_L == LONG / 4  # training refuses this
    assert started(tmp_path, workdir="own", allow_change=True).encodings[0].init_L == SHORT / 4


def test_a_table_of_positions_keeps_its_length(source, tmp_path, capsys):
    start = f"--gin.INIT_FROM={source(position='learned')}"
    words = command(
        *(tmp_path, tmp_path / "new", "--dry_run", f"--gin.TRAIN_LENGTH={LONG}", start),
        position="learned",
    )
    assert main(words) == 2
    assert f"length {LONG} is beyond the {SHORT} positions" in capsys.readouterr().err


CHANGES = {
    "rope": ("RoPE.scaling=@YaRN()", LONG),
    "alibi": ("ALiBi.interpolate=True", LONG),
    "nope": ("build_decoder.log_n=@LogN()", LONG),
    "rope_yarn": ("YaRN.factor=4", SHORT),  # trained with the first length
    "fire": ("build_decoder.log_n=@LogN()", SHORT),  # so is the threshold
}


@pytest.mark.parametrize("position", CHANGES)
def test_changes_at_evaluation_are_relative_to_the_longest_length(position, source, tmp_path):
    """2310.13017: L is the longest length during training, unless the encoding kept another."""
    run = tmp_path / "new"
    flags = (f"--gin.TRAIN_LENGTH={LONG}", f"--gin.INIT_FROM={source(position=position)}")
    asked = config_of(tmp_path, run, *flags, position=position)
    save_config(Start(asked).experiment, str(run))
    binding, length = CHANGES[position]
    lengths = {
        flag: experiment_at_evaluation(parse(["sweep", str(run), *flag]), place(run))[0].model
        for flag in ((), (f"--gin.{binding}",))
    }
    plain, changed = (model.encodings[0].train_length for model in lengths.values())
    assert (plain, changed) == (SHORT, length)


def test_a_run_that_repeats_the_batches_of_its_source_is_told(source, tmp_path):
    trained = str(source())
    start = f"--gin.INIT_FROM={trained}"
    same = config_of(tmp_path, tmp_path / "new", start)
    words = f"reads the text that {trained} has read, in the same"
    assert words in Start(same).compared_with(saved_run(trained))
    for other in (f"--gin.TRAIN_LENGTH={LONG}", "--gin.SEED=7", "--gin.CONSTRUCTION=cut"):
        changed = config_of(tmp_path, tmp_path / "new", start, other)
        assert words not in Start(changed).compared_with(saved_run(trained))


def test_the_training_length_by_name_is_that_of_the_first_run(source, tmp_path):
    """It is that of fire_t's threshold and limit, and of a limit that a sweep sets."""
    started_flags = (f"--gin.INIT_FROM={source(position='fire_t', name='fire_t')}",)
    (fire_t,) = started(tmp_path, *started_flags, position="fire_t").encodings
    assert (fire_t.init_L, fire_t.normalizer_limit) == (SHORT, SHORT)
    run = tmp_path / "new"
    asked = config_of(tmp_path, run, f"--gin.TRAIN_LENGTH={LONG}", f"--gin.INIT_FROM={source()}")
    save_config(Start(asked).experiment, str(run))
    words = ["sweep", str(run), "--gin.FIRE.normalizer_limit='train_length'"]
    config, variant = experiment_at_evaluation(parse(words), place(run))
    assert config.model.encodings[0].normalizer_limit == SHORT
    assert variant == f"normalizer_limit-{SHORT}"


def test_infini_attention_keeps_the_lengths_of_a_plain_source(source, tmp_path):
    flags = (f"--gin.INIT_FROM={source()}", "--gin_file=configs/mixers/infini.gin")
    (encoding,) = started(tmp_path, *flags).encodings
    assert (encoding.train_length, encoding.init_L) == (SHORT, SHORT / 4)
