"""configs/paper/ and configs/scales/: each row builds at every scale and agrees with the paper."""

import math
import re
from pathlib import Path

import numpy as np
import published
import pytest

from fire_lm import cli
from fire_lm.errors import UserError
from fire_lm.experiment import Experiment, load_experiment
from fire_lm.runs import resuming
from fire_lm.runs.resuming import Start
from fire_lm.runs.saved import read_saved
from fire_lm.training import AdamW, Pretraining

ROOT = Path(__file__).resolve().parents[2]
FILES = {path.stem: path.read_text() for path in (ROOT / "configs" / "paper").glob("*.gin")}
MODELS = sorted(FILES)
TUNED = {"base_rope_yarn": 400, "base_rope_pi": 1000, "base_rope_pi_32k": 1000,
         "large_rope_pi": 1000}  # fmt: skip
TUNED_TIMES = {model: 16 if model.endswith("32k") else 4 for model in TUNED}  # times RoPE's length
PRETRAINED = [model for model in MODELS if model not in TUNED]

# The compiler's estimates in the table of docs/preflight.md: ms of XLA, kernels, collectives that
# are not overlapped, and in total.
STEP = {
    ("base", "fire"): (23.1, 10.5, 3.0, 36.5),
    ("base", "rope"): (23.3, 5.2, 3.1, 31.6),
    ("large", "fire"): (36.0, 21.0, 13.0, 70.1),
    ("large", "rope"): (34.8, 7.8, 13.0, 55.6),
}


def gin_files(model: str, scale: str = "paper") -> list[str]:
    more = [] if scale == "paper" else [f"configs/scales/{scale}.gin"]
    return [f"configs/paper/{model}.gin", *more]


def load(model: str, scale: str = "paper", *bindings: str) -> Experiment:
    return load_experiment(gin_files(model, scale), bindings)


def run_of(loaded: Experiment) -> Pretraining:
    run: Pretraining = loaded.train
    return run


def dry_run(model: str, scale: str, capsys: pytest.CaptureFixture[str]) -> str:
    command = ["pretrain", "--dry_run", *(f"--gin_file={f}" for f in gin_files(model, scale))]
    assert cli.main(command) == 0
    return capsys.readouterr().out


def test_a_file_for_each_model_of_the_paper_and_no_other():
    assert set(published.models()) == set(MODELS) and len(MODELS) == 29


def expected_encoding_parameters(model: str) -> int:
    """Return the learned numbers of an encoding; FIRE has f with biases, c and L in each layer.

    FIRE-S has one set for all layers.
    """
    large = model.startswith("large")
    layers, heads = (24, 16) if large else (12, 12)
    kind = re.sub("^(base|large)_(512_)?", "", model)
    one_hidden = (1 + 1) * 32 + (32 + 1) * heads
    two_hidden = one_hidden + (32 + 1) * 32
    fire = {
        "fire": layers * (two_hidden + 2),
        "fire_gelu": layers * (two_hidden + 2),
        "fire_s": two_hidden + 2,
        "fire_eq21": layers * two_hidden,
        "fire_eq22": layers * (two_hidden + 1),
        "fire_affine": layers * (2 * heads + 2),
        "fire_1_hidden": layers * (one_hidden + 2),
        "fire_final_activation": layers * (one_hidden + 2),
    }
    return {**fire, "kerple": 2 * heads, "t5": 64 * heads}.get(kind, 0)


# The quick tests build some models; the ci tier builds all of them.
QUICK = ("base_fire", "base_fire_s", "base_kerple", "large_fire")


@pytest.mark.parametrize(
    "model",
    [pytest.param(m, marks=[] if m in QUICK else pytest.mark.ci) for m in MODELS],
)
def test_a_dry_run_has_the_papers_size(model, capsys):
    """Table 8's 125M and 350M are GPT-3's sizes with its vocabulary of 50,257; ours has 32,128."""
    said = dry_run(model, "paper", capsys)
    total, width = (350e6, 1024) if model.startswith("large") else (125e6, 768)
    body = sum(
        int(number.replace(",", ""))
        for name, number in re.findall(r"^  ([\w/]+) +([\d,]+)$", said, re.MULTILINE)
        if name != "embedding"
    )
    assert body + 50_257 * width == pytest.approx(total, rel=0.015)
    (encoding,) = re.findall(r"^  encoding .*? ([\d,]+), listed separately", said, re.MULTILINE)
    assert int(encoding.replace(",", "")) == expected_encoding_parameters(model)


