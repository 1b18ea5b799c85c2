"""The gin files under configs/: each loads and builds, and agrees with the paper."""

import itertools
import math
import os
from pathlib import Path

import pytest
from gin_files import CLASSES, ONE_OF_EACH_KIND, layers, tier
from gin_files import NAMES as POSITIONS

from fire_lm import cli
from fire_lm.experiment import Experiment, check_blocks, load_experiment
from fire_lm.experiment.loading import CALLED_BY_COMMANDS
from fire_lm.hardware.slices import parse_slice
from fire_lm.models import size_125m, size_350m
from fire_lm.positions.fire import FIRE
from fire_lm.training import Finetuning, Pretraining

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parents[1] / "golden" / "configs"
RUNS = sorted(path.stem for path in (ROOT / "configs" / "runs").glob("*.gin"))
SLICES = sorted(path.stem for path in (ROOT / "configs" / "slices").glob("*.gin"))
FILES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*.gin"))


def files(run: str, position: str) -> list[str]:
    return [f"configs/runs/{run}.gin", f"configs/positions/{position}.gin"]


def load(run: str, position: str, *bindings: str) -> Experiment:
    return load_experiment(files(run, position), bindings)


def test_there_are_files_to_test():
    assert {"c4_125m", "c4_350m", "quickstart"} <= set(RUNS)
    assert {"v4_8", "v5e_8", "gpu_1"} <= set(SLICES)
    assert {"fire", "fire_g", "fire_s", "t5", "kerple_log", "rope", "nope"} <= set(POSITIONS)
    assert {"fire", "t5", "rope", "learned"} <= set(CLASSES) and "fire_g" not in CLASSES


NOT_FOR_ENCODERS = {"fox", "xpos"}


@pytest.mark.parametrize(
    "run, position",
    [
        # Any file can have an error, but only classes differ in what they need of a run.
        pytest.param(run, position, marks=tier(position, quick, tuple(POSITIONS)))
        for run in RUNS
        for quick in [ONE_OF_EACH_KIND if run == "quickstart" else ("fire",)]
        for position in (POSITIONS if run == "quickstart" else CLASSES)
    ],
)
def test_every_run_builds_with_every_encoding(run, position, capsys):
    command = ["pretrain", "--dry_run", *(f"--gin_file={f}" for f in files(run, position))]
    if run.endswith("quickstart"):
        command.append(f"--gin.size_tiny.num_layers={layers(position)}")  # for a full schedule
    if position == "nape":  # half of the heads
        command.append("--gin.size_tiny.num_heads=4")
    code = cli.main(command)
    captured = capsys.readouterr()
    if run.startswith("masked") and position in NOT_FOR_ENCODERS:
        assert code == 2 and captured.err.rstrip().endswith("for an encoder")
    else:
        assert code == 0 and "non-embedding" in captured.out


def test_a_dry_run_fails_where_a_model_cannot_be_built(capsys):
    command = ["pretrain", "--dry_run", *(f"--gin_file={f}" for f in files("quickstart", "rope"))]
    assert cli.main([*command, "--gin.size_tiny.head_dim=31"]) == 2
    assert "head" in capsys.readouterr().err


@pytest.mark.parametrize("file", FILES)
def test_every_file_begins_by_saying_what_it_is(file):
    assert (ROOT / file).read_text().startswith("# ")


@pytest.mark.parametrize("run", RUNS)
def test_every_run_file_gives_its_command(run):
    lines = (ROOT / "configs" / "runs" / f"{run}.gin").read_text().splitlines()
    header = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
    assert any(line.startswith("#   fire-lm pretrain") for line in header)
    assert f"--gin_file=configs/runs/{run}.gin" in "\n".join(header)


@pytest.mark.parametrize("position", POSITIONS)
def test_an_encoding_is_called_as_its_file(position):
    assert load("quickstart", position).macro("ENCODING") == position


@pytest.mark.parametrize(
    "run, position", [("c4_125m", "fire"), ("c4_350m", "fire"), ("quickstart", "fire")]
)
def test_resolved_configuration_is_the_golden_one(run, position):
    """Every value of the experiment is compared, so that none changes by accident."""
    golden, text = GOLDEN / f"{run}_{position}.gin", load(run, position).text()
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), (
        f"{golden.relative_to(ROOT)} differs. If this commit means to change what the experiment "
        "is, or a default that it shows, run these tests once with UPDATE_GOLDEN=1 and say in the "
        "commit which value changed and why; else this commit has changed the experiment by "
        "accident."
    )


def built(*loading: str) -> Pretraining:
    run: Pretraining = load(*loading).train
    return run