@pytest.mark.ci
@pytest.mark.parametrize("scale", ["mini", "gpu"])
@pytest.mark.parametrize("model", MODELS)
def test_a_dry_run_at_a_smaller_scale(model, scale, capsys):
    said = dry_run(model, scale, capsys)
    pretrained = {"mini": 64, "gpu": 512}[scale]
    length = pretrained // 4 if "_512_" in model else pretrained * TUNED_TIMES.get(model, 1)
    batch = {"mini": 16, "gpu": 64}[scale]
    steps = TUNED.get(model, {"mini": 1000, "gpu": 6000}[scale])
    tokens = f"batch {batch} x {length} = {batch * length:,} tokens per step, {steps:,} steps"
    assert tokens in said
    assert "non-embedding " + {"mini": "0.3M", "gpu": "25.2M"}[scale] in said


@pytest.mark.parametrize("model", PRETRAINED)
def test_the_recipe_is_table_9s(model):
    loaded = load(model)
    run = run_of(loaded)
    length = 512 if "_512_" in model else 2048
    assert (run.batch_size, run.train_steps, run.train_length) == (256, 600_000, length)
    assert run.model.encodings[0].train_length == length and run.init_from == ""
    large = model.startswith("large")
    rate = 3e-4 if large else 6e-4
    assert run.optimizer == AdamW(
        learning_rate=rate, warmup_steps=715, final_fraction=0.1, b1=0.9, b2=0.95,
        weight_decay=0.1, clip_norm=1.0,
    )  # fmt: skip
    mesh = run.mesh
    assert mesh.data * mesh.fsdp * mesh.tensor == (256 if large else 128)
    assert loaded.macro("EVAL_LENGTHS") == (512, 1024, 2048, 4096, 8192)


def test_ablations_are_what_their_tables_say():
    """Table 7 compares f with one hidden layer, with and without a final activation."""
    fire = {m: load(m).model.encodings[0] for m in MODELS if "base_fire" in m}
    shape = {m: (e.hidden_layers, e.activation, e.final_activation) for m, e in fire.items()}
    assert shape["base_fire"] == shape["base_fire_s"] == (2, "relu", False)
    assert shape["base_fire_affine"][0] == 0
    assert shape["base_fire_1_hidden"] == (1, "relu", False)
    assert shape["base_fire_final_activation"] == (1, "relu", True)
    assert shape["base_fire_gelu"] == (2, "gelu", False)
    formula = {m: (e.transform, e.threshold) for m, e in fire.items()}
    assert formula["base_fire_eq21"] == ("identity", False)
    assert formula["base_fire_eq22"] == ("log", False)
    assert formula["base_fire"] == ("log", True)


@pytest.mark.parametrize("scale", ["paper", "mini", "gpu"])
def test_a_shorter_training_length_is_all_that_fig_6_changes(scale):
    """FIRE's threshold starts where it does at the usual length, in the paper at 512 tokens."""
    usual, short = (
        load(model, scale).model.encodings[0] for model in ("base_fire", "base_512_fire")
    )
    assert short.init_L == usual.init_L == short.train_length == usual.train_length / 4
    assert scale != "paper" or short.init_L == 512


def yarn(length: int, factor: float) -> np.ndarray:
    """Return YaRN's frequencies for heads of 64, as in its authors' code."""
    theta = 10_000.0 ** -(np.arange(32) / 32)
    first, last = (
        64 * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(10_000)) for turns in (32, 1)
    )
    ramp = np.clip(
        (np.arange(32) - math.floor(first)) / (math.ceil(last) - math.floor(first)), 0, 1
    )
    return theta / factor * ramp + theta * (1 - ramp)