@pytest.mark.parametrize(
    "run, size, learning_rate, chips",
    [("c4_125m", size_125m(), 6e-4, 128), ("c4_350m", size_350m(), 3e-4, 256)],
)
def test_c4_runs_are_the_papers(run, size, learning_rate, chips):
    """The values are those of Tables 8 and 9, and GPT-3's where the paper gives none."""
    run = built(run, "fire")
    assert run.model.size == size and run.model.vocab_size == 32_128
    assert run.model.dtype.name == "bfloat16"
    assert (run.batch_size, run.train_length) == (256, 2048)
    assert run.train_steps == 600_000
    assert run.data.tfds_name == "c4/en:3.1.0" and run.data.construction == "concat"
    mesh = run.mesh
    assert mesh.data * mesh.fsdp * mesh.tensor == chips

    recipe = run.optimizer
    assert (recipe.b1, recipe.b2, recipe.weight_decay) == (0.9, 0.95, 0.1)
    assert recipe.clip_norm == 1.0
    rate = recipe.schedule(run.train_steps)
    assert rate(0) == 0 and recipe.warmup_steps == 715
    assert rate(715) == pytest.approx(learning_rate)
    assert rate(715 + (600_000 - 715) // 2) == pytest.approx(0.55 * learning_rate, rel=1e-4)
    assert rate(600_000) == pytest.approx(0.1 * learning_rate)


@pytest.mark.parametrize("preset", SLICES)
def test_a_small_slice_has_the_papers_batch(preset):
    """The batch is split over all chips; the files are named after the slice, or gpu_NUMBER."""
    loaded = load_experiment([*files("c4_125m", "fire"), f"configs/slices/{preset}.gin"])
    run = loaded.train
    kind, _, number = preset.partition("_")
    chips = int(number) if kind == "gpu" else parse_slice(f"{kind}-{number}").chips
    sizes = run.mesh.resolve(chips)
    assert math.prod(sizes) == chips and run.batch_size == 256
    assert 256 % (sizes[0] * sizes[1] * run.microbatches) == 0 and run.microbatches > 1


def test_the_warm_up_is_the_papers_375m_tokens():
    run = built("c4_125m", "rope")
    tokens = run.optimizer.warmup_steps * run.batch_size * run.train_length
    assert tokens == pytest.approx(375e6, rel=1e-3)


def test_fires_variants_are_what_their_files_say():
    fire, shared, printed = (
        built("c4_125m", name).model for name in ("fire", "fire_s", "fire_appendix_e")
    )
    assert fire.encodings == shared.encodings == (FIRE(12, 64, 2048, 768),)
    assert (fire.share_position, shared.share_position) == (False, True)
    assert (fire.encodings[0].hidden_layers, fire.encodings[0].width) == (2, 32)
    assert (printed.encodings[0].hidden_layers, printed.encodings[0].init_L) == (1, 512.0)


def with_blocks(tmp_path: Path, text: str, *bindings: str) -> Experiment:
    """Load a run whose data are blocks, with a gin file of the user's."""
    (tmp_path / "mine.gin").write_text(text)
    more = [str(tmp_path / "mine.gin"), "configs/data/blocks.gin"]
    return load_experiment([*files("quickstart", "fire"), *more], bindings)


def test_blocks_keep_the_construction(tmp_path):
    for text, bindings, expected in (
        ("", (), "concat"),
        ("CONSTRUCTION = 'packed'", (), "packed"),
        ("CONSTRUCTION = 'packed'", ("CONSTRUCTION=cut",), "cut"),
        ("", ("Blocks.construction=cut",), "cut"),
    ):
        loaded = with_blocks(tmp_path, text, *bindings)
        check_blocks(loaded)
        for data in (loaded.train.data, loaded.sweep.data):
            assert data.construction == expected, (text, bindings)
    on_the_fly = load("quickstart", "fire", "CONSTRUCTION=cut", "TextData.construction=packed")
    (tmp_path / "saved.gin").write_text(on_the_fly.text())
    for read in (on_the_fly, load_experiment([str(tmp_path / "saved.gin")])):
        assert read.settings["TextData.construction"] == ("TextData.construction", "packed")


@pytest.mark.parametrize(
    "binding, complaint",
    [
        ("TextData.mixture = (('c4/en:3.1.0', 3), ('arxiv:1.0.0', 1))", "contain one data set"),
        ("TextData.construction = 'packed'", "set CONSTRUCTION"),
    ],
)
def test_what_blocks_would_leave_out_is_refused(binding, complaint, tmp_path, capsys):
    (tmp_path / "mine.gin").write_text(binding)
    paths = [*files("quickstart", "fire"), str(tmp_path / "mine.gin")]
    command = ["pretrain", "--dry_run", *(f"--gin_file={path}" for path in paths)]
    assert cli.main([*command, "--gin_file=configs/data/blocks.gin"]) == 2
    said = capsys.readouterr().err.strip()
    assert "mine.gin" in said and complaint in said and len(said.splitlines()) <= 2, said
    assert cli.main(command) == 0, "on the fly it serves"


def test_the_users_macros_reach_the_code():
    """TRAIN_STEPS, BATCH_SIZE, TRAIN_LENGTH, SEED, INIT_FROM and EVAL_LENGTHS have an effect."""
    bindings = ("TRAIN_STEPS=7", "BATCH_SIZE=24", "TRAIN_LENGTH=32", "SEED=3", "INIT_FROM=a/b@9")
    run = built("quickstart", "fire", *bindings)
    assert (run.train_steps, run.batch_size, run.seed) == (7, 24, 3)
    assert run.train_length == run.model.encodings[0].train_length == 32
    assert run.init_from == "a/b@9"
    changed = load("quickstart", "fire", "EVAL_LENGTHS=[8, 16]")
    assert changed.macro("EVAL_LENGTHS") == (8, 16)


@pytest.mark.parametrize("kind", [Pretraining, Finetuning])
def test_a_training_experiment_knows_its_name_in_gin(kind):
    assert CALLED_BY_COMMANDS[kind.configurable] is kind