@pytest.mark.parametrize("scale, length", [("paper", 2048), ("gpu", 512)])
def test_tuning_scales_the_frequencies_of_the_original_length(scale, length):
    """The frequencies do not follow the length of tuning; YaRN would then keep other pairs."""
    for model in ("base_rope_pi", "base_rope_pi_32k", "base_rope_yarn"):
        loaded, times = load(model, scale), TUNED_TIMES[model]
        assert run_of(loaded).train_length == times * length
        found, factor = loaded.model.encodings[0].frequencies(times * length)
        tuned = yarn(length, 4) if model == "base_rope_yarn" else None
        expected = 10_000.0 ** -(np.arange(32) / 32) / times if tuned is None else tuned
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        assert factor == pytest.approx(1 if tuned is None else 0.1 * math.log(4) + 1)
    unbound = load("base_rope_yarn", scale, "build_decoder.train_length=%TRAIN_LENGTH")
    other, _ = unbound.model.encodings[0].frequencies(4 * length)
    assert np.abs(other / yarn(length, 4) - 1).max() > 0.1


@pytest.mark.parametrize("scale", ["paper", "mini", "gpu"])
@pytest.mark.parametrize("model", TUNED)
def test_tuning_continues_the_run_with_rope(model, scale):
    loaded, rope = load(model, scale), load(f"{model.split('_')[0]}_rope", scale)
    run, source = run_of(loaded), run_of(rope)
    assert run.init_from.endswith(f"/{model.split('_')[0]}_rope")
    assert run.model.size == source.model.size
    assert run.train_length == TUNED_TIMES[model] * source.train_length
    assert run.model.encodings[0].train_length == source.train_length
    assert run.train_steps == TUNED[model]
    recipe = run.optimizer
    pretraining = run_of(load(model.split("_")[0] + "_rope")).optimizer
    end = pretraining.learning_rate * pretraining.final_fraction
    rate = recipe.schedule(run.train_steps)
    assert rate(20) == pytest.approx(end) and rate(TUNED[model]) == pytest.approx(end)
    assert (rate(0), recipe.weight_decay) == (0, 0)


def test_mini_is_the_quick_start():
    """Every value of training and of the sweep is equal."""
    names = ["configs/runs/quickstart.gin", "configs/positions/fire.gin"]
    mini, quick = load("base_fire", "mini"), load_experiment(names)
    assert mini.train == quick.train and mini.sweep == quick.sweep


def test_a_run_of_a_row_may_be_trained_longer(tmp_path):
    """Either the macro or omitting the binding that shortened the run makes it longer."""
    saved = load("base_rope", "mini", "TRAIN_STEPS=10")
    (tmp_path / "config.gin").write_text(saved.text())
    for bindings in ((), ("TRAIN_STEPS=20",)):
        Start(load("base_rope", "mini", *bindings)).check_same_experiment(read_saved(tmp_path))
    for binding in ("TRAIN_STEPS=5", "SEED=1"):
        with pytest.raises(UserError, match=binding.split("=")[0]):
            longer = load("base_rope", "mini", binding)
            Start(longer).check_same_experiment(read_saved(tmp_path))


@pytest.mark.parametrize(
    ("binding", "possible"),
    [("BATCH_SIZE=2", True), ("SEED=1", False), ("TRAIN_LENGTH=48", False)],
)
def test_a_change_is_offered_only_if_checkpoints_survive_it(
    binding, possible, tmp_path, monkeypatch
):
    (tmp_path / "config.gin").write_text(load("base_rope", "mini").text())
    changed = load("base_rope", "mini", binding)
    monkeypatch.setattr(resuming, "available_steps", lambda workdir: [5])
    with pytest.raises(UserError, match="choose another --workdir") as told:
        Start(changed).check_same_experiment(read_saved(tmp_path))
    assert ("add --allow_config_change" in str(told.value)) is possible


# --- Headers


def header(model: str) -> str:
    """Return the header as one line without comment marks."""
    lines = FILES[model].split("\ninclude ")[0].splitlines()
    assert all(line.startswith("# ") for line in lines)
    return " ".join(line[2:].strip() for line in lines)


@pytest.mark.parametrize("model", MODELS)
def test_a_header_has_the_command_and_the_place(model):
    said = header(model)
    command = f"fire-lm pretrain --gin_file=configs/paper/{model}.gin \\ --gin.DATA_DIR="
    assert command in said
    for word in ("--gin.VOCABULARY=", f"--workdir=gs://BUCKET/runs/{model} "):
        assert word in said
    assert ("--gin.INIT_FROM=" in said) == (model in TUNED)
    place = FILES[model].splitlines()[0].split(": ")[-1]
    assert place.endswith(" of the paper.")
    assert re.findall(r"[TF]\w+|\d+", place) == re.findall(r"[TF]\w+|\d+", published.places(model))


@pytest.mark.parametrize("model", MODELS)
def test_a_header_has_the_papers_numbers(model):
    said = header(model)
    cells = published.log_perplexity_cells(model)
    stated = re.search(r"Expected log perplexity on C4 \((.*?)\): ([^;]*?)\.(?: |$)", said)
    if not cells:
        assert stated is None and "Expected log perplexity: the paper prints none" in said
        return
    assert stated is not None
    assert stated[1] in {cell.source for cell in published.cells(model)}
    values = [f"{cell.printed} at {length}" for length, cell in cells.items()]
    assert stated[2] == ", ".join(values)


def step_time(model: str) -> float:
    """Return the ms per step, from the compiler's estimates for FIRE and RoPE."""
    size = model.split("_")[0]
    xla, kernels, collectives, total = STEP[size, "fire" if "fire" in model else "rope"]
    if model in TUNED:  # per chip, one long sequence instead of two (large: one) of 2048
        longer = TUNED_TIMES[model]
        times = longer / 2 if size == "base" else longer
        return times * xla + longer * times * kernels + collectives
    if "_512_" in model:
        return (total - collectives) / 4 + collectives
    return total


@pytest.mark.parametrize("model", MODELS)
def test_a_header_has_hardware_and_chip_hours(model):
    run = run_of(load(model))
    chips = run.mesh.data * run.mesh.fsdp * run.mesh.tensor
    stated = re.search(
        r"Hardware: (\d+) TPU v4 chips .*Estimate: (\d+) chips x ([\d,]+) steps x ([\d.]+) ms = "
        r"([\d,.]+) chip-hours",
        header(model),
    )
    assert stated is not None
    assert int(stated[1]) == int(stated[2]) == chips
    assert int(stated[3].replace(",", "")) == run.train_steps
    assert float(stated[4]) == pytest.approx(step_time(model), rel=0.01)
    hours = chips * run.train_steps * float(stated[4]) / 3.6e6
    assert float(stated[5].replace(",", "")) == pytest.approx(hours, rel=0.03)


def test_step_times_are_those_of_the_documentation():
    page = (ROOT / "docs" / "preflight.md").read_text()
    for (size, encoding), numbers in STEP.items():
        name = f"{'125M' if size == 'base' else '350M'} {encoding.upper().replace('ROPE', 'RoPE')}"
        xla, kernels, collectives, total = numbers
        row = rf"^\| {name} \| v4-\d+: .*\| {xla} \+ {kernels} \+ {collectives} = {total} \|"
        assert re.search(row, page, re.MULTILINE), name


def test_ten_minutes_of_a_gpu_are_its_headers_arithmetic(capsys):
    said = dry_run("base_nope", "gpu", capsys)
    (flops,) = re.findall(r"^FLOPs per token ([\d.e+]+)", said, re.MULTILINE)
    (tokens,) = re.findall(r"steps, ([\d.e+]+) tokens", said)
    stated = " ".join(
        line.removeprefix("#").strip()
        for line in (ROOT / "configs/scales/gpu.gin").read_text().splitlines()
        if line.startswith("#")
    )
    for peak, seconds in re.findall(r"'s (\d+) TFLOP/s (?:that is )?(\d+) s", stated):
        needed = float(flops) * float(tokens) / (0.3 * float(peak) * 1e12)
        assert needed == pytest.approx(float(seconds), rel=0.02)
        assert seconds in ("580", "180")
    assert "580 s" in stated and "180 s" in stated
